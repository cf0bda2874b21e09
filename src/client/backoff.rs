//! How long to pause before asking again. Pure: the random part is an argument.
//!
//! Invariants
//! - Never before the time at which the cluster said that asking again makes sense, except for places that may be given back
//!   at any time.
//! - Those who were denied together do not come back together: every pause has a random part.

use crate::api::{Millis, Problem, Reason};
use std::time::Duration;

/// First random part after a denial; it doubles with every further one.
const SPREAD_MIN: Duration = Duration::from_millis(10);
const SPREAD_MAX: Duration = Duration::from_secs(1);
/// A place in flight is given back when its work is done, long before its lease would end: look this often.
const IN_FLIGHT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// A random part between nothing and all, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chance(u32);

impl Chance {
    pub(super) const ALL: u32 = 1_000;

    /// Drawn. A system without random numbers gives the middle: it has said so already where ids were drawn.
    pub(super) fn draw() -> Self {
        Self(getrandom::u32().map_or(Self::ALL / 2, |number| number % (Self::ALL + 1)))
    }

    #[cfg(test)]
    pub(super) const fn of(thousandths: u32) -> Self {
        Self(thousandths)
    }

    pub(super) fn part(self, of: Duration) -> Duration {
        // In this order, because some lengths of time are as long as can be.
        of / Self::ALL * self.0
    }
}

/// The pause after a denial, the `nth` in a row (from 0), or `None` if the patience ends before asking again makes sense. With a
/// slot that lies too far ahead it never does: patience shrinks as fast as the slot comes nearer.
pub(super) fn after_denial(problem: &Problem, nth: u32, left: Option<Duration>, chance: Chance) -> Option<Duration> {
    let said = problem.retry_after_ms.map_or(SPREAD_MIN, Millis::duration);
    let least = if problem.reason == Some(Reason::InFlightFull) { said.min(IN_FLIGHT_PAUSE_MAX) } else { said };
    let hopeless = |left| least >= left || problem.reason == Some(Reason::WouldWaitTooLong);
    if left.is_some_and(hopeless) {
        return None;
    }
    let spread = SPREAD_MIN.saturating_mul(1 << nth.min(10)).min(SPREAD_MAX).min(least / 2 + SPREAD_MIN);
    // Half of what is left stays for asking: who only waits until it is over asks no more.
    let spread = left.map_or(spread, |left| spread.min(left.saturating_sub(least) / 2));
    Some(least + chance.part(spread))
}

/// The pause after a node has said how long: that long, and a little more at random.
pub(super) fn beyond(pause: Duration, chance: Chance) -> Duration {
    pause + chance.part(pause / 4)
}

/// The pause after all nodes have turned a request away: between half of it and the whole.
pub(super) fn around(pause: Duration, chance: Chance) -> Duration {
    pause / 2 + chance.part(pause / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn denial(reason: Reason, retry_after: Duration) -> Problem {
        Problem::denied("k", reason, Millis::up_from(retry_after), "")
    }

    #[test]
    fn nobody_comes_back_before_it_makes_sense() {
        let full = denial(Reason::ReservationsFull, 100 * MS);
        assert_eq!(after_denial(&full, 0, None, Chance::of(0)), Some(100 * MS));
        assert_eq!(after_denial(&full, 0, None, Chance::of(1_000)), Some(110 * MS));
        assert_eq!(after_denial(&full, 2, None, Chance::of(1_000)), Some(140 * MS), "the spread grows");
        assert_eq!(after_denial(&full, 20, None, Chance::of(1_000)), Some(160 * MS), "with the pause, not beyond");
        let long = denial(Reason::ReservationsFull, 60_000 * MS);
        assert_eq!(after_denial(&long, 20, None, Chance::of(1_000)), Some(61_000 * MS));
    }

    #[test]
    fn who_has_no_patience_left_is_told_at_once() {
        let full = denial(Reason::WouldWaitTooLong, 100 * MS);
        assert_eq!(after_denial(&full, 0, Some(100 * MS), Chance::of(0)), None);
        assert_eq!(after_denial(&full, 0, Some(Duration::ZERO), Chance::of(0)), None);
        assert_eq!(after_denial(&full, 0, Some(60_000 * MS), Chance::of(0)), None, "and comes no nearer");
        let full = denial(Reason::ReservationsFull, 100 * MS);
        assert_eq!(after_denial(&full, 0, Some(100 * MS), Chance::of(0)), None);
        let pause = after_denial(&full, 0, Some(102 * MS), Chance::of(1_000));
        assert_eq!(pause, Some(101 * MS), "there is time left to ask");
    }

    #[test]
    fn a_place_in_flight_may_come_free_at_any_time() {
        let full = denial(Reason::InFlightFull, 30_000 * MS);
        assert_eq!(after_denial(&full, 0, Some(1_000 * MS), Chance::of(0)), Some(500 * MS));
    }

    #[test]
    fn a_drawn_chance_is_a_part() {
        for _ in 0..100 {
            let around = around(100 * MS, Chance::draw());
            assert!(around >= 50 * MS && around <= 100 * MS, "{around:?}");
            let beyond = beyond(100 * MS, Chance::draw());
            assert!(beyond >= 100 * MS && beyond <= 125 * MS, "{beyond:?}");
        }
    }
}
