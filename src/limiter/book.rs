//! The permits of one key whose slots lie ahead: what can still be given back.
//!
//! Invariant: in the order of their slots, and of their permits where slots are equal.

use super::chain::Region;
use super::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// All permits ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Book(VecDeque<Booking>);

/// One permit ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Booking {
    pub(super) permit: u64,
    pub(super) slot: Time,
    pub(super) held: Held,
    /// The request it was granted to, to be forgotten with it.
    pub(super) request: Option<u128>,
}

/// What a permit takes, to be given back with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Held {
    /// A part of the axis.
    Region(Region),
    /// A part of a cell.
    Cell {
        /// Which one.
        index: u64,
        /// How much of it.
        cost: u64,
    },
}

impl Book {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many lie after `now`.
    pub(super) fn ahead(&self, now: Time) -> u64 {
        (self.0.len() - self.past(now)) as u64
    }

    /// The slot of the permit after `skipped` others that lie after `now`.
    pub(super) fn slot_after(&self, now: Time, skipped: u64) -> Option<Time> {
        let at = self.past(now).checked_add(usize::try_from(skipped).ok()?)?;
        self.0.get(at).map(|booking| booking.slot)
    }

    /// The first slot from `from` on.
    pub(super) fn first_from(&self, from: Time) -> Option<Time> {
        self.0.get(self.0.partition_point(|booking| booking.slot < from)).map(|booking| booking.slot)
    }

    pub(super) fn add(&mut self, booking: Booking) {
        let at = self.0.partition_point(|other| (other.slot, other.permit) < (booking.slot, booking.permit));
        self.0.insert(at, booking);
    }

    /// Takes a permit out if its slot still lies ahead.
    pub(super) fn remove(&mut self, permit: u64, now: Time) -> Option<Booking> {
        let past = self.past(now);
        let at = self.0.iter().skip(past).position(|booking| booking.permit == permit)?;
        self.0.remove(past + at)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Booking> {
        self.0.iter_mut()
    }

    /// Forgets those whose slots have come.
    pub(super) fn forget_past(&mut self, now: Time) {
        while self.0.front().is_some_and(|first| first.slot <= now) {
            self.0.pop_front();
        }
    }

    fn past(&self, now: Time) -> usize {
        self.0.partition_point(|booking| booking.slot <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_leave_when_their_slots_have_come() {
        let mut book = Book::default();
        for (permit, slot) in [(1, 30), (2, 10), (3, 20), (4, 20)] {
            book.add(Booking { permit, slot: Time(slot), held: Held::Cell { index: 0, cost: 1 }, request: None });
        }
        assert_eq!([0, 10, 19, 20, 30].map(|now| book.ahead(Time(now))), [4, 3, 3, 1, 0]);
        assert_eq!(
            [0, 1, 3, 4].map(|skipped| book.slot_after(Time(0), skipped).map(|t| t.0)),
            [Some(10), Some(20), Some(30), None]
        );
        assert!(book.remove(2, Time(10)).is_none(), "its slot has come");
        assert_eq!(book.remove(4, Time(10)).map(|booking| booking.permit), Some(4));
        assert!(book.remove(4, Time(10)).is_none());
        book.forget_past(Time(20));
        assert_eq!(book.ahead(Time(0)), 1);
    }
}
