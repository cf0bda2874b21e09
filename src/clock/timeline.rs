//! Cluster time as one leader reads it, from its election to the next one.
//!
//! Invariants
//! - Time never goes back while the clocks do not, and never below its base.
//! - From one stamp to the next it runs no faster than the **slower** of the two clocks.
//!
//! The second one is why a stamp moves the base. With one base for a whole reign, a monotonic clock that was slewed down for a
//! minute and then up again would be the smaller difference all along, and time would run 8.3 % fast while it makes up
//! the minute: the total would be right, the pace between two stamps would not, and the pace is what permits live by.
//!
//! Not here: which entry is the last one, and which leader id the timeline belongs to. Both are the log's business.

use super::reading::Reading;
use crate::limiter::{Span, Time};

/// Where a leader's time begins and which reading belongs to it. Made anew at **every** election, also when the same node
/// wins again: in between, another leader may have led from a later base in log order that stood behind this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    base: Time,
    obs: Reading,
}

impl Timeline {
    /// Starts a timeline at the last stamped entry of the node's own log, or the snapshot's last stamp, with what this
    /// node read off its clocks when it appended the one or installed the other. `None`: nothing was ever stamped.
    ///
    /// Invariant: `last` is the last one in **log order**, without the entries that apply rejects as stale. A later
    /// observation of an earlier entry, or a larger stamp that stood in a truncated one, must not be passed.
    pub fn rebase(last: Option<(Time, Reading)>, now: Reading) -> Self {
        match last {
            Some((base, obs)) if obs.precedes(&now) => Self { base, obs },
            // An observation off other clocks, or from their future: what has passed since is unknown, so nothing has.
            Some((base, _)) => Self { base, obs: now },
            None => Self { base: Time::ZERO, obs: now },
        }
    }

    /// Reads the time for a log entry, and continues from there.
    ///
    /// For the proposer alone, who gathers what goes into the entry **before** it reads the clocks: a request that joined
    /// later would be older than its stamp. Whoever answers for the entry reads this timeline, not an older copy of it.
    pub fn stamp(&mut self, now: Reading) -> Time {
        let stamp = self.at(now);
        // A clock that went back has not covered the same ground twice when it is where it was again.
        if self.obs.precedes(&now) {
            *self = Self { base: stamp, obs: now };
        }
        stamp
    }

    /// Cluster time: the base plus what has passed since, by the slower clock.
    ///
    /// The minimum, because chrony may slew the one and a bad time stamp counter may drive the other. Any lower bound of
    /// it is safe, so a reading off other clocks gives the base.
    pub fn at(&self, now: Reading) -> Time {
        if now.clock_id != self.obs.clock_id {
            return self.base;
        }
        let mono_ns = now.mono_ns.saturating_sub(self.obs.mono_ns);
        let raw_ns = now.raw_ns.saturating_sub(self.obs.raw_ns);
        self.base.after(Span(mono_ns.min(raw_ns)))
    }

    /// The stamp this timeline continues from: the last one it gave, or the one it was elected with.
    pub const fn base(&self) -> Time {
        self.base
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ClockId, Clocks, ManualClocks};
    use super::*;

    const SEC: u64 = 1_000_000_000;

    #[test]
    fn a_cluster_that_never_stamped_begins_at_zero() {
        let clocks = ManualClocks::new(ClockId(1));
        clocks.advance(Span::from_secs(100));
        let timeline = Timeline::rebase(None, clocks.read());
        assert_eq!(timeline.at(clocks.read()), Time::ZERO);
        clocks.advance(Span::from_secs(2));
        assert_eq!(timeline.at(clocks.read()), Time(2 * SEC));
    }

    #[test]
    fn time_since_the_observation_counts() {
        let clocks = ManualClocks::new(ClockId(1));
        let obs = clocks.read();
        clocks.advance(Span::from_secs(5));
        let timeline = Timeline::rebase(Some((Time(40 * SEC), obs)), clocks.read());
        assert_eq!((timeline.base(), timeline.at(clocks.read())), (Time(40 * SEC), Time(45 * SEC)));
    }

    #[test]
    fn an_observation_off_other_clocks_is_worth_nothing() {
        let clocks = ManualClocks::new(ClockId(1));
        let obs = clocks.read();
        clocks.advance(Span::from_secs(5));
        clocks.set_clock_id(ClockId(2));
        let timeline = Timeline::rebase(Some((Time(40 * SEC), obs)), clocks.read());
        assert_eq!(timeline.at(clocks.read()), Time(40 * SEC));
        clocks.advance(Span::from_secs(1));
        assert_eq!(timeline.at(clocks.read()), Time(41 * SEC));
    }

    #[test]
    fn an_observation_from_the_future_of_either_clock_is_worth_nothing() {
        let now = Reading { mono_ns: 10, raw_ns: 10, clock_id: ClockId(1) };
        for obs in [Reading { mono_ns: 11, ..now }, Reading { raw_ns: 11, ..now }] {
            let later = Reading { mono_ns: 110, raw_ns: 110, ..now };
            assert_eq!(Timeline::rebase(Some((Time(7), obs)), now).at(later), Time(107));
        }
    }

    #[test]
    fn the_slower_clock_decides() {
        let clocks = ManualClocks::new(ClockId(1));
        let timeline = Timeline::rebase(None, clocks.read());
        clocks.set_rate_ppm(1_083_333, 1_000_000);
        clocks.advance(Span::from_secs(12));
        assert_eq!(timeline.at(clocks.read()), Time(12 * SEC));
        clocks.set_rate_ppm(1_000_000, 500_000);
        clocks.advance(Span::from_secs(12));
        assert_eq!(timeline.at(clocks.read()), Time(18 * SEC));
    }

    #[test]
    fn a_slew_that_is_made_up_for_does_not_hurry_the_stamps() {
        let clocks = ManualClocks::new(ClockId(1));
        let mut timeline = Timeline::rebase(None, clocks.read());
        let one_base = timeline;
        clocks.set_rate_ppm(916_667, 1_000_000);
        clocks.advance(Span::from_secs(60));
        let before = (timeline.stamp(clocks.read()), one_base.at(clocks.read()));
        clocks.set_rate_ppm(1_083_333, 1_000_000);
        clocks.advance(Span::from_secs(12));
        let after = (timeline.stamp(clocks.read()), one_base.at(clocks.read()));
        assert_eq!(after.0.since(before.0), Span::from_secs(12));
        assert_eq!(after.1.since(before.1), Span(12_999_996_000), "what the base moves for");
    }

    #[test]
    fn a_clock_that_goes_back_and_forth_is_not_counted_twice() {
        let obs = Reading { mono_ns: 100, raw_ns: 100, clock_id: ClockId(1) };
        let mut timeline = Timeline::rebase(Some((Time(7), obs)), obs);
        assert_eq!(timeline.stamp(Reading { mono_ns: 90, raw_ns: 110, ..obs }), Time(7));
        assert_eq!(timeline.stamp(Reading { mono_ns: 100, raw_ns: 120, ..obs }), Time(7));
        assert_eq!(timeline.stamp(Reading { mono_ns: 105, raw_ns: 130, ..obs }), Time(12));
        assert_eq!(timeline.stamp(Reading { mono_ns: 999, raw_ns: 999, clock_id: ClockId(2) }), Time(12));
    }

    #[test]
    fn a_frozen_node_loses_time_and_never_catches_up() {
        let clocks = ManualClocks::new(ClockId(1));
        let timeline = Timeline::rebase(Some((Time(SEC), clocks.read())), clocks.read());
        clocks.freeze();
        clocks.advance(Span::from_secs(8));
        assert_eq!(timeline.at(clocks.read()), Time(SEC));
        clocks.thaw();
        clocks.advance(Span::from_secs(1));
        assert_eq!(timeline.at(clocks.read()), Time(2 * SEC));
    }

    #[test]
    fn a_clock_that_goes_back_or_changes_gives_the_base() {
        let obs = Reading { mono_ns: 10, raw_ns: 10, clock_id: ClockId(1) };
        let timeline = Timeline::rebase(Some((Time(7), obs)), obs);
        assert_eq!(timeline.at(Reading { mono_ns: 9, raw_ns: 20, ..obs }), Time(7));
        assert_eq!(timeline.at(Reading { mono_ns: 99, raw_ns: 99, clock_id: ClockId(2) }), Time(7));
    }
}
