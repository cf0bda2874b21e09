//! Which requests were granted lately, by their id: a retry gets the same permit and consumes nothing.
//!
//! Only grants are remembered. A denial consumed nothing, so asking again under the same id is a fresh question.

use super::outcome::Grant;
use super::shards::Shards;
use crate::limiter::{Span, Time};
use crate::limits::{REQUEST_ID_RETENTION_NS, REQUEST_IDS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What is kept of a granted request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Tells a retry from another request with the same id.
    pub(super) fingerprint: u64,
    /// The permit it got.
    pub(super) permit: u64,
    /// Its slot.
    pub(super) slot: Time,
    /// When it was decided.
    pub(super) stamp: Time,
    /// Its deadline from the first send.
    pub(super) start_before: Option<Span>,
    /// When an answer with it comes too late.
    pub(super) expires_at: Option<Time>,
}

impl Remembered {
    pub(super) const fn new(fingerprint: u64, grant: &Grant) -> Self {
        Self {
            fingerprint,
            permit: grant.permit,
            slot: grant.slot,
            stamp: grant.stamp,
            start_before: grant.start_before,
            expires_at: grant.expires_at,
        }
    }

    /// The same permit once more.
    pub(super) const fn replay(&self, reserved: u64) -> Grant {
        Grant {
            permit: self.permit,
            slot: self.slot,
            stamp: self.stamp,
            reserved,
            start_before: self.start_before,
            expires_at: self.expires_at,
            replayed: true,
        }
    }

    const fn forgotten_at(&self) -> Time {
        self.stamp.after(Span(REQUEST_ID_RETENTION_NS))
    }
}

/// All remembered requests.
#[derive(Debug)]
pub(super) struct Requests {
    by_id: Shards<u128, Remembered>,
    /// In the order of their permits, which is the order of their stamps: the first is forgotten first.
    order: VecDeque<(Time, u128)>,
    most: usize,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self::bounded(REQUEST_IDS_MAX)
    }

    /// Room for so many: a test does not want to remember four million.
    pub(super) fn bounded(most: usize) -> Self {
        Self { by_id: Shards::new(), order: VecDeque::new(), most }
    }

    pub(super) const fn by_id(&self) -> &Shards<u128, Remembered> {
        &self.by_id
    }

    pub(super) const fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    pub(super) fn get(&self, id: u128) -> Option<&Remembered> {
        self.by_id.get(&id)
    }

    /// Remembers a request that is not remembered yet.
    pub(super) fn remember(&mut self, id: u128, remembered: Remembered) {
        self.order.push_back((remembered.forgotten_at(), id));
        self.by_id.insert(id, remembered);
    }

    /// Takes all requests of a snapshot, in any order.
    pub(super) fn restore(requests: Vec<(u128, Remembered)>) -> Self {
        let mut ordered = requests;
        ordered.sort_unstable_by_key(|(_, remembered)| remembered.permit);
        let mut all = Self::new();
        for (id, remembered) in ordered {
            all.remember(id, remembered);
        }
        all
    }

    /// Forgets up to `most` requests whose time is up.
    pub(super) fn forget_old(&mut self, now: Time, most: usize) {
        for _ in 0..most {
            let Some((_, id)) = self.order.front().filter(|(at, _)| *at <= now).copied() else { return };
            self.order.pop_front();
            self.by_id.remove(&id);
        }
    }

    /// How long until the first request is forgotten.
    pub(super) fn first_forgotten_after(&self, now: Time) -> Span {
        self.order.front().map_or(Span::ZERO, |(at, _)| at.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(permit: u64, stamp: u64) -> Remembered {
        let (slot, stamp) = (Time(stamp + 5), Time(stamp));
        Remembered { fingerprint: permit, permit, slot, stamp, start_before: None, expires_at: None }
    }

    fn ids(requests: &Requests) -> Vec<u128> {
        requests.order.iter().map(|(_, id)| *id).collect()
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_on_time() {
        let mut requests = Requests::new();
        for (id, stamp) in [(30, 0), (10, 0), (20, 7)] {
            requests.remember(id, remembered(u64::try_from(40 - id).unwrap(), stamp));
        }
        assert_eq!(requests.first_forgotten_after(Time(100)), Span(REQUEST_ID_RETENTION_NS - 100));
        requests.forget_old(Time(REQUEST_ID_RETENTION_NS - 1), 10);
        assert_eq!(ids(&requests), [30, 10, 20]);
        requests.forget_old(Time(REQUEST_ID_RETENTION_NS), 1);
        assert_eq!(ids(&requests), [10, 20], "one at a time");
        requests.forget_old(Time(REQUEST_ID_RETENTION_NS + 6), 10);
        assert_eq!((ids(&requests), requests.len()), (vec![20], 1));
        requests.forget_old(Time(REQUEST_ID_RETENTION_NS + 7), 10);
        assert_eq!((requests.len(), requests.first_forgotten_after(Time(0))), (0, Span::ZERO));
    }

    #[test]
    fn a_restore_forgets_in_the_same_order() {
        let all = [(30, remembered(1, 0)), (10, remembered(2, 0)), (20, remembered(3, 7))];
        let mut by_id = all.to_vec();
        by_id.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(ids(&Requests::restore(by_id)), [30, 10, 20]);
    }

    #[test]
    fn a_replay_is_the_same_grant() {
        let first = Grant {
            permit: 7,
            slot: Time(10),
            stamp: Time(3),
            reserved: 4,
            start_before: Some(Span(9)),
            expires_at: Some(Time(12)),
            replayed: false,
        };
        assert_eq!(Remembered::new(1, &first).replay(2), Grant { reserved: 2, replayed: true, ..first });
    }
}
