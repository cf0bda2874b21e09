//! The register of every key, and when each may be forgotten.
//!
//! A key whose register lies in the past equals a fresh one and leaves memory. Each key stands in the expiry index exactly
//! once, at `indexed`. Granting moves `next` but not the index: when its turn comes, a key that was used meanwhile is
//! indexed anew. `indexed` is part of the replicated state, because it decides in which entry a key leaves.

use super::outcome::KeyView;
use super::shards::Shards;
use crate::limiter::{Key, Limit, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Distinct limits remembered for sharing before unused ones are swept out.
const SHARED_LIMITS_SWEEP: usize = 1_024;

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Register {
    /// The first instant the next permit may take.
    pub(super) next: Time,
    /// The slot of the last grant.
    pub(super) slot: Time,
    /// The fencing number of the last grant.
    pub(super) permit: u64,
    /// Where the key stands in the expiry index. Invariant: `indexed <= next`.
    pub(super) indexed: Time,
    /// The limit of the last grant, shared between keys that have the same.
    pub(super) limit: Arc<Limit>,
}

/// All keys.
#[derive(Debug)]
pub(super) struct Keys {
    registers: Shards<Key, Register>,
    expiry: BTreeSet<(Time, Key)>,
    /// Only saves memory: never decides anything.
    shared_limits: BTreeSet<Arc<Limit>>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { registers: Shards::new(), expiry: BTreeSet::new(), shared_limits: BTreeSet::new() }
    }

    pub(super) const fn registers(&self) -> &Shards<Key, Register> {
        &self.registers
    }

    pub(super) const fn len(&self) -> usize {
        self.registers.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Register> {
        self.registers.get(key.as_str())
    }

    /// Permits of `key` that lie in the future.
    pub(super) fn reserved(&self, key: &Key, now: Time) -> u64 {
        self.get(key).map_or(0, |register| register.limit.outstanding(register.slot, now))
    }

    /// The key as it stands; `None` when it equals a fresh one, whether or not it still is in memory.
    pub(super) fn view(&self, key: &Key, now: Time) -> Option<KeyView> {
        let register = self.get(key).filter(|register| register.next > now)?;
        Some(KeyView {
            limit: register.limit.as_ref().clone(),
            next: register.next,
            reserved: register.limit.outstanding(register.slot, now),
            permit: register.permit,
        })
    }

    /// Moves the register of `key` after a grant that takes all from `slot` to `next`.
    pub(super) fn grant(&mut self, key: &Key, (slot, next): (Time, Time), permit: u64, limit: &Limit) {
        let shared = self.share(limit);
        if let Some(register) = self.registers.get_mut(key.as_str()) {
            register.next = next;
            register.slot = slot;
            register.permit = permit;
            register.limit = shared;
        } else {
            self.put(key.clone(), Register { next, slot, permit, indexed: next, limit: shared });
        }
    }

    /// Puts a register in its place and into the index, as it is: for new keys and for snapshots.
    pub(super) fn put(&mut self, key: Key, register: Register) {
        self.expiry.insert((register.indexed, key.clone()));
        self.registers.insert(key, register);
    }

    /// Puts one read from a snapshot in its place, sharing its limit.
    pub(super) fn restore(&mut self, key: Key, mut register: Register) {
        register.limit = self.share(&register.limit);
        self.put(key, register);
    }

    /// Looks at up to `most` keys whose time in the index has come, and forgets those that are idle.
    pub(super) fn forget_idle(&mut self, now: Time, most: usize) {
        for _ in 0..most {
            let Some(entry) = self.expiry.first().filter(|(at, _)| *at <= now).cloned() else { return };
            self.expiry.remove(&entry);
            let (_, key) = entry;
            match self.registers.get_mut(key.as_str()) {
                Some(register) if register.next > now => {
                    register.indexed = register.next;
                    self.expiry.insert((register.indexed, key));
                }
                _ => self.registers.remove(key.as_str()),
            }
        }
    }

    /// How long until the first key may leave: a lower bound.
    pub(super) fn first_leaves_after(&self, now: Time) -> Span {
        self.expiry.first().map_or(Span::ZERO, |(at, _)| at.since(now))
    }

    fn share(&mut self, limit: &Limit) -> Arc<Limit> {
        if let Some(shared) = self.shared_limits.get(limit) {
            return Arc::clone(shared);
        }
        if self.shared_limits.len() >= SHARED_LIMITS_SWEEP {
            self.shared_limits.retain(|shared| Arc::strong_count(shared) > 1);
            if self.shared_limits.len() >= SHARED_LIMITS_SWEEP {
                return Arc::new(limit.clone());
            }
        }
        let shared = Arc::new(limit.clone());
        self.shared_limits.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Spacing;

    fn limit(rate: &str) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, 10).unwrap())
    }

    fn key(index: u64) -> Key {
        Key::new(&format!("key {index}")).unwrap()
    }

    /// "Each key stands in the expiry index exactly once, at `indexed`", and `indexed <= next`.
    fn check(keys: &Keys) {
        let registers = keys.registers.pieces().iter().flat_map(|piece| piece.iter());
        let mut indexed: Vec<_> = registers.map(|(key, register)| (register.indexed, key.clone())).collect();
        indexed.sort_unstable();
        assert!(indexed.iter().eq(keys.expiry.iter()), "{indexed:?} and {:?}", keys.expiry);
        assert!(indexed.iter().all(|(at, key)| *at <= keys.get(key).unwrap().next));
    }

    #[test]
    fn the_index_holds_every_key_once() {
        let limit = limit("1/6s");
        let mut keys = Keys::new();
        // Any fixed sequence that visits keys in no order; the time moves slowly enough to find them used meanwhile.
        let mut seed = 1_u64;
        for step in 0..5_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (now, used) = (Time(step * 10), key((seed >> 40) % 50));
            keys.forget_idle(now, 2);
            let free = keys.get(&used).map_or(now, |register| register.next.max(now));
            keys.grant(&used, (free, free.after(Span(1 + (seed >> 50)))), step + 1, &limit);
            if step % 50 == 0 {
                check(&keys);
            }
        }
        check(&keys);
        assert!(keys.len() > 10);
        keys.forget_idle(Time(u64::MAX), usize::MAX);
        check(&keys);
        assert_eq!((keys.len(), keys.expiry.len()), (0, 0));
    }

    #[test]
    fn granting_moves_the_register_but_not_the_index() {
        let mut keys = Keys::new();
        keys.grant(&key(1), (Time(0), Time(10)), 1, &limit("1/6s"));
        keys.grant(&key(1), (Time(0), Time(30)), 2, &limit("1/s"));
        let register = keys.get(&key(1)).unwrap();
        assert_eq!((register.indexed, register.next, register.permit), (Time(10), Time(30), 2));
        assert_eq!(*register.limit, limit("1/s"), "the limit of the last grant");
        assert_eq!(keys.first_leaves_after(Time(4)), Span(6));
        keys.forget_idle(Time(10), 1);
        assert_eq!(keys.get(&key(1)).unwrap().indexed, Time(30));
        assert_eq!(keys.first_leaves_after(Time(10)), Span(20));
        keys.forget_idle(Time(29), 1);
        assert_eq!(keys.len(), 1);
        keys.forget_idle(Time(30), 1);
        assert_eq!((keys.len(), keys.first_leaves_after(Time(30))), (0, Span::ZERO));
    }

    #[test]
    fn equal_limits_are_shared_and_unused_ones_swept_out() {
        let mut keys = Keys::new();
        keys.grant(&key(1), (Time(0), Time(10)), 1, &limit("1/6s"));
        keys.grant(&key(2), (Time(0), Time(10)), 2, &limit("1/6s"));
        assert!(Arc::ptr_eq(&keys.get(&key(1)).unwrap().limit, &keys.get(&key(2)).unwrap().limit));
        // One key with a new limit every time: only its last one is in use.
        for count in 0..3 * SHARED_LIMITS_SWEEP {
            keys.grant(&key(3), (Time(0), Time(20 + count as u64)), 3, &limit(&format!("{}/h", count + 1)));
            assert!(keys.shared_limits.len() <= SHARED_LIMITS_SWEEP);
        }
        assert!(keys.shared_limits.contains(&limit("1/6s")), "in use");
    }

    #[test]
    fn more_limits_than_are_shared_still_work() {
        let mut keys = Keys::new();
        let count = SHARED_LIMITS_SWEEP as u64 + 10;
        for index in 0..count {
            keys.grant(&key(index), (Time(0), Time(10)), index + 1, &limit(&format!("{}/h", index + 1)));
        }
        assert_eq!(keys.shared_limits.len(), SHARED_LIMITS_SWEEP);
        assert_eq!(*keys.get(&key(count - 1)).unwrap().limit, limit(&format!("{count}/h")));
    }
}
