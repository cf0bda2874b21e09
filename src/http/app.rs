//! What every handler holds.

use super::history::READERS_MAX;
use super::meters::Meters;
use super::openapi;
use super::options::Options;
use super::upstream::Upstream;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// One per listener, shared by all connections.
#[derive(Debug)]
pub(super) struct App {
    pub(super) upstream: Upstream,
    pub(super) options: Options,
    pub(super) meters: Meters,
    /// One permit per read of the history.
    pub(super) history_readers: Arc<Semaphore>,
    /// `/openapi.json`, rendered once.
    pub(super) openapi: Bytes,
}

impl App {
    pub(super) fn new(upstream: Upstream, options: Options) -> Self {
        Self {
            upstream,
            options,
            meters: Meters::new(),
            history_readers: Arc::new(Semaphore::new(READERS_MAX)),
            openapi: Bytes::from(openapi::document()),
        }
    }
}
