//! The leases of one key.
//!
//! Invariant: in the order of their permits.

use super::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BinaryHeap;

/// All leases that may still run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Leases(Vec<Lease>);

/// One permit in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) permit: u64,
    pub(super) cost: u64,
    /// It has ended at this instant.
    pub(super) ends: Time,
    /// The request it was granted to, to be forgotten with it.
    pub(super) request: Option<u128>,
}

impl Leases {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is in flight at `now`.
    pub(super) fn in_flight(&self, now: Time) -> u64 {
        self.0.iter().filter(|lease| lease.ends > now).map(|lease| lease.cost).sum()
    }

    /// How long until no more than `most` is in flight, if nothing is released or renewed.
    pub(super) fn until_at_most(&self, most: u64, now: Time) -> Span {
        let too_many = self.in_flight(now).saturating_sub(most);
        // The earliest ends that free enough together, the last of them on top: few, where one more is asked for.
        let (mut first, mut freed) = (BinaryHeap::new(), 0);
        for lease in self.0.iter().filter(|lease| lease.ends > now) {
            let last = first.peek().map(|(ends, _)| *ends);
            if freed >= too_many && last.is_none_or(|last| lease.ends >= last) {
                continue;
            }
            first.push((lease.ends, lease.cost));
            freed += lease.cost;
            while let Some((_, cost)) = first.peek().filter(|(_, cost)| freed - cost >= too_many) {
                freed -= cost;
                first.pop();
            }
        }
        first.peek().map_or(Span::ZERO, |(ends, _)| ends.since(now))
    }

    /// Adds the lease of the newest permit.
    pub(super) fn add(&mut self, lease: Lease) {
        self.0.push(lease);
    }

    pub(super) fn get_mut(&mut self, permit: u64, now: Time) -> Option<&mut Lease> {
        let at = self.0.binary_search_by_key(&permit, |lease| lease.permit).ok()?;
        self.0.get_mut(at).filter(|lease| lease.ends > now)
    }

    /// Ends a lease that still runs.
    pub(super) fn remove(&mut self, permit: u64, now: Time) -> Option<Lease> {
        let at = self.0.binary_search_by_key(&permit, |lease| lease.permit).ok()?;
        (self.0[at].ends > now).then(|| self.0.remove(at))
    }

    /// Forgets leases that have ended.
    pub(super) fn forget_past(&mut self, now: Time) {
        self.0.retain(|lease| lease.ends > now);
    }

    /// When the last one has ended.
    pub(super) fn idle_at(&self) -> Time {
        self.0.iter().map(|lease| lease.ends).max().unwrap_or(Time::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_by_release_or_by_time() {
        let mut leases = Leases::default();
        for (permit, cost, ends) in [(1, 1, 30), (2, 3, 10), (5, 1, 20)] {
            leases.add(Lease { permit, cost, ends: Time(ends), request: None });
        }
        assert_eq!([0, 9, 10, 20, 30].map(|at| leases.in_flight(Time(at))), [5, 5, 2, 1, 0]);
        assert_eq!([5, 4, 2, 1, 0].map(|most| leases.until_at_most(most, Time(4)).0), [0, 6, 6, 16, 26]);
        assert_eq!(leases.idle_at(), Time(30));
        let before = leases.clone();
        assert!(leases.remove(2, Time(10)).is_none(), "too late");
        assert_eq!(leases, before, "and so nothing changes");
        assert!(leases.remove(1, Time(10)).is_some() && leases.remove(1, Time(10)).is_none());
        assert!(leases.get_mut(5, Time(19)).is_some() && leases.get_mut(5, Time(20)).is_none());
        leases.forget_past(Time(20));
        assert!(leases.is_empty());
    }
}
