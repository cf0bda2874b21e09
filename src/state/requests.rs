//! Which requests were granted lately, by their id: a retry gets the same permit and consumes nothing.
//!
//! Only grants are remembered. A denial consumed nothing, so asking again under the same id is a fresh question.

use super::outcome::Grant;
use super::shards::Shards;
use crate::limiter::{Span, Time};
use crate::limits::REQUEST_ID_RETENTION_NS;
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
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { by_id: Shards::new(), order: VecDeque::new() }
    }

    pub(super) const fn by_id(&self) -> &Shards<u128, Remembered> {
        &self.by_id
    }

    pub(super) const fn len(&self) -> usize {
        self.by_id.len()
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
