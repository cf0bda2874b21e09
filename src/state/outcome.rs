//! What comes out of applying a batch.

use crate::limiter::{Denial, Limit, Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The result of one log entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Applied {
    /// One outcome per command, in order, at this instant.
    Decided {
        /// The entry's stamp, or the state's time if that was later.
        now: Time,
        /// In the order of the commands.
        outcomes: Vec<Outcome>,
    },
    /// The stamp was not made by the leader that appended the entry: nothing was decided, nothing changed.
    StaleStamp,
    /// An entry without decisions: a blank or a change of membership.
    Nothing,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decided { now, outcomes } => write!(f, "{} outcomes at {now}", outcomes.len()),
            Self::StaleStamp => f.write_str("stale stamp"),
            Self::Nothing => f.write_str("nothing"),
        }
    }
}

/// The result of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// A permit, new or remembered.
    Granted(Grant),
    /// Over the limit; nothing consumed.
    Denied(Denial),
    /// Neither the request nor a policy says what the limit is; nothing consumed.
    NoLimit,
    /// No state could ever grant this; says why; nothing consumed.
    Never(String),
    /// The id was used for another request; nothing consumed.
    RequestIdReused,
    /// A new key, and no room for one; nothing consumed.
    TooManyKeys {
        /// When the first key may leave.
        retry_after: Span,
    },
    /// A new request id, and no room to remember one; nothing consumed.
    TooManyRequestIds {
        /// When the first id is forgotten.
        retry_after: Span,
    },
}

/// A permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The fencing number: strictly increasing over the whole cluster in the order of grants.
    pub permit: u64,
    /// The first instant the worker may start.
    pub slot: Time,
    /// The instant of the decision.
    pub stamp: Time,
    /// Permits of the key that lie in the future, this one included if it does.
    pub reserved: u64,
    /// How long after the first send the permit stays usable; `None` when it does not expire.
    pub start_before: Option<Span>,
    /// An answer after this instant comes too late; `None` when none does.
    pub expires_at: Option<Time>,
    /// Remembered from an earlier request with the same id; nothing was consumed this time.
    pub replayed: bool,
}

/// One key as it stands, without consuming anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// The limit that the last grant was decided by.
    pub limit: Limit,
    /// The first instant the next permit may take.
    pub next: Time,
    /// Permits that lie in the future.
    pub reserved: u64,
    /// The fencing number of the last grant.
    pub permit: u64,
}
