//! "One every interval, all of us together", without bursts.
//!
//! ```text
//! unit = interval + start_window
//! S    = max(now + lead, next), or earlier where a released permit left a hole that fits
//! S > now and ceil((S - now) / unit) > max_reserved  ->  denied
//! S - now > max_wait                                 ->  denied
//! next = S + cost * unit                             ->  granted at S
//! ```
//! Slots are a whole unit apart so that a worker that starts at the very end of its window and the next one that starts
//! at the very beginning of its own are still an interval apart.

use super::limit::LimitError;
use super::pace::Pace;
use super::ramp::Ramp;
use super::rate::Rate;
use super::time::Span;
use serde::{Deserialize, Serialize};

/// A spacing limit. Its fields are private because together they keep an invariant: see [`Spacing::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Spacing {
    rate: Rate,
    start_window: Span,
    max_reserved: u32,
    ramp: Option<Ramp>,
}

type Parts = (Rate, Span, u32, Option<Ramp>);

impl Spacing {
    /// Checks that the limit can keep its promises.
    ///
    /// Invariant: the farthest reservation lies within the horizon, and a start window, if there is one, stays open
    /// after the allowance for clock drift even for that reservation.
    pub fn new(rate: Rate, start_window: Span, max_reserved: u32) -> Result<Self, LimitError> {
        Self { rate, start_window, max_reserved, ramp: None }.checked()
    }

    /// The same limit, reached slowly.
    pub fn with_ramp(self, ramp: Ramp) -> Result<Self, LimitError> {
        Self { ramp: Some(ramp), ..self }.checked()
    }

    fn checked(self) -> Result<Self, LimitError> {
        self.pace().check().map(|()| self)
    }

    /// The rate as it was written.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How long after its slot a worker may still start; zero when the limit has no window.
    pub const fn start_window(&self) -> Span {
        self.start_window
    }

    /// Most permits that may lie in the future.
    pub const fn max_reserved(&self) -> u32 {
        self.max_reserved
    }

    /// How the rate is reached.
    pub const fn ramp(&self) -> Option<Ramp> {
        self.ramp
    }

    /// The distance of two slots at the full rate.
    pub const fn unit(&self) -> Span {
        self.rate.interval().plus(self.start_window)
    }

    pub(super) const fn pace(&self) -> Pace {
        Pace {
            rate: self.rate,
            between: self.start_window,
            burst: None,
            max_reserved: self.max_reserved,
            start_window: self.start_window,
            ramp: self.ramp,
        }
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<Parts> for Spacing {
    type Error = LimitError;
    fn try_from((rate, start_window, max_reserved, ramp): Parts) -> Result<Self, LimitError> {
        Self { rate, start_window, max_reserved, ramp }.checked()
    }
}

impl From<Spacing> for Parts {
    fn from(spacing: Spacing) -> Self {
        (spacing.rate, spacing.start_window, spacing.max_reserved, spacing.ramp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_RESERVED_MAX;

    #[test]
    fn a_window_that_drift_would_close_is_refused() {
        let rate: Rate = "1/6s".parse().unwrap();
        let error = Spacing::new(rate, Span::from_millis(50), 10).unwrap_err().to_string();
        assert!(error.contains("start_window 50ms is too short") && error.contains("max_reserved (10)"), "{error}");
        assert!(Spacing::new(rate, Span::from_millis(250), 10).is_ok());
        assert!(Spacing::new(rate, Span::from_millis(50), 0).is_ok());
        assert!(Spacing::new("1/366d".parse().unwrap(), Span::ZERO, 100).is_err());
        assert!(Spacing::new(rate, Span::ZERO, MAX_RESERVED_MAX + 1).is_err());
    }

    #[test]
    fn a_ramp_counts_with_its_slowest_interval() {
        let spacing = Spacing::new("1/s".parse().unwrap(), Span::from_millis(250), 10).unwrap();
        let ramp = |from: &str| Ramp { from: from.parse().unwrap(), over: Span::from_secs(60) };
        assert!(spacing.with_ramp(ramp("1/2s")).is_ok());
        let error = spacing.with_ramp(ramp("1/60s")).unwrap_err().to_string();
        assert!(error.contains("too short"), "ten minutes ahead nothing is left of the window: {error}");
        assert!(spacing.with_ramp(ramp("2/s")).is_err());
    }
}
