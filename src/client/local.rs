//! The pace of this process's own, while the cluster is out of reach, for those who asked for that.
//!
//! Nobody else knows of what starts here, so it is no permit.
//!
//! Invariants
//! - Two starts of a key are a spacing apart, and the first comes no sooner than the last grant of the cluster allows.
//! - The first start of an outage lies at a random instant of one spacing: processes that lose the cluster together do not start
//!   together.
//! - A start is taken when it is due and not before, so nothing is left behind by whoever goes away.
//!
//! Pure but for the lock: time is the caller's, since the client began, and so is chance.

use super::backoff::Chance;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys paced at once. Those that have had their rest make room; past that, more are refused.
const KEYS_MAX: usize = 10_000;

/// One pace for each key.
#[derive(Debug, Default)]
pub(super) struct Local(Mutex<HashMap<String, Pace>>);

#[derive(Debug, Clone, Copy)]
struct Pace {
    /// No start before this instant.
    next: Duration,
    /// The outage that this belongs to; none, where a grant of the cluster is all that is known.
    outage: Option<u64>,
}

/// One start, as it is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    pub(super) key: &'a str,
    /// Between this start and the next.
    pub(super) spacing: Duration,
    /// Which outage it is.
    pub(super) outage: u64,
    pub(super) now: Duration,
    pub(super) chance: Chance,
}

impl Local {
    /// The cluster granted something of this key: the next start lies no sooner than at `next`.
    pub(super) fn granted(&self, key: &str, next: Duration, now: Duration) {
        let mut paces = self.lock();
        if has_room(&mut paces, key, now) {
            let next = paces.get(key).map_or(next, |pace| pace.next.max(next));
            paces.insert(key.to_owned(), Pace { next, outage: None });
        }
    }

    /// How long until the key may start next.
    pub(super) fn look(&self, start: &Start<'_>) -> Duration {
        let mut paces = self.lock();
        look(&mut paces, start)
    }

    /// Starts now, or says how long it is too soon for that.
    pub(super) fn take(&self, start: &Start<'_>) -> Result<(), Duration> {
        let mut paces = self.lock();
        let wait = look(&mut paces, start);
        if !wait.is_zero() {
            return Err(wait);
        }
        let next = start.now.saturating_add(start.spacing);
        paces.insert(start.key.to_owned(), Pace { next, outage: Some(start.outage) });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Pace>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn look(paces: &mut HashMap<String, Pace>, start: &Start<'_>) -> Duration {
    if !has_room(paces, start.key, start.now) {
        return start.spacing;
    }
    let known = paces.get(start.key).copied();
    let next = match known {
        Some(pace) if pace.outage == Some(start.outage) => pace.next,
        // The first of this outage.
        _ => {
            let earliest = known.map_or(start.now, |pace| pace.next.max(start.now));
            let next = earliest.saturating_add(start.chance.part(start.spacing));
            paces.insert(start.key.to_owned(), Pace { next, outage: Some(start.outage) });
            next
        }
    };
    next.saturating_sub(start.now)
}

fn has_room(paces: &mut HashMap<String, Pace>, key: &str, now: Duration) -> bool {
    if paces.len() >= KEYS_MAX && !paces.contains_key(key) {
        paces.retain(|_, pace| pace.next > now);
    }
    paces.len() < KEYS_MAX || paces.contains_key(key)
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

    fn start(key: &str, now_ms: u32, chance: u32) -> Start<'_> {
        Start { key, spacing: 100 * MS, outage: 1, now: now_ms * MS, chance: Chance::of(chance) }
    }

    #[test]
    fn starts_are_a_spacing_apart_and_taken_when_they_are_due() {
        let local = Local::default();
        let take = |now| local.take(&start("k", now, 0));
        assert_eq!(take(5), Ok(()));
        assert_eq!((take(5), take(104)), (Err(100 * MS), Err(MS)), "and nothing is taken");
        assert_eq!(take(105), Ok(()));
        assert_eq!((take(1_000), take(1_000)), (Ok(()), Err(100 * MS)), "a rest is not saved up");
        assert_eq!(local.take(&start("other", 1, 0)), Ok(()));
    }

    #[test]
    fn the_first_start_of_an_outage_comes_at_a_random_instant_after_the_last_grant() {
        let local = Local::default();
        assert_eq!(local.look(&start("k", 10, 700)), 70 * MS);
        assert_eq!(local.look(&start("k", 20, 0)), 60 * MS, "drawn once");
        assert_eq!(local.take(&start("k", 80, 0)), Ok(()));
        let second = |now, chance| Start { outage: 2, ..start("k", now, chance) };
        assert_eq!(local.look(&second(500, 1_000)), 100 * MS, "drawn anew in the next one");
        local.granted("g", 400 * MS, 10 * MS);
        assert_eq!(local.look(&start("g", 20, 500)), 430 * MS);
        local.granted("k", 50 * MS, 10 * MS);
        let third = Start { outage: 3, ..start("k", 550, 0) };
        assert_eq!(local.look(&third), 50 * MS, "what started here counts on");
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
            assert_eq!(local.take(&start(&key.to_string(), 1, 0)), Ok(()));
        }
        assert_eq!(local.take(&start("one more", 1, 0)), Err(100 * MS));
        local.granted("one more", 500 * MS, MS);
        assert_eq!(local.take(&start("one more", 200, 0)), Ok(()), "the others have had their rest");
    }
}
