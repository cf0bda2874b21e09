//! "So many at once, then one every interval": a token bucket, kept as one instant.
//!
//! `next` is the instant at which the bucket is full again. A permit takes `cost * interval` of the time up to there, and may
//! start as soon as no more than `burst` intervals are taken: `S = max(now + lead, next + cost * interval - burst * interval)`.
//! Slots that wait for tokens are reservations, none unless `max_reserved` says so.

use super::limit::LimitError;
use super::pace::Pace;
use super::ramp::Ramp;
use super::rate::Rate;
use super::time::Span;
use crate::limits::{BURST_MAX, HORIZON_NS_MAX};
use serde::{Deserialize, Serialize};

/// A bucket. Its fields are private because together they keep an invariant: see [`Bucket::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Bucket {
    rate: Rate,
    burst: u64,
    start_window: Span,
    max_reserved: u32,
    ramp: Option<Ramp>,
}

type Parts = (Rate, u64, Span, u32, Option<Ramp>);

impl Bucket {
    /// Checks that the limit can keep its promises.
    ///
    /// Invariant: a whole burst and the farthest reservation lie within the horizon, and a start window stays open for it.
    pub fn new(rate: Rate, burst: u64, start_window: Span, max_reserved: u32) -> Result<Self, LimitError> {
        Self { rate, burst, start_window, max_reserved, ramp: None }.checked()
    }

    /// The same limit, reached slowly: while the rate is low there is hardly a burst either.
    pub fn with_ramp(self, ramp: Ramp) -> Result<Self, LimitError> {
        Self { ramp: Some(ramp), ..self }.checked()
    }

    fn checked(self) -> Result<Self, LimitError> {
        if self.burst == 0 || self.burst > BURST_MAX {
            return Err(LimitError::Absurd(format!(
                "burst lies between 1 and {BURST_MAX}, this one is {}",
                self.burst
            )));
        }
        let pace = self.pace();
        pace.check()?;
        if pace.unit_max().times(self.burst).is_none_or(|taken| taken.0 > HORIZON_NS_MAX) {
            return Err(LimitError::Absurd(format!(
                "burst {} times {} is more than {}: lower the burst or the interval",
                self.burst,
                pace.unit_max(),
                Span(HORIZON_NS_MAX)
            )));
        }
        Ok(self)
    }

    /// The rate as it was written.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Most permits that may start at once.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// How long after its slot a worker may still start; zero when the limit has no window.
    pub const fn start_window(&self) -> Span {
        self.start_window
    }

    /// Most permits that may wait for tokens.
    pub const fn max_reserved(&self) -> u32 {
        self.max_reserved
    }

    /// How the rate is reached.
    pub const fn ramp(&self) -> Option<Ramp> {
        self.ramp
    }

    pub(super) const fn pace(&self) -> Pace {
        Pace {
            rate: self.rate,
            between: Span::ZERO,
            burst: Some(self.burst),
            max_reserved: self.max_reserved,
            start_window: self.start_window,
            ramp: self.ramp,
        }
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<Parts> for Bucket {
    type Error = LimitError;
    fn try_from((rate, burst, start_window, max_reserved, ramp): Parts) -> Result<Self, LimitError> {
        Self { rate, burst, start_window, max_reserved, ramp }.checked()
    }
}

impl From<Bucket> for Parts {
    fn from(bucket: Bucket) -> Self {
        (bucket.rate, bucket.burst, bucket.start_window, bucket.max_reserved, bucket.ramp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_bounded() {
        let new = |rate: &str, burst, window_ms, max_reserved| {
            Bucket::new(rate.parse().unwrap(), burst, Span::from_millis(window_ms), max_reserved)
                .map_err(|error| error.to_string())
        };
        assert!(new("100/s", 50, 0, 0).is_ok());
        assert!(new("100/s", BURST_MAX, 250, 10).is_ok());
        assert!(new("100/s", 0, 0, 0).unwrap_err().contains("burst lies between"));
        assert!(new("100/s", BURST_MAX + 1, 0, 0).unwrap_err().contains("burst lies between"));
        assert!(new("1/366d", 11, 0, 0).unwrap_err().contains("burst 11 times 366d"));
        assert!(new("1/6s", 5, 1, 10).unwrap_err().contains("too short"));
    }
}
