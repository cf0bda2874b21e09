//! What one node asks of another outside the log: decide or look as the leader, or say how it is.
//!
//! One hop at most: a node that is asked and does not lead says so, and the asking node looks again who does.

use super::verdict::{Look, Verdict};
use crate::limiter::Key;
use crate::state::Acquire;
use serde::{Deserialize, Serialize};

/// A question to another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Question {
    /// A request that has not left the leader's queue after `queued_ms` is not worth waiting for.
    Decide {
        acquire: Acquire,
        queued_ms: u64,
        within_ms: u64,
    },
    Look {
        key: Key,
        within_ms: u64,
    },
    Report,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reply {
    Decided(Verdict),
    Looked(Look),
    Report(Report),
    /// Certainly not applied.
    NotLeading,
    /// Certainly not applied.
    NoQuorum,
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
}
