//! Latencies: all of them, at three digits, and what each second brought.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// The longest that is told apart: a minute.
const HIGHEST_US: u64 = 60_000_000;

/// What one second brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Second {
    /// Decisions.
    pub decisions: u64,
    /// Answers that granted nothing, and errors.
    pub not_granted: u64,
    /// Longest latency, in milliseconds.
    pub max_ms: f64,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of them are no longer.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// 999 of a thousand.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Everything one thread has seen.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    latencies: Histogram<u64>,
    pub(super) granted: u64,
    pub(super) denied: u64,
    pub(super) failed: u64,
    pub(super) seconds: Vec<Second>,
}

impl Tally {
    pub(super) fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, HIGHEST_US, 3).expect("bounds that the type allows");
        Self { latencies, granted: 0, denied: 0, failed: 0, seconds: Vec::new() }
    }

    /// One answer: when it came, counted from the beginning, and how long it took.
    pub(super) fn record(&mut self, at: Duration, latency: Duration, answer: super::dialect::Answer) {
        use super::dialect::Answer;
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).clamp(1, HIGHEST_US);
        self.latencies.saturating_record(us);
        let second = usize::try_from(at.as_secs()).unwrap_or(usize::MAX);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Second::default());
        }
        let second = &mut self.seconds[second];
        second.max_ms = second.max_ms.max(millis(us));
        match answer {
            Answer::Granted(count) => {
                self.granted += count;
                second.decisions += count;
            }
            Answer::Denied(count) => {
                self.denied += count;
                second.decisions += count;
                second.not_granted += count;
            }
            Answer::Failed => {
                self.failed += 1;
                second.not_granted += 1;
            }
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.latencies += &other.latencies;
        self.granted += other.granted;
        self.denied += other.denied;
        self.failed += other.failed;
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), Second::default());
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            mine.decisions += theirs.decisions;
            mine.not_granted += theirs.not_granted;
            mine.max_ms = mine.max_ms.max(theirs.max_ms);
        }
    }

    pub(super) fn quantiles(&self) -> Quantiles {
        let at = |quantile| millis(self.latencies.value_at_quantile(quantile));
        Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: millis(self.latencies.max()) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a minute in microseconds is far below 2^52")]
fn millis(us: u64) -> f64 {
    us as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::super::dialect::Answer;
    use super::*;

    #[test]
    fn threads_add_up() {
        let (mut one, mut other) = (Tally::new(), Tally::new());
        for ms in 1..=100 {
            one.record(Duration::from_millis(ms), Duration::from_millis(ms), Answer::Granted(1));
        }
        other.record(Duration::from_millis(1_500), Duration::from_secs(100), Answer::Failed);
        other.record(Duration::from_millis(1_500), Duration::ZERO, Answer::Denied(5));
        one.add(&other);
        assert_eq!((one.granted, one.denied, one.failed), (100, 5, 1));
        assert_eq!(one.seconds.len(), 2);
        assert_eq!((one.seconds[0].decisions, one.seconds[1].decisions, one.seconds[1].not_granted), (100, 5, 6));
        let quantiles = one.quantiles();
        assert!((quantiles.p50 - 50.0).abs() < 1.0, "{quantiles:?}");
        assert!((quantiles.max - 60_000.0).abs() < 60.0, "a minute is the longest: {quantiles:?}");
    }
}
