//! How long something took and how long it may still take: for metrics and timeouts, never for decisions.
//!
//! The only other place that reads a clock. What it reads ends in a log line, a histogram or a `sleep`; a decision about a
//! permit takes its time from the log entry.

use std::time::Duration;
use tokio::time::Instant;

/// Farther ahead than any timeout. An instant that would overflow is moved here.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// Measures from its start. It follows the timers of tokio, also where a test has paused them.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// An instant by which something has to be done. It follows the timers of tokio, also where a test has paused them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The instant this far ahead.
    pub fn after(span: Duration) -> Self {
        let now = now();
        Self(now.checked_add(span).unwrap_or_else(|| now + FAR))
    }

    /// The time that is left; nothing once it has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(now())
    }

    /// The same in whole milliseconds, as it is told to other nodes.
    pub fn remaining_ms(&self) -> u64 {
        u64::try_from(self.remaining().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        now() >= self.0
    }

    /// The instant, for `tokio::time::timeout_at` and `sleep_until`.
    pub const fn instant(&self) -> Instant {
        self.0
    }
}

#[expect(clippy::disallowed_methods, reason = "the stopwatch is where everybody else is sent to")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopwatch_runs() {
        let watch = Stopwatch::start();
        let first = watch.elapsed();
        assert!(watch.elapsed() >= first);
    }

    #[test]
    fn a_deadline_passes_once_and_stays_passed() {
        let past = Deadline::after(Duration::ZERO);
        assert!(past.passed());
        assert_eq!(past.remaining(), Duration::ZERO);
        let ahead = Deadline::after(Duration::from_secs(3_600));
        assert!(!ahead.passed() && ahead > past);
        assert!(ahead.remaining() > Duration::from_secs(3_500));
        assert!(ahead.instant() > past.instant());
    }

    #[test]
    fn a_deadline_past_the_end_of_time_is_merely_far_away() {
        assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(86_400 * 365));
    }
}
