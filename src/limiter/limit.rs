//! A limit of any kind.

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::decision::Terms;
use super::pace::Pace;
use super::rate::RateError;
use super::spacing::Spacing;
use super::start;
use super::time::{Span, Time};
use super::window::Window;
use crate::limits::COST_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// What a key is limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Limit {
    /// One permit every interval, no burst.
    Spacing(Spacing),
    /// So many at once, then one every interval.
    Bucket(Bucket),
    /// So many in any period.
    Window(Window),
    /// So many in flight.
    Concurrency(Concurrency),
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

/// For logs and people: `bucket 100/s burst 50`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())?;
        match self {
            Self::Spacing(spacing) => write!(f, " {}", spacing.rate()),
            Self::Bucket(bucket) => write!(f, " {} burst {}", bucket.rate(), bucket.burst()),
            Self::Window(window) if window.is_aligned() => write!(f, " {} aligned", window.rate()),
            Self::Window(window) => write!(f, " {} by {}", window.rate(), window.resolution()),
            Self::Concurrency(concurrency) => write!(f, " {} for {}", concurrency.max(), concurrency.lease()),
        }
    }
}

impl Limit {
    /// Why no state could grant this request, if that is so.
    pub fn never(&self, cost: u64, terms: &Terms) -> Option<String> {
        if cost == 0 || cost > COST_MAX {
            return Some(format!("cost {cost} lies outside 1 to {COST_MAX}"));
        }
        let never = match self {
            Self::Spacing(spacing) => spacing.pace().never(cost, terms.lead),
            Self::Bucket(bucket) => bucket.pace().never(cost, terms.lead),
            Self::Window(window) => window.never(cost),
            Self::Concurrency(concurrency) => concurrency.never(cost),
        };
        let longest = if terms.free_now_only { Some(Span::ZERO) } else { terms.max_wait };
        never.or_else(|| {
            longest
                .filter(|longest| terms.lead > *longest)
                .map(|_| format!("a lead of {} is longer than the longest wait asked for", terms.lead))
        })
    }

    /// How long after the first send a permit stays usable, rounded down; `None` when it does not expire.
    pub fn start_before(&self, slot: Time, stamp: Time) -> Option<Span> {
        let (window, interval) = self.usable()?;
        Some(start::before(window, interval, slot.since(stamp)))
    }

    /// The instant after which an answer with this slot is too late to be used; `None` when it never is.
    pub fn expires_at(&self, slot: Time) -> Option<Time> {
        self.usable().map(|(window, _)| slot.after(window))
    }

    /// How long after it sent a renewal the holder of a lease that ends in `lease` has to stop, rounded down.
    pub fn lease_before(lease: Span) -> Span {
        start::before(lease, Span::ZERO, Span::ZERO)
    }

    /// How long a permit may be used from its slot on, and what keeps two of them apart; `None` when for ever.
    fn usable(&self) -> Option<(Span, Span)> {
        match self {
            Self::Concurrency(concurrency) => Some((concurrency.lease(), Span::ZERO)),
            Self::Window(_) => None,
            Self::Spacing(_) | Self::Bucket(_) => {
                self.pace().map(|pace| (pace.start_window, pace.interval())).filter(|(window, _)| *window > Span::ZERO)
            }
        }
    }

    pub(super) const fn pace(&self) -> Option<Pace> {
        match self {
            Self::Spacing(spacing) => Some(spacing.pace()),
            Self::Bucket(bucket) => Some(bucket.pace()),
            Self::Window(_) | Self::Concurrency(_) => None,
        }
    }

    /// Whether a register under this limit is the same one under `other`.
    pub fn reads_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Spacing(this), Self::Spacing(other)) => this.ramp() == other.ramp(),
            _ => self == other,
        }
    }

    /// The word on the wire.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Spacing(_) => "spacing",
            Self::Bucket(_) => "bucket",
            Self::Window(_) => "window",
            Self::Concurrency(_) => "concurrency",
        }
    }
}
