//! The axis on which the permits of spacing and buckets take their time: where it is free.
//!
//! Everything before `next` is taken, but for the holes. A permit that is given back while its slot lies ahead leaves its
//! region free: the newest one moves `next` back, one in the middle leaves a hole. The earliest region that fits is taken
//! first, which is also the earliest slot.
//!
//! Under a start window nobody takes a hole: its region would lie before one that is already promised. Whoever holds that one
//! counts on a clock of its own, while cluster time may stand still before the hole is given away (a failover, a slow clock);
//! the two starts would then come closer by what was lost. In the order of the log regions only move ahead there, and lost
//! time moves them apart.
//!
//! Invariants
//! - Holes are in order, do not touch each other, and end before `next`.
//! - A request looks at the next [`HOLES_TRIED_MAX`] of them, so that many small ones cost it little.
//! - At most [`HOLES_MAX`] of them: past it the shortest one, which fits least, is forgotten.

use super::pace::Pace;
use super::time::{Span, Time};
use crate::limits::{HOLES_MAX, HOLES_TRIED_MAX};
use serde::{Deserialize, Serialize};

/// A part of the axis, its end not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Region {
    pub(super) from: Time,
    pub(super) to: Time,
}

/// A permit that would fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slot: Time,
    pub(super) region: Region,
    /// Which hole; `None` after everything.
    hole: Option<usize>,
}

/// The first place for a permit of `cost` whose slot is not before `from`. On a ramp a hole that is too short may do later, when
/// permits take less; nobody waits for that.
pub(super) fn place(
    next: Time,
    holes: &[Region],
    pace: &Pace,
    (cost, from): (u64, Time),
    began: Option<Time>,
) -> Place {
    let tolerance = pace.tolerance(cost);
    let fit = |free: Time, hole: Option<usize>| {
        let slot = from.max(free.before(tolerance));
        let to = free.max(slot).after(pace.extent(cost, began, slot));
        Place { slot, region: Region { from: free, to }, hole }
    };
    // What ends before the slot could begin fits nothing.
    let holes = usable(holes, pace);
    let first = holes.partition_point(|hole| hole.to <= from);
    let fitting = holes
        .iter()
        .enumerate()
        .skip(first)
        .take(HOLES_TRIED_MAX)
        .find_map(|(index, hole)| Some(fit(hole.from, Some(index))).filter(|place| place.region.to <= hole.to));
    fitting.unwrap_or_else(|| fit(next, None))
}

/// Takes a place. With `leave_gap` what lies before its slot stays free; without, it is taken as well.
pub(super) fn take(next: &mut Time, holes: &mut Vec<Region>, place: Place, leave_gap: bool) -> Region {
    let Region { from, to } = place.region;
    let begins = if leave_gap { from.max(place.slot) } else { from };
    let gap = Region { from, to: begins };
    let rest = if let Some(index) = place.hole {
        Region { from: to, to: holes.remove(index).to }
    } else {
        *next = to;
        Region { from: to, to }
    };
    let at = place.hole.unwrap_or(holes.len());
    for free in [rest, gap] {
        if free.from < free.to {
            holes.insert(at, free);
        }
    }
    bound(holes);
    Region { from: begins, to }
}

/// Gives a region back.
pub(super) fn give_back(next: &mut Time, holes: &mut Vec<Region>, region: Region) {
    let at = holes.partition_point(|hole| hole.from < region.from);
    holes.insert(at, region);
    // Neighbours become one.
    if holes.get(at + 1).is_some_and(|after| after.from <= region.to) {
        let after = holes.remove(at + 1);
        holes[at].to = after.to.max(region.to);
    }
    if at > 0 && holes[at - 1].to >= holes[at].from {
        let merged = holes.remove(at);
        holes[at - 1].to = merged.to.max(holes[at - 1].to);
    }
    if let Some(last) = holes.last().copied().filter(|last| last.to >= *next) {
        *next = last.from;
        holes.pop();
    }
    bound(holes);
}

/// Forgets holes that have passed.
pub(super) fn forget_past(holes: &mut Vec<Region>, now: Time) {
    let past = holes.partition_point(|hole| hole.to <= now);
    holes.drain(..past);
}

/// How many permits of cost 1 would be granted one after the other at `now`, reservations included.
pub(super) fn room(next: Time, holes: &[Region], pace: &Pace, now: Time) -> u64 {
    let unit = pace.unit().0;
    let reach = u64::from(pace.max_reserved).saturating_add(pace.burst.unwrap_or(1));
    let taken = |from: Time| from.since(now).0;
    let whole = Span(unit).times(reach).map_or(u64::MAX, |span| span.0);
    let in_holes = usable(holes, pace).iter().map(|hole| {
        let from = hole.from.max(now);
        let within = hole.to.since(from).0 / unit;
        within.min(whole.saturating_sub(taken(from)) / unit)
    });
    let at_the_end = whole.saturating_sub(taken(next)) / unit;
    in_holes.fold(at_the_end, u64::saturating_add).min(reach)
}

/// How many permits of cost 1 would be granted one after the other at `now` with this very slot.
pub(super) fn room_now(next: Time, holes: &[Region], pace: &Pace, now: Time, began: Option<Time>) -> u64 {
    let (tolerance, extent) = (pace.tolerance(1), pace.extent(1, began, now).0);
    let tail = Region { from: next, to: Time(u64::MAX) };
    let fitting = usable(holes, pace).iter().copied().chain([tail]).map(|free| {
        let from = free.from.max(now);
        let within = free.to.since(from).0 / extent;
        let in_time = tolerance.0.checked_sub(from.since(now).0).map_or(0, |left| left / extent + 1);
        within.min(in_time)
    });
    fitting.fold(0, u64::saturating_add)
}

/// The holes that may be taken at this pace.
fn usable<'a>(holes: &'a [Region], pace: &Pace) -> &'a [Region] {
    if pace.start_window > Span::ZERO { &[] } else { holes }
}

fn bound(holes: &mut Vec<Region>) {
    while holes.len() > HOLES_MAX {
        let length = |hole: &Region| hole.to.since(hole.from);
        // Of several the last: the first ones are needed soonest.
        let shortest = holes.iter().enumerate().rev().min_by_key(|(_, hole)| length(hole)).map(|(index, _)| index);
        let Some(shortest) = shortest else { return };
        holes.remove(shortest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Spacing;

    fn region(from: u64, to: u64) -> Region {
        Region { from: Time(from), to: Time(to) }
    }

    fn pace() -> Pace {
        Spacing::new("1/1ms".parse().unwrap(), Span::ZERO, 10).unwrap().pace()
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn what_is_given_back_becomes_one_with_its_neighbours() {
        let (mut next, mut holes) = (Time(50), Vec::new());
        give_back(&mut next, &mut holes, region(10, 20));
        give_back(&mut next, &mut holes, region(30, 40));
        assert_eq!((next, holes.clone()), (Time(50), vec![region(10, 20), region(30, 40)]));
        give_back(&mut next, &mut holes, region(20, 30));
        assert_eq!(holes, [region(10, 40)]);
        give_back(&mut next, &mut holes, region(40, 50));
        assert_eq!((next, holes.len()), (Time(10), 0), "the newest one takes the holes before it along");
    }

    #[test]
    fn the_earliest_that_fits_is_taken() {
        let mut next = Time(100 * MS);
        let mut holes = vec![region(10 * MS, 10 * MS + 1), region(20 * MS, 22 * MS), region(30 * MS, 31 * MS)];
        let found = place(next, &holes, &pace(), (1, Time(0)), None);
        assert_eq!((found.slot, found.region), (Time(20 * MS), region(20 * MS, 21 * MS)));
        assert_eq!(take(&mut next, &mut holes, found, false), region(20 * MS, 21 * MS));
        assert_eq!(holes[1], region(21 * MS, 22 * MS), "the rest stays");
        let late = place(next, &holes, &pace(), (1, Time(21 * MS + 1)), None);
        assert_eq!(late.slot, Time(30 * MS), "half a place is none");
        assert_eq!(place(next, &holes, &pace(), (2, Time(0)), None).slot, Time(100 * MS));
        assert_eq!(room(next, &holes, &pace(), Time(95 * MS)), 6);
    }

    #[test]
    fn a_gap_is_left_free_or_not() {
        for (leave_gap, holes_after, taken) in
            [(true, vec![region(5 * MS, 8 * MS)], region(8 * MS, 9 * MS)), (false, vec![], region(5 * MS, 9 * MS))]
        {
            let (mut next, mut holes) = (Time(5 * MS), Vec::new());
            let found = place(next, &holes, &pace(), (1, Time(8 * MS)), None);
            assert_eq!(take(&mut next, &mut holes, found, leave_gap), taken);
            assert_eq!((next, &holes), (Time(9 * MS), &holes_after));
            give_back(&mut next, &mut holes, taken);
            assert_eq!((next, holes.len()), (Time(5 * MS), 0), "exactly as before");
        }
    }

    /// P7: "everything has a limit".
    #[test]
    fn holes_are_bounded() {
        let (mut next, mut holes) = (Time(u64::MAX), Vec::new());
        for index in 0..2 * HOLES_MAX as u64 {
            give_back(&mut next, &mut holes, region(10 * index, 10 * index + 1));
        }
        assert_eq!((holes.len(), holes[0].from), (HOLES_MAX, Time(0)), "the first ones stay");
        give_back(&mut next, &mut holes, region(10 * HOLES_MAX as u64, 10 * HOLES_MAX as u64 + 5));
        assert_eq!(holes.len(), HOLES_MAX);
        assert_eq!(holes[HOLES_MAX - 1].from, Time(10 * HOLES_MAX as u64), "a longer one takes a shorter one's place");
        forget_past(&mut holes, Time(10 * HOLES_MAX as u64));
        assert_eq!(holes.len(), 1);
    }

    /// Regions of a limit with a start window only move ahead: a hole before a promised one is no place for a later permit.
    #[test]
    fn with_a_start_window_nobody_takes_a_hole() {
        let holes = vec![region(20 * MS, 26 * MS)];
        for between in [Span(MS), Span::ZERO] {
            let without = Pace { between, ..pace() };
            let windowed = Pace { start_window: Span(MS), ..without };
            assert_eq!(place(Time(60 * MS), &holes, &without, (1, Time(0)), None).slot, Time(20 * MS));
            assert_eq!(place(Time(60 * MS), &holes, &windowed, (1, Time(0)), None).slot, Time(60 * MS));
            assert_eq!(room(Time(60 * MS), &holes, &windowed, Time(0)), room(Time(60 * MS), &[], &windowed, Time(0)));
        }
    }
}
