//! How a command finds the cluster: the same flags everywhere.

use super::exit::Failure;
use crate::client::{Client, Options};
use crate::limiter::{Span, parse_duration};
use std::time::Duration;

/// Where the nodes are.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Nodes {
    /// The nodes to ask, in this order until the leader is known
    #[arg(
        long,
        value_name = "URLS",
        env = "QUORATE_NODES",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003"
    )]
    nodes: Vec<String>,
}

/// Where the cluster is.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Reach {
    #[command(flatten)]
    nodes: Nodes,
    /// How long to try before giving up
    #[arg(long, value_name = "DURATION", env = "QUORATE_TIMEOUT", default_value = "10s", value_parser = duration)]
    timeout: Duration,
}

impl Nodes {
    /// Their URLs; a comma too many is none.
    pub(super) fn urls(&self) -> Vec<String> {
        self.nodes.iter().filter(|node| !node.is_empty()).cloned().collect()
    }
}

impl Reach {
    pub(super) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::with(&Options { timeout: self.timeout, ..Options::new(self.nodes.urls()) })?)
    }
}

/// A duration on the command line: `250ms`, `6s`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let Span(ns) = parse_duration(text).map_err(|error| error.to_string())?;
    Ok(Duration::from_nanos(ns))
}
