//! Which requests were granted lately, by their id: a retry gets the same permit and consumes nothing.
//!
//! Only grants are remembered. A denial consumed nothing, so asking again under the same id is a fresh question; and so is
//! asking again after the permit was given back.
//!
//! A request whose answer is held until its slot has come is remembered from its slot on: until then somebody may withdraw it.

use super::outcome::Grant;
use super::policies::Rule;
use super::shards::Shards;
use super::sorted::Sorted;
use crate::limiter::{Span, Time};
use crate::limits::{REQUEST_ID_RETENTION_NS, REQUEST_IDS_MAX};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is kept of a granted request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Tells a retry from another request with the same id.
    pub(super) fingerprint: u64,
    /// The only one who may withdraw it; zero for nobody.
    pub(super) claim: u64,
    /// The permit it got; of several the first, and the others follow it.
    pub(super) permit: u64,
    /// Its slot.
    pub(super) slot: Time,
    /// When it was decided.
    pub(super) stamp: Time,
    /// Its deadline from the first send.
    pub(super) start_before: Option<Span>,
    /// When an answer with it comes too late.
    pub(super) expires_at: Option<Time>,
    /// When it is forgotten.
    pub(super) kept_until: Time,
    /// The stored rules it was granted by, key by key; `None` if there were none.
    pub(super) rules: Option<Rules>,
}

/// The stored rules of one request, key by key.
pub(super) type Rules = Arc<Vec<Option<Arc<Rule>>>>;

impl Remembered {
    pub(super) fn new(fingerprint: u64, claim: u64, grant: &Grant) -> Self {
        // Only what is held can be withdrawn, and only as many are held as there are connections.
        let from = if claim == 0 { grant.stamp } else { grant.slot };
        let rules = || grant.permits().map(|permit| permit.rule.clone()).collect::<Vec<_>>();
        Self {
            fingerprint,
            claim,
            permit: grant.first.number,
            slot: grant.slot,
            stamp: grant.stamp,
            start_before: grant.start_before,
            expires_at: grant.expires_at,
            kept_until: from.after(Span(REQUEST_ID_RETENTION_NS)),
            rules: grant.permits().any(|permit| permit.rule.is_some()).then(|| Arc::new(rules())),
        }
    }

    /// The stored rule that the key at `index` of the request was granted by.
    pub(super) fn rule(&self, index: usize) -> Option<Arc<Rule>> {
        self.rules.as_ref().and_then(|rules| rules.get(index).cloned().flatten())
    }
}

/// All remembered requests.
#[derive(Debug)]
pub(super) struct Requests {
    by_id: Shards<u128, Remembered>,
    /// Every remembered request, the one that is forgotten first in front; by permit where several are forgotten at once.
    order: Sorted<(Time, u64, u128), ()>,
    most: usize,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self::bounded(REQUEST_IDS_MAX)
    }

    /// Room for so many: a test does not want to remember four million.
    pub(super) fn bounded(most: usize) -> Self {
        Self { by_id: Shards::new(), order: Sorted::default(), most }
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
        self.order.insert((remembered.kept_until, remembered.permit, id), ());
        self.by_id.insert(id, remembered);
    }

    /// Somebody else asks under the same id. Two may rely on one permit from now on, so neither can withdraw it.
    pub(super) fn share(&mut self, id: u128, claim: u64) {
        if self.get(id).is_some_and(|known| known.claim != claim && known.claim != 0) {
            self.put_claim(id, 0);
        }
    }

    /// Makes a claim what it was.
    pub(super) fn put_claim(&mut self, id: u128, claim: u64) {
        if let Some(known) = self.by_id.get_mut(&id) {
            known.claim = claim;
        }
    }

    /// Forgets a request before its time, because what it got was given back.
    pub(super) fn forget(&mut self, id: u128) {
        let Some(known) = self.get(id) else { return };
        let place = (known.kept_until, known.permit, id);
        self.order.remove(|known| known.cmp(&place));
        self.by_id.remove(&id);
    }

    /// Takes all requests of a snapshot, in any order.
    pub(super) fn restore(requests: Vec<(u128, Remembered)>) -> Self {
        let place = |(id, request): &(u128, Remembered)| (request.kept_until, request.permit, *id);
        let mut all = Self { order: Sorted::of(requests.iter().map(place).collect()), ..Self::new() };
        for (id, request) in requests {
            all.by_id.insert(id, request);
        }
        all
    }

    /// Forgets up to `most` requests whose time is up.
    pub(super) fn forget_old(&mut self, now: Time, most: usize) {
        for (.., id) in self.order.take_first(most, |(at, ..)| *at <= now) {
            self.by_id.remove(&id);
        }
    }

    /// How long until the first request is forgotten.
    pub(super) fn first_forgotten_after(&self, now: Time) -> Span {
        self.order.first().map_or(Span::ZERO, |((at, ..), ())| at.since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(permit: u64, stamp: u64) -> Remembered {
        let (slot, stamp) = (Time(stamp + 5), Time(stamp));
        Remembered {
            fingerprint: permit,
            claim: 0,
            permit,
            slot,
            stamp,
            start_before: None,
            expires_at: None,
            kept_until: stamp.after(Span(REQUEST_ID_RETENTION_NS)),
            rules: None,
        }
    }

    fn ids(requests: &Requests) -> Vec<u128> {
        requests.order.iter().map(|((.., id), ())| *id).collect()
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_on_time() {
        let mut requests = Requests::new();
        for (id, permit, stamp) in [(30, 10, 0), (10, 30, 0), (20, 40, 7)] {
            requests.remember(id, remembered(permit, stamp));
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

    /// What was forgotten early takes no part in anything: a node that restored a snapshot has never heard of it.
    #[test]
    fn whoever_is_forgotten_early_leaves_no_trace() {
        let mut requests = Requests::new();
        for (id, permit, stamp) in [(1, 1, 0), (2, 2, 0), (3, 3, 5)] {
            requests.remember(id, remembered(permit, stamp));
        }
        requests.forget(2);
        assert_eq!(requests.len(), 2);
        requests.remember(2, remembered(4, 9));
        let all = |requests: &Requests| {
            let pieces = requests.by_id.pieces().iter();
            pieces.flat_map(|piece| piece.iter().map(|(id, one)| (*id, one.clone()))).collect::<Vec<_>>()
        };
        let mut restored = Requests::restore(all(&requests));
        for now in [REQUEST_ID_RETENTION_NS, REQUEST_ID_RETENTION_NS + 5, REQUEST_ID_RETENTION_NS + 9] {
            for requests in [&mut requests, &mut restored] {
                requests.forget_old(Time(now), 1);
            }
            assert_eq!(all(&requests), all(&restored), "at {now}");
            assert_eq!(requests.first_forgotten_after(Time(0)), restored.first_forgotten_after(Time(0)));
        }
        assert_eq!((requests.len(), requests.order.iter().count()), (0, 0));
    }

    #[test]
    fn a_restore_forgets_in_the_same_order() {
        let all = [(30, remembered(1, 0)), (10, remembered(2, 0)), (20, remembered(3, 7))];
        let mut by_id = all.to_vec();
        by_id.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(ids(&Requests::restore(by_id)), [30, 10, 20]);
    }

    #[test]
    fn a_permit_that_two_rely_on_is_nobodys_to_withdraw() {
        let mut requests = Requests::new();
        requests.remember(1, Remembered { claim: 7, ..remembered(1, 0) });
        let claim = |requests: &Requests| requests.get(1).map(|known| known.claim);
        requests.share(1, 7);
        assert_eq!(claim(&requests), Some(7), "the same one again");
        requests.share(1, 8);
        assert_eq!(claim(&requests), Some(0));
        requests.share(1, 7);
        requests.share(2, 7);
        assert_eq!((claim(&requests), requests.len()), (Some(0), 1), "for good");
    }
}
