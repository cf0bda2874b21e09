//! How long the way to the cluster and back takes, and so how far ahead a slot has to lie for the answer to be here first.
//!
//! A lead that is too short only costs a late start or a dead permit, one that is too long only a later slot: an estimate will
//! do.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest lead that is asked for on the strength of measurements. Past it the cluster is in trouble, not far away.
const LEAD_MAX: Duration = Duration::from_secs(1);

/// A running estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Estimate {
    mean: Duration,
    /// How far from the mean the measurements lie.
    spread: Duration,
}

impl Estimate {
    const fn first(took: Duration) -> Self {
        Self { mean: took, spread: Duration::ZERO }
    }

    /// An eighth of the news goes into the mean, a quarter into the spread.
    fn after(self, took: Duration) -> Self {
        let apart = self.mean.abs_diff(took);
        Self { mean: (self.mean * 7 + took) / 8, spread: (self.spread * 3 + apart) / 4 }
    }

    fn lead(self) -> Duration {
        (self.mean + self.spread * 2).min(LEAD_MAX)
    }
}

/// What the round trips of a client were.
#[derive(Debug, Default)]
pub(super) struct RoundTrip(Mutex<Option<Estimate>>);

impl RoundTrip {
    /// One more, of a question that was answered at once.
    pub(super) fn note(&self, took: Duration) {
        let mut estimate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *estimate = Some(estimate.map_or(Estimate::first(took), |estimate| estimate.after(took)));
    }

    /// How far ahead a slot has to lie; `None` before the first measurement.
    pub(super) fn lead(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(Estimate::lead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lead_follows_the_round_trips() {
        let trip = RoundTrip::default();
        assert_eq!(trip.lead(), None);
        let ms = Duration::from_millis;
        trip.note(ms(80));
        assert_eq!(trip.lead(), Some(ms(80)));
        for _ in 0..50 {
            trip.note(ms(10));
        }
        let near = trip.lead().unwrap();
        assert!(near >= ms(10) && near < ms(12), "{near:?}");
        trip.note(ms(90));
        assert!(trip.lead().unwrap() > ms(50), "one that is far off widens the spread at once");
        for _ in 0..50 {
            trip.note(ms(60_000));
        }
        assert_eq!(trip.lead(), Some(LEAD_MAX));
    }
}
