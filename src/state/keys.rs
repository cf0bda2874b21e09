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
        self.get(key).map_or(0, |register| register.limit.reserved(register.next, now))
    }

    /// The key as it stands; `None` when it equals a fresh one, whether or not it still is in memory.
    pub(super) fn view(&self, key: &Key, now: Time) -> Option<KeyView> {
        let register = self.get(key).filter(|register| register.next > now)?;
        Some(KeyView {
            limit: register.limit.as_ref().clone(),
            next: register.next,
            reserved: register.limit.reserved(register.next, now),
            permit: register.permit,
        })
    }

    /// Moves the register of `key` after a grant.
    pub(super) fn grant(&mut self, key: &Key, next: Time, permit: u64, limit: &Limit) {
        let shared = self.share(limit);
        if let Some(register) = self.registers.get_mut(key.as_str()) {
            register.next = next;
            register.permit = permit;
            register.limit = shared;
        } else {
            self.put(key.clone(), Register { next, permit, indexed: next, limit: shared });
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
