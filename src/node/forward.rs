//! What one node asks of another outside the log: decide or look as the leader, or say how it is.
//!
//! One hop at most: a node that is asked and does not lead says so, and the asking node looks again who does.

use super::membership::{Change, Changed};
use super::verdict::{Look, Rules, Verdict};
use crate::limiter::Key;
use crate::raft::Footing;
use crate::state::{Acquire, Command, Withdraw};
use serde::{Deserialize, Serialize};

/// A question to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Question {
    /// Decide all of these; each is answered as if it had come alone, in this order.
    Decide(Vec<Asked>),
    /// Waits in line until there is a place, `wait_ms` at most; for ever if that is absent. It has waited elsewhere before.
    Wait {
        acquire: Acquire,
        waited_ms: u64,
        wait_ms: Option<u64>,
    },
    /// Whoever waited has gone away.
    Leave {
        withdraw: Withdraw,
        within_ms: u64,
    },
    Look {
        key: Key,
        /// The id of a request whose place in line is wanted.
        waiter: Option<u128>,
        within_ms: u64,
    },
    /// The stored rules, or one of them.
    Rules {
        name: Option<String>,
        within_ms: u64,
    },
    Report,
    /// Change who belongs to the cluster, or who leads it.
    Change {
        change: Change,
        within_ms: u64,
    },
}

/// One command to decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) command: Command,
    /// One that has not left the leader's queue after this is not worth waiting for.
    pub(super) queued_ms: u64,
    pub(super) within_ms: u64,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Decided(Verdict),
    /// One for each command that was asked about.
    Several(Vec<Reply>),
    Looked(Look),
    Rules(Rules),
    Report(Report),
    Changed(Changed),
    /// Certainly not applied.
    NotLeading,
    /// Certainly not applied.
    NoQuorum,
    /// Certainly not applied.
    DiskFull,
    /// Certainly not applied.
    Overloaded,
    /// May or may not be applied.
    Unknown(String),
}

/// How a node sees itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) role: String,
    pub(super) last_log: Option<u64>,
    pub(super) applied: Option<u64>,
    /// What of it can never go away.
    pub(super) settled: Footing,
    /// Whether its disk has no room for more.
    pub(super) full: bool,
}
