//! The alarm for the one fault outside the proof: a clock that jumps **forward**, on the leader.
//!
//! Every node compares the stamps that it receives with its own raw clock. As long as the lemma's assumption holds,
//! `C - own clock` rises by drift alone, at most 2r of the time that passed (the leader r fast, this node r slow). Nothing
//! legitimate lifts it: a new leader continues from the last entry, so a failover, a freeze or a restart can only lose time,
//! and the difference falls. Entries that arrive late lower it too, and it recovers when the follower has caught up. So a
//! stamp is held against the *highest* difference of the last window, not against the last one.
//!
//! It is detection, bounded but not instant: the grant that came with the jump is out before anybody can notice. And it
//! cannot tell whose clock is wrong: a node whose own clocks stood still sees the leader rise as far as it slept.
//!
//! Invariants
//! - Pure: no clock, no log line, no metric. One jump is reported once; after that the new level is the measure.
//! - Nothing is reported in the first five seconds on a clock: a node that has just started is reading a backlog.
//!
//! Not here: what is done about it. The caller counts it and may decline to lead.

use super::reading::Reading;
use crate::limiter::{Span, Time};
use crate::limits::DRIFT_PPM;

/// What a rise may exceed the drift by: delivery is not always equally quick.
const SLACK_NS: u64 = 250_000_000;
/// How long a fresh watch only learns.
const LEARN_NS: u64 = 5_000_000_000;
/// How long a level stays the measure. After lost time the watch is sharp again once two of these have gone by.
const WINDOW_NS: u64 = 30_000_000_000;

/// One node's watch over the stamps of whoever leads.
#[derive(Debug, Clone, Default)]
pub struct DriftWatch(Option<Seen>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// The first sight on these clocks.
    since: Reading,
    /// When the current window began.
    window: Reading,
    /// The highest sight of the window before: what new ones are held against. It stays put for a window, so that a slow
    /// rise, too, adds up to something.
    level: Sight,
    /// The highest sight of the current window: the next level.
    peak: Sight,
}

/// A stamp and when this node saw it.
#[derive(Debug, Clone, Copy)]
struct Sight {
    stamp: Time,
    at: Reading,
}

impl Sight {
    /// By how many nanoseconds `C - own clock` rose from here to `later`; negative when it fell.
    ///
    /// The raw clock: nobody slews it, and the leader's time runs no faster than *its* raw clock.
    fn rise_to(&self, later: Self) -> i128 {
        let stamps = i128::from(later.stamp.0) - i128::from(self.stamp.0);
        stamps - i128::from(later.at.raw_ns) + i128::from(self.at.raw_ns)
    }

    /// How much of the rise to `later` neither drift nor delivery explains.
    fn excess_to(&self, later: Self) -> i128 {
        let drift_ns = u128::from(self.at.elapsed_ns(later.at)) * u128::from(2 * DRIFT_PPM) / 1_000_000;
        self.rise_to(later) - i128::try_from(drift_ns).unwrap_or(i128::MAX) - i128::from(SLACK_NS)
    }

    fn higher(self, other: Self) -> Self {
        if self.rise_to(other) > 0 { other } else { self }
    }
}

impl Reading {
    fn elapsed_ns(self, later: Self) -> u64 {
        later.raw_ns.saturating_sub(self.raw_ns)
    }
}

impl Seen {
    const fn first(sight: Sight) -> Self {
        Self { since: sight.at, window: sight.at, level: sight, peak: sight }
    }
}

impl DriftWatch {
    /// A watch that has seen nothing yet.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Takes note of a stamp received from the leader and read against this node's clocks at `now`. Returns how far the
    /// stamp lies beyond anything that drift explains, if it does.
    pub fn observe(&mut self, stamp: Time, now: Reading) -> Option<Span> {
        let sight = Sight { stamp, at: now };
        let Some(seen) = self.0.as_mut().filter(|seen| seen.peak.at.clock_id == now.clock_id) else {
            self.0 = Some(Seen::first(sight));
            return None;
        };
        if seen.since.elapsed_ns(now) < LEARN_NS {
            seen.level = seen.level.higher(sight);
            seen.peak = seen.level;
            return None;
        }
        if seen.window.elapsed_ns(now) >= WINDOW_NS {
            // However long nothing was heard in between, the last window heard is the measure: the first stamps after a
            // silence are a backlog, and catching up with it is no jump.
            seen.window = now;
            seen.level = seen.peak;
            seen.peak = sight;
        }
        seen.peak = seen.peak.higher(sight);
        let excess = seen.level.excess_to(sight);
        if excess <= 0 {
            return None;
        }
        *seen = Seen { since: seen.since, ..Seen::first(sight) };
        Some(Span(u64::try_from(excess).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClockId, Clocks, ManualClocks};
    use super::*;

    const SEC: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// A leader's time and a follower's clocks, both moved by the same real time.
    struct Pair {
        leader: Time,
        own: ManualClocks,
        watch: DriftWatch,
    }

    impl Pair {
        /// Past the learning phase, with nothing reported.
        fn settled() -> Self {
            let leader = Time(1_000 * SEC);
            let mut pair = Self { leader, own: ManualClocks::new(ClockId(1)), watch: DriftWatch::new() };
            assert_eq!(pair.run(10), None);
            pair
        }

        /// Real seconds, a stamp after each; the first alarm in them.
        fn run(&mut self, secs: u64) -> Option<Span> {
            let mut alarm = None;
            for _ in 0..secs {
                self.silence(1);
                let seen = self.stamp();
                alarm = alarm.or(seen);
            }
            alarm
        }

        fn silence(&mut self, secs: u64) {
            self.own.advance(Span::from_secs(secs));
            self.leader = self.leader.after(Span::from_secs(secs));
        }

        fn stamp(&mut self) -> Option<Span> {
            self.watch.observe(self.leader, self.own.read())
        }
    }

    #[test]
    fn equal_clocks_are_quiet() {
        assert_eq!(Pair::settled().run(1_000), None);
    }

    #[test]
    fn drift_within_the_bound_is_quiet_for_ever() {
        let mut pair = Pair::settled();
        // The leader r fast is the same as this node r slow, and both at once are 2r.
        pair.own.set_rate_ppm(MILLION - 2 * DRIFT_PPM, MILLION - 2 * DRIFT_PPM);
        assert_eq!(pair.run(3_600), None);
    }

    #[test]
    fn drift_far_beyond_the_bound_is_reported() {
        let mut pair = Pair::settled();
        pair.own.set_rate_ppm(980_000, 980_000);
        assert!(pair.run(30).is_some());
    }

    #[test]
    fn a_jump_is_reported_at_the_next_stamp_and_only_once() {
        let mut pair = Pair::settled();
        pair.leader = pair.leader.after(Span::from_secs(10));
        // The level may be any of the sights so far, all of the same height: a millisecond of drift for each second.
        let excess = pair.run(1).unwrap();
        assert!(excess.0 <= 10 * SEC - SLACK_NS && excess.0 > 10 * SEC - SLACK_NS - 20 * MS, "{excess}");
        assert_eq!(pair.run(100), None);
        pair.leader = pair.leader.after(Span::from_secs(1));
        assert!(pair.run(1).is_some());
    }

    #[test]
    fn a_jump_within_the_slack_is_quiet_and_just_beyond_it_is_not() {
        let mut pair = Pair::settled();
        pair.leader = pair.leader.after(Span(SLACK_NS));
        assert_eq!(pair.stamp(), None);
        let mut pair = Pair::settled();
        pair.leader = pair.leader.after(Span(SLACK_NS + 20 * MS));
        assert!(pair.stamp().is_some());
    }

    #[test]
    fn lost_time_is_quiet_and_the_watch_gets_sharp_again() {
        let mut pair = Pair::settled();
        pair.leader = pair.leader.before(Span::from_secs(8));
        assert_eq!(pair.run(100), None);
        pair.leader = pair.leader.after(Span::from_secs(1));
        assert!(pair.run(1).is_some(), "one second forward, although seven seconds below the old level");
    }

    #[test]
    fn catching_up_after_a_silence_is_quiet() {
        let mut pair = Pair::settled();
        let mut backlog = Vec::new();
        for _ in 0..300 {
            pair.silence(1);
            backlog.push(pair.leader);
        }
        for stamp in backlog {
            assert_eq!(pair.watch.observe(stamp, pair.own.read()), None);
            pair.own.advance(Span::from_millis(1));
        }
    }

    #[test]
    fn a_fresh_watch_learns_from_a_backlog() {
        let mut watch = DriftWatch::new();
        let own = ManualClocks::new(ClockId(1));
        for second in 0..60 {
            assert_eq!(watch.observe(Time(second * SEC), own.read()), None);
            own.advance(Span::from_millis(50));
        }
    }

    #[test]
    fn another_clock_id_starts_afresh() {
        let mut pair = Pair::settled();
        pair.own.set_clock_id(ClockId(2));
        pair.leader = pair.leader.after(Span::from_secs(10));
        assert_eq!(pair.stamp(), None);
        assert_eq!(pair.run(10), None);
    }

    #[test]
    fn a_follower_that_slept_reports_it_too() {
        let mut pair = Pair::settled();
        pair.own.freeze();
        pair.silence(3);
        pair.own.thaw();
        assert!(pair.stamp().is_some());
    }

    const MILLION: u64 = 1_000_000;
}
