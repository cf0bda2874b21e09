//! The state of one key under a limit of any kind: what it may still grant, and what may still be given back.
//!
//! A register that has nothing to remember equals a fresh one, so its key may leave memory ([`Register::idle_at`]). Most
//! registers are a single instant; what else there may be lies in a box of its own.
//!
//! Invariant: what is empty is absent, so that equal registers are equal bytes.

use super::book::{Book, Booking, Held};
use super::cells::Cells;
use super::chain::{self, Region};
use super::decision::{Denial, Reason, Terms};
use super::leases::{Lease, Leases};
use super::limit::Limit;
use super::pace::Pace;
use super::time::{Span, Time};
use super::window::Window;
use crate::limits::AHEAD_MAX;
use serde::{Deserialize, Serialize};

/// The state of one key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Register {
    /// The first instant on the axis of spacing and buckets after which nothing is taken.
    next: Time,
    details: Option<Box<Details>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Details {
    holes: Vec<Region>,
    book: Book,
    cells: Cells,
    leases: Leases,
    /// When a ramp began: the slot of its first permit.
    began: Option<Time>,
    /// What a permit took on the axis before the key came under a limit on what is in flight.
    before_leases: Option<Span>,
}

/// A permit to be entered into a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its number.
    pub permit: u64,
    /// Its slot: one that [`Register::earliest`] gave for this very register, limit and cost.
    pub slot: Time,
    /// What it costs.
    pub cost: u64,
    /// The request that gets it.
    pub request: Option<u128>,
}

/// One key as it stands, without consuming anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The slot that a request for one permit would get; the end of the first lease where none is to be had before.
    pub next: Time,
    /// Permits that lie in the future.
    pub reserved: u64,
    /// How many requests for one permit would be granted one after the other now, reservations included.
    pub remaining: u64,
    /// What is in flight; for concurrency.
    pub in_flight: u64,
    /// How long until a request for one permit is granted; nothing if it would be now.
    pub retry_after: Span,
    /// How long until the register equals a fresh one.
    pub reset_after: Span,
}

impl Register {
    /// The earliest slot from `from` on that `limit` has for a permit of `cost`, whether or not it lies too far ahead. What
    /// is in flight is waited for by nobody: an end can be put off.
    pub fn earliest(&self, limit: &Limit, now: Time, from: Time, cost: u64) -> Result<Time, Denial> {
        match limit {
            Limit::Spacing(_) | Limit::Bucket(_) => {
                let place = |pace: &Pace| chain::place(self.next, self.holes(), pace, (cost, from), self.began());
                Ok(limit.pace().map_or(from, |pace| place(&pace).slot))
            }
            Limit::Window(window) => Ok(self.cells().map_or(from, |cells| cells.earliest(window, from, cost))),
            Limit::Concurrency(concurrency) => {
                let Some(leases) = self.leases() else { return Ok(from) };
                let most = concurrency.max().saturating_sub(cost);
                if leases.in_flight(now) <= most {
                    return Ok(from);
                }
                Err(Denial { reason: Reason::InFlightFull, retry_after: leases.until_at_most(most, now) })
            }
        }
    }

    /// Why this limit refuses a permit at `slot`, the earliest it has, if it does.
    pub(super) fn refuses(&self, limit: &Limit, now: Time, terms: &Terms, slot: Time) -> Option<Denial> {
        let from = now.after(terms.lead);
        let wait = slot.since(now);
        let over_wait = terms.max_wait.map_or(Span::ZERO, |longest| wait.minus(longest));
        let denied = |reason, retry_after| Some(Denial { reason, retry_after });
        let ahead = self.ahead(now);
        if slot > now && ahead >= AHEAD_MAX {
            return denied(Reason::ReservationsFull, self.ahead_freed_after(now).max(over_wait));
        }
        match limit {
            Limit::Spacing(_) | Limit::Bucket(_) if slot > now => {
                if terms.free_now_only {
                    return denied(Reason::NotFreeNow, wait);
                }
                let over_reach = limit.pace().map_or(Span::ZERO, |pace| self.over_reach(&pace, now, from, slot));
                if over_reach > Span::ZERO {
                    return denied(Reason::ReservationsFull, over_reach.max(over_wait));
                }
                if over_wait > Span::ZERO { denied(Reason::WouldWaitTooLong, over_wait) } else { None }
            }
            Limit::Window(window) if slot > from => {
                // A window reserves only for those who say how long they wait, and never more than it holds.
                let longest = if terms.free_now_only { None } else { terms.max_wait };
                if longest.is_none() {
                    return denied(Reason::WindowFull, slot.since(from));
                }
                let freed = ahead.checked_sub(window.count()).and_then(|over| self.book()?.slot_after(now, over));
                let until_freed = freed.map_or(Span::ZERO, |first| first.since(now));
                let refused = over_wait.max(until_freed);
                // Who comes when the slot does needs no reservation.
                if refused > Span::ZERO { denied(Reason::WindowFull, refused.min(slot.since(from))) } else { None }
            }
            _ => None,
        }
    }

    /// How long until fewer than [`AHEAD_MAX`] permits lie ahead.
    pub(super) fn ahead_freed_after(&self, now: Time) -> Span {
        let over = self.ahead(now).checked_sub(AHEAD_MAX);
        let freed = over.and_then(|over| self.book()?.slot_after(now, over));
        freed.map_or(Span::ZERO, |first| first.since(now))
    }

    /// How much too far ahead `slot` lies: nothing if it lies within what may be reserved.
    fn over_reach(&self, pace: &Pace, now: Time, from: Time, slot: Time) -> Span {
        // A bucket that has the tokens reserves nothing by a lead.
        let wait = if pace.burst.is_some() { slot.since(from) } else { slot.since(now) };
        let most = u64::from(pace.max_reserved);
        if pace.ramp.is_none() {
            // Permits that lie ahead of `slot`, this one included, are `ceil(wait / unit)`; the bounds of a limit keep the
            // product within the horizon.
            return wait.minus(Span(pace.unit().0.saturating_mul(most)));
        }
        // On a ramp the places differ in length: count the permits themselves. A hole that is free at a lead from now may be gone
        // when a place frees up; who is told to come then may be told to wait again.
        let ahead = self.ahead(now);
        if wait == Span::ZERO || ahead < most {
            return Span::ZERO;
        }
        let freed = if most == 0 { None } else { self.book().and_then(|book| book.slot_after(now, ahead - most)) };
        // Who comes when the slot does needs no reservation; with a lead a spacing limit always makes one.
        let comes = (pace.burst.is_some() || from == now).then_some(wait);
        let until_freed = freed.map(|first| first.since(now));
        until_freed.into_iter().chain(comes).min().unwrap_or(wait)
    }

    /// Enters a permit.
    pub fn take(&mut self, limit: &Limit, now: Time, lead: Span, entry: &Entry) {
        let Entry { permit, slot, cost, request } = *entry;
        // Nearly every register is a single instant and stays one.
        if self.details.is_none()
            && slot <= now
            && let Some(pace) = limit.pace().filter(|pace| pace.ramp.is_none())
        {
            let place = chain::place(self.next, &[], &pace, (cost, slot), None);
            assert!(place.slot == slot, "an entry has the earliest slot of its register");
            chain::take(&mut self.next, &mut Vec::new(), place, false);
            return;
        }
        let began = self.began();
        let mut details = self.details.take().unwrap_or_default();
        details.forget_past(limit, now);
        match limit {
            Limit::Spacing(_) | Limit::Bucket(_) => {
                if let Some(pace) = limit.pace() {
                    let place = chain::place(self.next, &details.holes, &pace, (cost, slot), began);
                    assert!(place.slot == slot, "an entry has the earliest slot of its register");
                    // Pushed ahead by another limit of the same request, it leaves what lies before it to others. So does a
                    // bucket whatever the reason: tokens that come before a slot ahead are not that permit's.
                    let leave_gap = slot > now.after(lead) || pace.burst.is_some() && slot > now;
                    let region = chain::take(&mut self.next, &mut details.holes, place, leave_gap);
                    if slot > now {
                        details.book.add(Booking { permit, slot, held: Held::Region(region), request });
                    }
                    if pace.ramp.is_some() {
                        details.began = Some(began.map_or(slot, |began| began.min(slot)));
                    }
                }
            }
            Limit::Window(window) => {
                let index = details.cells.add(window, slot, cost);
                if slot > now {
                    details.book.add(Booking { permit, slot, held: Held::Cell { index, cost }, request });
                }
            }
            Limit::Concurrency(concurrency) => {
                details.leases.add(Lease { permit, cost, ends: slot.after(concurrency.lease()), request });
            }
        }
        self.keep(details);
    }

    /// Gives a permit back: one whose slot lies ahead, or a lease that still runs. `None` if it is neither; else the request
    /// it was granted to.
    pub fn release(&mut self, limit: &Limit, now: Time, permit: u64) -> Option<Option<u128>> {
        let mut details = self.details.take()?;
        let released = match details.book.remove(permit, now) {
            Some(Booking { held, request, .. }) => {
                match held {
                    Held::Region(region) => chain::give_back(&mut self.next, &mut details.holes, region),
                    Held::Cell { index, cost } => details.cells.remove(index, cost),
                }
                Some(request)
            }
            None => details.leases.remove(permit, now).map(|lease| lease.request),
        };
        if released.is_some() {
            details.forget_past(limit, now);
            // While it lies ahead, all permits of a ramp do: it begins with the first of those that are left.
            if let Some(began) = details.began.filter(|began| *began > now) {
                details.began = details.book.first_from(began);
            }
        }
        self.keep(details);
        released
    }

    /// Extends a lease that still runs and says when it ends now.
    pub fn renew(&mut self, limit: &Limit, now: Time, permit: u64) -> Option<Time> {
        let details = self.details.as_mut()?;
        let lease = details.leases.get_mut(permit, now)?;
        if let Limit::Concurrency(concurrency) = limit {
            lease.ends = lease.ends.max(now.after(concurrency.lease()));
        }
        Some(lease.ends)
    }

    /// The same past under another limit: what was granted stays, and nothing is granted twice.
    ///
    /// - From spacing to spacing `next` is kept: a permit keeps the distance of the limit it was granted by.
    /// - Between all other kinds of rate what is owed in permits stays owed, at the new rate, up to a whole burst or window; and
    ///   `next` never moves back.
    /// - Counts of a window are put into the cells of the new one so that they may only count longer; permits ahead where they
    ///   lie.
    /// - Leases run on, and a time under a limit on what is in flight forgets nothing of what was owed before. A ramp begins anew
    ///   unless it is the same one.
    #[must_use]
    pub fn adopt(&self, old: &Limit, new: &Limit, now: Time) -> Self {
        let mut adopted = self.clone();
        let mut details = adopted.details.take().unwrap_or_default();
        details.forget_past(old, now);
        let (old_pace, new_pace) = (old.pace(), new.pace());
        if old_pace.and_then(|pace| pace.ramp) != new_pace.and_then(|pace| pace.ramp) {
            details.began = None;
        }
        // Leases owe nothing to any rate: what was owed before them is.
        let unit = old_pace.map(|pace| pace.unit()).or(details.before_leases.take());
        match (old, new) {
            (Limit::Spacing(_), Limit::Spacing(_)) => {}
            (_, Limit::Concurrency(_)) => details.before_leases = unit,
            (_, Limit::Window(window)) => {
                details.recount(window, now);
                if let Some(unit) = unit {
                    details.count_owed(window, unit, adopted.next, now);
                }
            }
            (_, Limit::Spacing(_) | Limit::Bucket(_)) => {
                let on_the_axis = unit.map_or(0, |unit| adopted.next.since(now).0.div_ceil(unit.0));
                let owed = match old {
                    Limit::Window(window) => details.cells.counted(window, now),
                    _ => on_the_axis.max(details.cells.owed(now)),
                };
                details.cells = Cells::default();
                if let Some(pace) = new_pace {
                    let most = owed.min(pace.burst.unwrap_or(1));
                    adopted.next = adopted.next.max(now.after(Span(pace.unit().0.saturating_mul(most))));
                }
            }
        }
        adopted.keep(details);
        adopted
    }

    /// The instant from which on this equals a fresh register.
    pub fn idle_at(&self, limit: &Limit) -> Time {
        let Some(details) = &self.details else { return self.next };
        // A key that has rested for a whole ramp begins it anew.
        let rest = limit.pace().and_then(|pace| pace.ramp).map_or(Span::ZERO, |ramp| ramp.over);
        let rested = if details.began.is_some() { self.next.after(rest) } else { self.next };
        rested.max(details.cells.idle_at()).max(details.leases.idle_at())
    }

    /// How this stands under `limit` at `now`.
    pub fn standing(&self, limit: &Limit, now: Time) -> Standing {
        let (next, retry_after) = match self.earliest(limit, now, now, 1) {
            Ok(slot) => {
                let refused = self.refuses(limit, now, &Terms::default(), slot);
                (slot, refused.map_or(Span::ZERO, |denial| denial.retry_after))
            }
            Err(denial) => (now.after(denial.retry_after), denial.retry_after),
        };
        let in_flight = self.leases().map_or(0, |leases| leases.in_flight(now));
        let remaining = match limit {
            Limit::Window(window) => {
                window.count().saturating_sub(self.cells().map_or(0, |cells| cells.counted(window, now)))
            }
            Limit::Concurrency(concurrency) => concurrency.max().saturating_sub(in_flight),
            Limit::Spacing(_) | Limit::Bucket(_) => limit.pace().map_or(0, |pace| self.room(&pace, now)),
        };
        Standing {
            next,
            reserved: self.ahead(now),
            remaining,
            in_flight,
            retry_after,
            reset_after: self.idle_at(limit).since(now),
        }
    }

    fn room(&self, pace: &Pace, now: Time) -> u64 {
        if pace.ramp.is_none() {
            return chain::room(self.next, self.holes(), pace, now);
        }
        let free = chain::room_now(self.next, self.holes(), pace, now, self.began());
        u64::from(pace.max_reserved).saturating_sub(self.ahead(now)).saturating_add(free)
    }

    /// Permits that lie after `now`.
    pub fn ahead(&self, now: Time) -> u64 {
        self.book().map_or(0, |book| book.ahead(now))
    }

    fn keep(&mut self, details: Box<Details>) {
        let empty = details.holes.is_empty()
            && details.book.is_empty()
            && details.cells.is_empty()
            && details.leases.is_empty()
            && details.began.is_none()
            && details.before_leases.is_none();
        self.details = (!empty).then_some(details);
    }

    fn holes(&self) -> &[Region] {
        self.details.as_ref().map_or(&[], |details| &details.holes)
    }

    fn book(&self) -> Option<&Book> {
        self.details.as_ref().map(|details| &details.book)
    }

    fn cells(&self) -> Option<&Cells> {
        self.details.as_ref().map(|details| &details.cells)
    }

    fn leases(&self) -> Option<&Leases> {
        self.details.as_ref().map(|details| &details.leases)
    }

    fn began(&self) -> Option<Time> {
        self.details.as_ref().and_then(|details| details.began)
    }
}

impl Details {
    /// Forgets what has passed.
    fn forget_past(&mut self, limit: &Limit, now: Time) {
        chain::forget_past(&mut self.holes, now);
        self.book.forget_past(now);
        self.leases.forget_past(now);
        if let Limit::Window(window) = limit {
            self.cells.forget_past(window, now);
            if self.cells.is_empty() {
                self.cells = Cells::default();
            }
        }
    }

    /// Counts in the cells of another window: permits ahead at their slots, the rest so that it may only count longer.
    fn recount(&mut self, window: &Window, now: Time) {
        for booking in self.book.iter_mut() {
            if let Held::Cell { index, cost } = booking.held {
                self.cells.remove(index, cost);
            }
        }
        self.cells.recount(window, now);
        for booking in self.book.iter_mut() {
            if let Held::Cell { index, cost } = &mut booking.held {
                *index = self.cells.add(window, booking.slot, *cost);
            }
        }
    }

    /// Counts what is owed on the axis in the cells of a window: permits ahead at their slots, the rest now.
    fn count_owed(&mut self, window: &Window, unit: Span, next: Time, now: Time) {
        let mut owed = next.since(now).0.div_ceil(unit.0).min(window.count());
        for booking in self.book.iter_mut() {
            if let Held::Region(region) = booking.held {
                let cost = region.to.since(region.from.max(booking.slot)).0.div_ceil(unit.0).max(1);
                let index = self.cells.add(window, booking.slot, cost);
                booking.held = Held::Cell { index, cost };
                owed = owed.saturating_sub(cost);
            }
        }
        if owed > 0 {
            self.cells.add(window, now, owed);
        }
        self.holes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Bucket, Concurrency, Decision, Part, Ramp, Spacing, decide};

    const SEC: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Time {
        Time(seconds * SEC)
    }

    fn window(aligned: bool, rate: &str, resolution_secs: u64) -> Limit {
        let rate = rate.parse().unwrap();
        let sliding = || Window::sliding(rate, Some(Span::from_secs(resolution_secs))).unwrap();
        Limit::Window(if aligned { Window::aligned(rate) } else { sliding() })
    }

    fn waiting(seconds: u64) -> Terms {
        Terms { max_wait: Some(Span::from_secs(seconds)), ..Terms::default() }
    }

    /// Asks for one permit alone and enters it if it is granted: its slot, or the reason and the wait.
    fn ask(
        register: &mut Register,
        limit: &Limit,
        now: Time,
        (permit, cost): (u64, u64),
        terms: &Terms,
    ) -> Result<Time, (Reason, Span)> {
        match decide(&[Part { register, limit, cost }], now, terms) {
            Decision::Granted { slot } => {
                register.take(limit, now, terms.lead, &Entry { permit, slot, cost, request: Some(permit.into()) });
                Ok(slot)
            }
            Decision::Denied { denial, .. } => Err((denial.reason, denial.retry_after)),
            Decision::Never { why, .. } => panic!("{why}"),
        }
    }

    fn spacing(rate: &str, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
    }

    fn bucket(rate: &str, burst: u64, max_reserved: u32) -> Limit {
        Limit::Bucket(Bucket::new(rate.parse().unwrap(), burst, Span::ZERO, max_reserved).unwrap())
    }

    fn secs(secs: u64) -> Span {
        Span::from_secs(secs)
    }

    #[test]
    fn spacing_is_one_after_the_other() {
        let limit = spacing("1/6s", 2);
        let mut register = Register::default();
        let slots: Vec<_> =
            (1..=3).map(|n| ask(&mut register, &limit, at(10), (n, 1), &Terms::default()).unwrap()).collect();
        assert_eq!(slots, [at(10), at(16), at(22)]);
        let denied = ask(&mut register, &limit, at(10), (4, 1), &Terms::default());
        assert_eq!(denied, Err((Reason::ReservationsFull, secs(6))));
        let standing = register.standing(&limit, at(11));
        assert_eq!((standing.next, standing.reserved, standing.remaining), (at(28), 2, 0));
        assert_eq!((standing.retry_after, standing.reset_after), (secs(5), secs(17)));
    }

    #[test]
    fn a_hole_is_taken_before_the_end() {
        let limit = spacing("1/6s", 5);
        let mut register = Register::default();
        for permit in 1..=4 {
            ask(&mut register, &limit, at(0), (permit, 1), &Terms::default()).unwrap();
        }
        assert_eq!(register.release(&limit, at(1), 2), Some(Some(2)), "with the request it was granted to");
        assert_eq!(register.release(&limit, at(1), 2), None);
        assert_eq!(register.release(&limit, at(1), 1), None, "its slot has come");
        assert_eq!(register.standing(&limit, at(1)).remaining, 3, "6 s, 24 s and 30 s");
        assert_eq!(ask(&mut register, &limit, at(1), (5, 2), &Terms::default()), Ok(at(24)), "too much for the hole");
        assert_eq!(ask(&mut register, &limit, at(1), (6, 1), &Terms::default()), Ok(at(6)));
        assert_eq!(register.release(&limit, at(1), 5), Some(Some(5)));
        assert_eq!(register.idle_at(&limit), at(24), "the newest one moves the end back");
    }

    #[test]
    fn a_bucket_has_a_burst_and_then_a_token_an_interval() {
        let limit = bucket("1/s", 3, 1);
        let mut register = Register::default();
        assert_eq!(ask(&mut register, &limit, at(10), (1, 2), &Terms::default()), Ok(at(10)));
        assert_eq!(register.standing(&limit, at(10)).remaining, 2, "one token and one reservation");
        assert_eq!(ask(&mut register, &limit, at(10), (2, 2), &Terms::default()), Ok(at(11)));
        let denied = ask(&mut register, &limit, at(10), (3, 1), &Terms::default());
        assert_eq!(denied, Err((Reason::ReservationsFull, secs(1))));
        assert_eq!(register.idle_at(&limit), at(14), "full again");
    }

    #[test]
    fn a_window_refuses_and_says_when_the_oldest_leaves() {
        let limit = window(false, "4/20s", 10);
        let mut register = Register::default();
        assert_eq!(ask(&mut register, &limit, at(25), (1, 4), &Terms::default()), Ok(at(25)));
        let denied = ask(&mut register, &limit, at(30), (2, 1), &Terms::default());
        assert_eq!(
            denied,
            Err((Reason::WindowFull, Span(12 * SEC + SEC / 2))),
            "a quarter of its cell has left at 42.5 s"
        );
        assert_eq!(ask(&mut register, &limit, at(30), (2, 1), &waiting(13)), Ok(Time(42 * SEC + SEC / 2)));
        assert_eq!((register.ahead(at(30)), register.standing(&limit, at(45)).remaining), (1, 1));
        assert_eq!(register.idle_at(&limit), at(70), "twenty seconds after the cell of 42.5 s");
    }

    #[test]
    fn leases_end_are_renewed_and_released() {
        let limit = Limit::Concurrency(Concurrency::new(2, secs(10)).unwrap());
        let mut register = Register::default();
        for permit in 1..=2 {
            assert_eq!(ask(&mut register, &limit, at(permit), (permit, 1), &Terms::default()), Ok(at(permit)));
        }
        let denied = ask(&mut register, &limit, at(3), (3, 1), &waiting(100));
        assert_eq!(denied, Err((Reason::InFlightFull, secs(8))), "nobody waits in line for an end that can be put off");
        assert_eq!(register.renew(&limit, at(5), 1), Some(at(15)));
        assert_eq!((register.renew(&limit, at(12), 2), register.renew(&limit, at(12), 9)), (None, None));
        assert_eq!(ask(&mut register, &limit, at(12), (3, 1), &Terms::default()), Ok(at(12)));
        assert_eq!(register.release(&limit, at(13), 1), Some(Some(1)));
        assert_eq!(register.standing(&limit, at(13)).in_flight, 1);
        assert_eq!(register.idle_at(&limit), at(22));
    }

    /// "What was granted stays, and nothing is granted twice."
    #[test]
    fn what_is_owed_stays_owed_under_another_limit() {
        let (quick, slow) = (bucket("10/s", 10, 0), bucket("1/s", 10, 0));
        let mut register = Register::default();
        ask(&mut register, &quick, at(100), (1, 8), &Terms::default()).unwrap();
        let remaining = |limit: &Limit| register.adopt(&quick, limit, at(100)).standing(limit, at(100)).remaining;
        assert_eq!(remaining(&slow), 2, "eight are owed, at the new rate");
        assert_eq!(remaining(&bucket("1/s", 5, 0)), 0, "no more than a whole burst");
        assert_eq!(remaining(&window(true, "20/m", 60)), 12);
        assert_eq!(remaining(&spacing("1/s", 0)), 0);
        let adopted = register.adopt(&quick, &slow, at(100));
        assert_eq!(adopted.idle_at(&slow), at(108));
        let back = adopted.adopt(&slow, &quick, at(100));
        assert_eq!(back.idle_at(&quick), at(108), "`next` never moves back, not even at a rate that would have it so");
    }

    /// "When the same one could be granted if nobody else came": two rules refuse, and the later instant counts.
    #[test]
    fn a_full_window_says_when_both_of_its_rules_would_grant() {
        let limit = window(true, "2/10s", 10);
        let mut register = Register::default();
        for permit in 1..=4 {
            ask(&mut register, &limit, at(0), (permit, 1), &waiting(10)).unwrap();
        }
        assert_eq!(register.ahead(at(0)), 2);
        let denied = ask(&mut register, &limit, at(0), (5, 1), &waiting(15));
        assert_eq!(denied, Err((Reason::WindowFull, Span::from_secs(10))), "in 5 s it is near enough, but no place");
        assert_eq!(ask(&mut register, &limit, at(10), (5, 1), &waiting(15)), Ok(at(20)));
    }

    /// "Permits ahead where they lie": released after the limit has changed, one leaves the cell it is in by now.
    #[test]
    fn a_permit_ahead_moves_to_the_cells_of_another_window() {
        let (coarse, fine) = (window(false, "4/20s", 10), window(false, "4/20s", 1));
        let mut register = Register::default();
        ask(&mut register, &coarse, at(5), (1, 2), &waiting(60)).unwrap();
        ask(&mut register, &coarse, at(5), (2, 2), &waiting(60)).unwrap();
        let slot = ask(&mut register, &coarse, at(5), (3, 4), &waiting(60)).unwrap();
        assert_eq!(slot, at(30));
        let mut adopted = register.adopt(&coarse, &fine, at(6));
        assert_eq!(adopted.earliest(&fine, at(6), at(6), 1), Ok(Time(50 * SEC + SEC / 4)), "when one of four has left");
        assert!(adopted.release(&fine, at(6), 3).is_some());
        assert_eq!(adopted.earliest(&fine, at(6), at(6), 1), Ok(Time(26 * SEC + SEC / 4)), "what came by 6 s is left");
        assert_eq!(adopted.earliest(&fine, at(6), at(27), 4), Ok(at(27)));
    }

    /// "So that they may only count longer": what came in the current cell of the new window counts in it.
    #[test]
    fn what_just_came_counts_in_an_aligned_window() {
        let (sliding, aligned) = (window(false, "4/10s", 5), window(true, "4/7s", 7));
        let mut register = Register::default();
        ask(&mut register, &sliding, at(6), (1, 4), &Terms::default()).unwrap();
        let mut adopted = register.adopt(&sliding, &aligned, at(6));
        let denied = ask(&mut adopted, &aligned, at(6), (2, 1), &Terms::default());
        assert_eq!(denied, Err((Reason::WindowFull, Span::from_secs(1))));
        assert_eq!(ask(&mut adopted, &aligned, at(7), (2, 4), &Terms::default()), Ok(at(7)));
    }

    /// "Nothing is granted twice": not by way of a limit on what is in flight either.
    #[test]
    fn a_time_under_leases_forgets_nothing() {
        let leases = Limit::Concurrency(crate::limiter::Concurrency::new(5, Span::from_secs(1)).unwrap());
        let window = Limit::Window(Window::sliding("5/1h".parse().unwrap(), None).unwrap());
        let bucket = Limit::Bucket(Bucket::new("5/1h".parse().unwrap(), 5, Span::ZERO, 0).unwrap());
        for (used, after) in [(window, bucket), (bucket, window), (window, window), (bucket, bucket)] {
            let mut register = Register::default();
            for permit in 1..=5 {
                ask(&mut register, &used, at(10), (permit, 1), &Terms::default()).unwrap();
            }
            let mut between = register.adopt(&used, &leases, at(20));
            ask(&mut between, &leases, at(20), (6, 1), &Terms::default()).unwrap();
            let mut back = between.adopt(&leases, &after, at(30));
            assert!(ask(&mut back, &after, at(30), (7, 1), &Terms::default()).is_err(), "{used} to {after}");
        }
    }

    fn ramped(rate: &str, burst: Option<u64>, max_reserved: u32, (from, over_secs): (&str, u64)) -> Limit {
        let rate = rate.parse().unwrap();
        let ramp = Ramp { from: from.parse().unwrap(), over: Span::from_secs(over_secs) };
        if let Some(burst) = burst {
            let bucket = Bucket::new(rate, burst, Span::ZERO, max_reserved).unwrap();
            Limit::Bucket(bucket.with_ramp(ramp).unwrap())
        } else {
            let spacing = Spacing::new(rate, Span::ZERO, max_reserved).unwrap();
            Limit::Spacing(spacing.with_ramp(ramp).unwrap())
        }
    }

    fn leading(seconds: u64) -> Terms {
        Terms { lead: Span::from_secs(seconds), ..Terms::default() }
    }

    /// "So many at once": one that comes later by its lead does not take the tokens of those who come now.
    #[test]
    fn a_lead_does_not_empty_a_bucket() {
        let limit = Limit::Bucket(Bucket::new("1/s".parse().unwrap(), 5, Span::ZERO, 0).unwrap());
        let mut register = Register::default();
        assert_eq!(ask(&mut register, &limit, at(10), (1, 1), &leading(30)), Ok(at(40)));
        for permit in 2..7 {
            assert_eq!(ask(&mut register, &limit, at(10), (permit, 1), &Terms::default()), Ok(at(10)));
        }
        assert!(ask(&mut register, &limit, at(10), (7, 1), &Terms::default()).is_err());
        assert_eq!(ask(&mut register, &limit, at(40), (7, 4), &Terms::default()), Ok(at(40)), "five, with that one");
        assert!(ask(&mut register, &limit, at(40), (8, 1), &Terms::default()).is_err());
    }

    /// "Release of a permit whose slot is still ahead gives it back exactly": the beginning of its ramp included.
    #[test]
    fn a_ramp_that_has_not_begun_is_given_back() {
        let limit = ramped("1/s", Some(10), 10, ("1/4s", 60));
        let mut register = Register::default();
        ask(&mut register, &limit, at(0), (1, 1), &leading(30)).unwrap();
        ask(&mut register, &limit, at(0), (2, 1), &leading(20)).unwrap();
        assert_eq!(register.began(), Some(at(20)), "with its first permit, not with the one that was granted first");
        assert!(register.release(&limit, at(0), 2).is_some());
        assert_eq!(register.began(), Some(at(30)));
        assert!(register.release(&limit, at(0), 1).is_some());
        assert_eq!(register, Register::default());
    }

    /// "How many requests for one permit would be granted one after the other now": on a ramp a bucket has some of its burst.
    #[test]
    fn what_remains_on_a_ramp_is_what_is_granted() {
        for (from, over, remaining) in [("1/s", 60, 8), ("1/2s", 60, 5), ("1/100s", 60, 3)] {
            let limit = ramped("1/s", Some(5), 2, (from, over));
            let mut register = Register::default();
            ask(&mut register, &limit, at(10), (1, 1), &Terms::default()).unwrap();
            let left = register.standing(&limit, at(10)).remaining;
            assert_eq!(left + 1, remaining - u64::from(from == "1/s"), "from {from}");
            for permit in 2..2 + left {
                ask(&mut register, &limit, at(10), (permit, 1), &Terms::default()).unwrap();
            }
            assert!(ask(&mut register, &limit, at(10), (9, 1), &Terms::default()).is_err());
        }
    }

    /// "When the same one could be granted if nobody else came": a bucket that has the tokens reserves nothing by a lead.
    #[test]
    fn a_ramped_bucket_is_waited_for_no_longer_than_for_its_tokens() {
        for (max_reserved, lead) in [(1, 0), (0, 0), (0, 1)] {
            let limit = ramped("1/s", Some(1), max_reserved, ("1/s", 60));
            let mut register = Register::default();
            ask(&mut register, &limit, at(10), (1, 1), &leading(lead)).unwrap();
            ask(&mut register, &limit, at(10), (2, 1), &leading(50)).unwrap();
            let denied = ask(&mut register, &limit, at(10), (3, 1), &leading(lead));
            assert_eq!(denied, Err((Reason::ReservationsFull, Span::from_secs(1))), "{max_reserved} with {lead} s");
            assert_eq!(ask(&mut register, &limit, at(11), (3, 1), &leading(lead)), Ok(at(11 + lead)));
        }
    }
}
