//! What comes out of applying a batch.

use super::policies::Rule;
use crate::limiter::{Denial, Limit, Span, Standing, Time};
use crate::limits::DRIFT_PPM;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

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

/// The result of one command. `by` is the place of the key in the request that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// A permit, new or remembered.
    Granted(Grant),
    /// Over the limit; nothing consumed.
    Denied {
        /// Which key refused.
        by: usize,
        /// Why, and for how long.
        denial: Denial,
        /// The stored rule that refused, if it was one.
        rule: Option<Arc<Rule>>,
    },
    /// Neither the request nor a policy says what the limit is; nothing consumed.
    NoLimit {
        /// Of which key.
        by: usize,
    },
    /// No state could ever grant this; nothing consumed.
    Never {
        /// Which key refuses.
        by: usize,
        /// For a person.
        why: String,
    },
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
    /// Not tried, or taken back, because another request of the same command was not granted; nothing consumed.
    Skipped,
    /// One for each request of the command.
    Several(Vec<Self>),
    /// Whether the permit was given back; if not, its slot has come, its lease has ended, or it was given back before.
    Released(bool),
    /// The lease ends later now.
    Renewed {
        /// So much later than now, in cluster time.
        lease: Span,
        /// The holder stops this long after it sent the renewal, unless it renews again; rounded down.
        stop_before: Span,
    },
    /// There is no such permit, or no such lease any more.
    NoPermit,
    /// The permits that went back, key by key; `None` where it was too late.
    Withdrawn(Vec<Option<u64>>),
    /// Whether there was anything to forget.
    Reset(bool),
    /// The rule is stored under this revision.
    PolicyPut {
        /// Unchanged if the same rule was stored before.
        revision: u64,
        /// Whether anything changed.
        changed: bool,
    },
    /// The rule is gone; the revision of that change.
    PolicyDeleted {
        /// Of the change.
        revision: u64,
    },
    /// There is no such rule.
    NoPolicy,
    /// The rule is not as the condition wants it.
    OtherRevision {
        /// What it is; `None` if there is none.
        found: Option<u64>,
    },
    /// Another rule has the same pattern.
    PolicyConflict {
        /// Its name.
        with: Arc<str>,
    },
    /// No room for another rule.
    TooManyPolicies,
}

/// What a granted request got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The first instant the worker may start.
    pub slot: Time,
    /// The instant of the decision.
    pub stamp: Time,
    /// How long after the first send the permit stays usable; `None` when it does not expire.
    pub start_before: Option<Span>,
    /// An answer after this instant comes too late; `None` when none does.
    pub expires_at: Option<Time>,
    /// Remembered from an earlier request with the same id; nothing was consumed this time.
    pub replayed: bool,
    /// Of the first key.
    pub first: Permit,
    /// Of the others, in the order of the request.
    pub more: Vec<Permit>,
}

impl Grant {
    /// The request had been here for `waited` before it was decided: its deadline counts from when it was first sent, which was
    /// before that. What the clock that measured it may have run fast is not counted.
    pub fn had_waited(&mut self, waited: Span) {
        if !self.replayed {
            let fast = Span(
                (u128::from(waited.0) * 2 * u128::from(DRIFT_PPM)).div_ceil(1_000_000).try_into().unwrap_or(u64::MAX),
            );
            self.start_before = self.start_before.map(|before| before.plus(waited.minus(fast)));
        }
    }

    /// Of all keys.
    pub fn permits(&self) -> impl Iterator<Item = &Permit> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

/// One permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permit {
    /// The fencing number: strictly increasing over the whole cluster in the order of grants.
    pub number: u64,
    /// Permits of the key that lie in the future, this one included if it does.
    pub reserved: u64,
    /// How many more would be granted.
    pub remaining: u64,
    /// How long until the key is as if none had been.
    pub reset_after: Span,
    /// The stored rule it was granted by, if it was one.
    pub rule: Option<Arc<Rule>>,
}

impl Permit {
    /// A permit of a key that stands so with it.
    pub(super) fn new(number: u64, standing: Standing, rule: Option<Arc<Rule>>) -> Self {
        let Standing { reserved, remaining, reset_after, .. } = standing;
        Self { number, reserved, remaining, reset_after, rule }
    }
}

/// One key as it stands, without consuming anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    /// The limit in force: a stored rule's, or that of the last grant.
    pub limit: Limit,
    /// The stored rule, if it is one.
    pub rule: Option<Arc<Rule>>,
    /// What a request would meet.
    pub standing: Standing,
    /// The fencing number of the last grant; zero if there was none.
    pub permit: u64,
}
