//! What goes on while the cluster is out of reach, for those who asked for that: a pace of this process's own.
//!
//! Nobody else knows of what is granted here, so it is no permit. Pure but for the lock: time is the caller's, since the client
//! began.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Keys paced at once. Those that have had their rest make room; past that, more are refused.
const KEYS_MAX: usize = 10_000;
/// After an outage was met, how long nobody asks the cluster: whoever may go on without it should not wait for it every time.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(1);

/// One pace for each key: the instant from which on the next may start.
#[derive(Debug, Default)]
pub(super) struct Local {
    next: Mutex<HashMap<String, Duration>>,
    /// Until when the cluster is not asked.
    outage_until: Mutex<Option<Duration>>,
}

/// The next instant to start at is too far ahead: this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooFar(pub(super) Duration);

impl Local {
    /// A start for this key, no farther ahead than `longest`: how long until then.
    pub(super) fn take(
        &self,
        key: &str,
        spacing: Duration,
        now: Duration,
        longest: Option<Duration>,
    ) -> Result<Duration, TooFar> {
        let mut keys = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= KEYS_MAX && !keys.contains_key(key) {
            keys.retain(|_, next| *next > now);
            if keys.len() >= KEYS_MAX {
                return Err(TooFar(spacing));
            }
        }
        let start = keys.get(key).copied().unwrap_or(now).max(now);
        let wait = start.saturating_sub(now);
        if longest.is_some_and(|longest| wait > longest) {
            return Err(TooFar(wait));
        }
        keys.insert(key.to_owned(), start.saturating_add(spacing));
        Ok(wait)
    }

    /// The cluster is out of reach as of now.
    pub(super) fn met_outage(&self, now: Duration) {
        *self.outage_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.saturating_add(PROBE_EVERY));
    }

    /// Whether it was just now.
    pub(super) fn in_outage(&self, now: Duration) -> bool {
        self.outage_until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until)
    }
}

/// The time between two starts at a part of the rate, for so many permits' worth; rounded up.
pub(super) fn spacing(interval: Duration, cost: u64, fraction: f64) -> Duration {
    let whole = interval.saturating_mul(u32::try_from(cost).unwrap_or(u32::MAX));
    Duration::try_from_secs_f64(whole.as_secs_f64() / fraction)
        .map_or(Duration::MAX, |spacing| spacing.saturating_add(Duration::from_nanos(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn starts_are_a_spacing_apart() {
        let local = Local::default();
        let take = |now: u32, longest: Option<Duration>| local.take("k", 100 * MS, now * MS, longest);
        assert_eq!(take(5, None), Ok(Duration::ZERO));
        assert_eq!(take(5, None), Ok(100 * MS));
        assert_eq!(take(5, Some(199 * MS)), Err(TooFar(200 * MS)), "and nothing is taken");
        assert_eq!(take(5, Some(200 * MS)), Ok(200 * MS));
        assert_eq!(take(1_000, Some(Duration::ZERO)), Ok(Duration::ZERO), "a rest is not saved up");
        assert_eq!(take(1_000, Some(Duration::ZERO)), Err(TooFar(100 * MS)));
        assert_eq!(local.take("other", 100 * MS, MS, Some(Duration::ZERO)), Ok(Duration::ZERO));
    }

    #[test]
    fn a_part_of_the_rate_is_a_longer_interval() {
        let apart = spacing(100 * MS, 1, 0.25);
        assert!(apart >= 400 * MS && apart < 401 * MS, "{apart:?}");
        assert!(spacing(100 * MS, 3, 1.0) >= 300 * MS);
        assert_eq!(spacing(Duration::MAX, 1, f64::MIN_POSITIVE), Duration::MAX);
    }

    #[test]
    fn keys_are_bounded() {
        let local = Local::default();
        for key in 0..KEYS_MAX {
            assert_eq!(local.take(&key.to_string(), 100 * MS, MS, None), Ok(Duration::ZERO));
        }
        assert_eq!(local.take("one more", 100 * MS, MS, None), Err(TooFar(100 * MS)));
        assert_eq!(
            local.take("one more", 100 * MS, 200 * MS, None),
            Ok(Duration::ZERO),
            "the others have had their rest"
        );
    }

    #[test]
    fn an_outage_is_remembered_for_a_moment() {
        let local = Local::default();
        assert!(!local.in_outage(MS));
        local.met_outage(MS);
        assert!(local.in_outage(999 * MS) && !local.in_outage(1_001 * MS));
    }
}
