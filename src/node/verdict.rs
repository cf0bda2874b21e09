//! What a node answers, and how certain that is.

use crate::limiter::{Span, Time};
use crate::state::{Grant, KeyView, Outcome, Stored};
use serde::{Deserialize, Serialize};

/// A decision, and what the node that led read from its clock when it answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What the state machine decided.
    pub outcome: Outcome,
    /// `T_r`: cluster time of the answer, or a lower bound of it.
    pub at: Time,
}

impl Verdict {
    /// `S - T_r`: the worker starts no earlier than this long after it received the answer.
    pub const fn wait(&self, grant: &Grant) -> Span {
        grant.slot.since(self.at)
    }

    /// The answer comes after the permit's start window: the slot is spent and of no use.
    pub fn expired(&self, grant: &Grant) -> bool {
        grant.expires_at.is_some_and(|expires| self.at > expires)
    }
}

/// A linearizable look at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Cluster time of the look.
    pub now: Time,
    /// The key, or `None` if no rule is stored for it and it is idle or was never used.
    pub key: Option<KeyView>,
    /// Requests that wait for a place.
    pub waiting: u64,
    /// The place in that line, from 1, of the request that was asked for.
    pub position: Option<u64>,
}

/// A linearizable look at the stored rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// All of them by name, or the one that was asked for.
    pub stored: Vec<Stored>,
    /// Of the last change of any rule.
    pub revision: u64,
}

/// Why there is no decision, and how certain that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Certainly not applied: nothing was consumed, and asking again is safe.
    Refused {
        /// Which condition refused.
        refusal: Refusal,
        /// For a person.
        detail: String,
        /// When asking again makes sense.
        retry_after: Span,
    },
    /// May or may not be applied: only a retry with the same request id is safe.
    Unknown {
        /// For a person.
        detail: String,
    },
}

/// The conditions under which nothing is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A leader is known, but it does not reach a majority.
    NoQuorum,
    /// No leader is known.
    NoLeader,
    /// The leader's disk is full and nobody with room took over, or the disks of most nodes are.
    DiskFull,
    /// The queue in front of the proposer is full, or the room where requests wait.
    Overloaded,
    /// The node is on its way down.
    ShuttingDown,
}
