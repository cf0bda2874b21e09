//! What an agent is told when it starts.

use std::time::Duration;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct Options {
    /// URLs of the nodes.
    pub nodes: Vec<String>,
    /// A whole exchange with the cluster, retries and all.
    pub timeout: Duration,
    /// One attempt; then another node is asked.
    pub attempt_timeout: Duration,
    /// Most slots of one key that are held ahead.
    pub block_max: u32,
    /// No slot is reserved ahead that lies farther away.
    pub age_max: Duration,
    /// Keys, each with each of its limits, known at once.
    pub keys_max: usize,
    /// Slots held at once, over all keys.
    pub slots_max: usize,
    /// Workers that wait at once.
    pub waiting_max: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// Time for requests in flight, and for giving back, when it stops.
    pub grace: Duration,
}

impl Options {
    /// These nodes, and what is usual.
    pub fn new(nodes: Vec<String>) -> Self {
        Self {
            nodes,
            timeout: Duration::from_secs(3),
            attempt_timeout: Duration::from_secs(1),
            block_max: 100,
            age_max: Duration::from_secs(2),
            keys_max: 10_000,
            slots_max: 100_000,
            waiting_max: 10_000,
            connections_max: 4_096,
            grace: Duration::from_secs(5),
        }
    }
}
