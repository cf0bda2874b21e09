//! What a node answers, and how certain that is.

use crate::limiter::{Span, Time};
use crate::state::{KeyView, Outcome};
use serde::{Deserialize, Serialize};

/// A decision, and what the node that led read from its clock when it answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What the state machine decided.
    pub outcome: Outcome,
    /// `S - T_r` for a grant: the worker starts no earlier than this long after it received the answer.
    pub wait: Span,
    /// The answer comes after the permit's start window: the slot is spent and of no use.
    pub expired: bool,
}

/// A linearizable look at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Cluster time of the look.
    pub now: Time,
    /// The key, or `None` if it is idle or was never used.
    pub key: Option<KeyView>,
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
    /// The queue in front of the proposer is full.
    Overloaded,
    /// The node is on its way down.
    ShuttingDown,
}
