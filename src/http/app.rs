//! What every handler holds.

use super::meters::Meters;
use super::openapi;
use super::options::Options;
use super::upstream::Upstream;
use bytes::Bytes;

/// One per listener, shared by all connections.
#[derive(Debug)]
pub(super) struct App {
    pub(super) upstream: Upstream,
    pub(super) options: Options,
    pub(super) meters: Meters,
    /// `/openapi.json`, rendered once.
    pub(super) openapi: Bytes,
}

impl App {
    pub(super) fn new(upstream: Upstream, options: Options) -> Self {
        Self { upstream, options, meters: Meters::new(), openapi: Bytes::from(openapi::document()) }
    }
}
