//! What can be set about the client listener, and the defaults.

use crate::history::History;
use crate::limits::{BODY_TIMEOUT_MS, CONNECTIONS_DEFAULT, HEADER_TIMEOUT_MS, REQUEST_TIMEOUT_MS};
use metrics_exporter_prometheus::PrometheusHandle;
use std::time::Duration;
use tokio::runtime::Handle;

/// The bounds of the client listener. Sizes are fixed in [`crate::limits`]; times differ in tests.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections open at once; the next one is told `overloaded` and closed.
    pub connections_max: usize,
    /// Time to send all headers, from the first byte of a request or from connecting.
    pub header_timeout: Duration,
    /// Time a connection may stay open between two requests. Much longer than `header_timeout`: a worker that asks
    /// every ten seconds must not meet a connection that is closed every ten seconds.
    pub idle_timeout: Duration,
    /// Time to send the body.
    pub body_timeout: Duration,
    /// Time to take in a part of the answer: past it the client is gone or does not read.
    pub write_timeout: Duration,
    /// Time the node may work on a request. A last resort: the node gives up earlier by itself, and says more
    /// precisely why.
    pub request_timeout: Duration,
    /// Time for requests in flight to finish when the node shuts down.
    pub shutdown_grace: Duration,
    /// What `/metrics` renders; without it there is no such route.
    pub metrics: Option<PrometheusHandle>,
    /// What this node remembers; without it the routes that show it are `history_unavailable`.
    pub history: Option<History>,
    /// Where connections are served in turn, beside the runtime that accepts them.
    pub crew: Vec<Handle>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections_max: CONNECTIONS_DEFAULT,
            header_timeout: Duration::from_millis(HEADER_TIMEOUT_MS),
            idle_timeout: Duration::from_secs(90),
            body_timeout: Duration::from_millis(BODY_TIMEOUT_MS),
            write_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_millis(REQUEST_TIMEOUT_MS + 1_000),
            shutdown_grace: Duration::from_millis(REQUEST_TIMEOUT_MS + 2_000),
            metrics: None,
            history: None,
            crew: Vec::new(),
        }
    }
}
