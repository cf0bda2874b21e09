//! A limit of any kind. Today there is one kind; the others get their variant, their file and their oracle.

use super::decision::{Ask, Decision};
use super::rate::RateError;
use super::spacing::Spacing;
use super::time::{Span, Time};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a key is limited to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Limit {
    /// One permit every interval, no burst.
    Spacing(Spacing),
}

/// Why a limit is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The text of a rate or duration.
    #[error("{member}: {error}")]
    Text {
        /// The member of the limit it stands in.
        member: &'static str,
        /// What is wrong with it.
        error: RateError,
    },
    /// Well formed, but it can never do what it says.
    #[error("{0}")]
    Absurd(String),
}

impl LimitError {
    /// Whether the text could not be read at all, as opposed to read and refused.
    pub const fn is_syntax(&self) -> bool {
        matches!(self, Self::Text { error: RateError::Syntax { .. } | RateError::TooLong(_), .. })
    }
}

impl Limit {
    /// Decides one request against the register `next`. Pure: applying the decision is the caller's.
    pub fn decide(&self, next: Time, now: Time, ask: &Ask) -> Decision {
        match self {
            Self::Spacing(spacing) => spacing.decide(next, now, ask),
        }
    }

    /// Why no state of the register could grant this request, if that is so.
    pub fn never(&self, ask: &Ask) -> Option<String> {
        match self {
            Self::Spacing(spacing) => spacing.never(ask),
        }
    }

    /// Permits that lie in the future when the last one lies at `slot`.
    pub fn outstanding(&self, slot: Time, now: Time) -> u64 {
        match self {
            Self::Spacing(spacing) => spacing.outstanding(slot, now),
        }
    }

    /// How long after the first send a permit stays usable; `None` when it does not expire.
    pub fn start_before(&self, slot: Time, stamp: Time) -> Option<Span> {
        match self {
            Self::Spacing(spacing) => spacing.start_before(slot, stamp),
        }
    }

    /// The instant after which an answer with this slot is too late to be used; `None` when it never is.
    pub fn expires_at(&self, slot: Time) -> Option<Time> {
        match self {
            Self::Spacing(spacing) => spacing.expires_at(slot),
        }
    }
}
