//! The state of every key, and when each may be forgotten.
//!
//! A key whose register equals a fresh one leaves memory. Each key stands in the expiry index, at `indexed`, by its place and not
//! by its name, which would take twice the room; two keys with one place and one instant share what stands there. Using
//! a key does not move it in the index: when its turn comes, a key that was used meanwhile is indexed anew. `indexed` is part
//! of the replicated state, because it decides in which entry a key leaves.

use super::shards::{Placed, Shard, Shards};
use super::sorted::Sorted;
use crate::limiter::{Key, Limit, Register, Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Distinct limits remembered for sharing before unused ones are swept out.
const SHARED_LIMITS_SWEEP: usize = 1_024;

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyState {
    pub(super) register: Register,
    /// The fencing number of the last grant.
    pub(super) permit: u64,
    /// Where the key stands in the expiry index: never after the instant at which it was idle when it was put there.
    pub(super) indexed: Time,
    /// The limit of the last grant, shared between keys that have the same.
    pub(super) limit: Arc<Limit>,
}

impl KeyState {
    fn idle_at(&self) -> Time {
        self.register.idle_at(&self.limit)
    }
}

/// All keys.
#[derive(Debug)]
pub(super) struct Keys {
    states: Shards<Key, KeyState>,
    expiry: Sorted<(Time, u64), ()>,
    /// Only saves memory: never decides anything.
    shared_limits: BTreeSet<Arc<Limit>>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { states: Shards::new(), expiry: Sorted::default(), shared_limits: BTreeSet::new() }
    }

    pub(super) const fn states(&self) -> &Shards<Key, KeyState> {
        &self.states
    }

    pub(super) const fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&KeyState> {
        self.states.get(key)
    }

    /// The same for who knows the place of the key already.
    pub(super) fn get_at(&self, key: &Key, place: u64) -> Option<&KeyState> {
        self.states.get_at(key, place)
    }

    /// For changing a register in place, other than by a grant.
    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut KeyState> {
        // Looked at first: taking it in hand copies what a snapshot still holds.
        self.get(key)?;
        self.states.get_mut(key.as_str())
    }

    /// Changes the register of `key` by a grant, and says what `enter` says of it. `adopted` takes its place first, if there is one.
    pub(super) fn grant<R>(
        &mut self,
        (key, place): (&Key, u64),
        (permit, limit): (u64, &Limit),
        adopted: Option<Register>,
        enter: impl FnOnce(&mut Register) -> R,
    ) -> R {
        let Self { states, expiry, shared_limits } = self;
        states.upsert((key, place), |known| {
            let Some(state) = known else {
                let mut register = adopted.unwrap_or_default();
                let said = enter(&mut register);
                let indexed = register.idle_at(limit);
                expiry.insert((indexed, place), ());
                return (Some(KeyState { register, permit, indexed, limit: share(shared_limits, limit) }), said);
            };
            if let Some(adopted) = adopted {
                state.register = adopted;
            }
            let said = enter(&mut state.register);
            state.permit = permit;
            if *state.limit != *limit {
                state.limit = share(shared_limits, limit);
            }
            (None, said)
        })
    }

    /// Puts a key in its place and into the index, as it is.
    fn put(&mut self, key: Key, state: KeyState) {
        self.expiry.insert((state.indexed, key.place()), ());
        self.states.insert(key, state);
    }

    /// Puts one read from a snapshot in its place, sharing its limit. The index is made when all are there:
    /// [`Self::index_all`].
    pub(super) fn restore(&mut self, key: Key, mut state: KeyState) {
        state.limit = share(&mut self.shared_limits, &state.limit);
        self.states.insert(key, state);
    }

    /// Makes the index of all keys anew.
    pub(super) fn index_all(&mut self) {
        let states = self.states.pieces().iter().flat_map(Shard::iter);
        self.expiry = Sorted::of(states.map(|(key, state)| (state.indexed, key.place())).collect());
    }

    /// Forgets a key; whether there was one.
    pub(super) fn remove(&mut self, key: &Key) -> bool {
        let Some(state) = self.get(key) else { return false };
        let sought = (state.indexed, key.place());
        self.states.remove(key.as_str());
        if self.indexed(sought).next().is_none() {
            self.expiry.remove(|known| known.cmp(&sought));
        }
        true
    }

    /// The keys that stand at one place of the index.
    fn indexed(&self, (at, place): (Time, u64)) -> impl Iterator<Item = &Key> {
        self.states.at(place).filter(move |(_, state)| state.indexed == at).map(|(key, _)| key)
    }

    /// Makes a key what it was.
    pub(super) fn put_back(&mut self, key: &Key, state: Option<KeyState>) {
        self.remove(key);
        if let Some(state) = state {
            self.put(key.clone(), state);
        }
    }

    /// Looks at up to `most` places of the index whose time has come, and forgets the keys there that are idle.
    pub(super) fn forget_idle(&mut self, now: Time, most: usize) {
        // One that is indexed anew is due after now: it cannot be among those that are still to be looked at.
        for (at, place) in self.expiry.take_first(most, |(at, _)| *at <= now) {
            let expiry = &mut self.expiry;
            self.states.retain_at(place, |state| {
                if state.indexed != at {
                    return true;
                }
                let idle_at = state.idle_at();
                let busy = idle_at > now;
                if busy {
                    state.indexed = idle_at;
                    expiry.insert((idle_at, place), ());
                }
                busy
            });
        }
    }

    /// How long until the first key may leave: a lower bound.
    pub(super) fn first_leaves_after(&self, now: Time) -> Span {
        self.expiry.first().map_or(Span::ZERO, |((at, _), ())| at.since(now))
    }
}

/// The one of all equal limits.
fn share(known: &mut BTreeSet<Arc<Limit>>, limit: &Limit) -> Arc<Limit> {
    if let Some(shared) = known.get(limit) {
        return Arc::clone(shared);
    }
    if known.len() >= SHARED_LIMITS_SWEEP {
        known.retain(|shared| Arc::strong_count(shared) > 1);
        if known.len() >= SHARED_LIMITS_SWEEP {
            return Arc::new(*limit);
        }
    }
    let shared = Arc::new(*limit);
    known.insert(Arc::clone(&shared));
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Entry, Spacing};

    fn limit(rate: &str) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, 100).unwrap())
    }

    fn key(index: u64) -> Key {
        Key::new(&format!("key {index}")).unwrap()
    }

    /// One permit of `key` under `limit`, as soon as there is one.
    fn grant(keys: &mut Keys, key: &Key, now: Time, permit: u64, limit: &Limit) {
        let fresh = Register::default();
        let register = keys.get(key).map_or(&fresh, |state| &state.register);
        let slot = register.earliest(limit, now, now, 1).unwrap();
        let entry = Entry { permit, slot, cost: 1, request: None };
        keys.grant((key, key.place()), (permit, limit), None, |register| register.take(limit, now, Span::ZERO, &entry));
    }

    /// "Each key stands in the expiry index, at `indexed`", and nothing else does.
    fn check(keys: &Keys) {
        let states = keys.states.pieces().iter().flat_map(Shard::iter);
        let mut indexed: Vec<_> = states.map(|(key, state)| (state.indexed, key.place())).collect();
        indexed.sort_unstable();
        indexed.dedup();
        assert!(indexed.iter().eq(keys.expiry.iter().map(|(entry, ())| entry)), "{indexed:?} and {:?}", keys.expiry);
    }

    #[test]
    fn the_index_holds_every_key() {
        let limits = ["1000/s", "100/s", "300/s"].map(limit);
        let mut keys = Keys::new();
        // Any fixed sequence that visits keys in no order; the time moves slowly enough to find them used meanwhile.
        let mut seed = 1_usize;
        for step in 0..5_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (now, used) = (Time(step * 100_000), key((seed >> 40) as u64 % 50));
            keys.forget_idle(now, 2);
            if (seed >> 20).trailing_zeros() >= 4 {
                keys.remove(&used);
            } else {
                grant(&mut keys, &used, now, step + 1, &limits[seed >> 50 & 1]);
            }
            if step % 50 == 0 {
                check(&keys);
            }
        }
        check(&keys);
        assert!(keys.len() > 10);
        let (one, before) = (key(1), keys.get(&key(1)).cloned());
        keys.remove(&one);
        grant(&mut keys, &one, Time(u64::MAX / 2), 9_999, &limits[2]);
        keys.put_back(&one, before.clone());
        check(&keys);
        assert_eq!(keys.get(&one).cloned(), before);
        keys.forget_idle(Time(u64::MAX), usize::MAX);
        check(&keys);
        assert_eq!((keys.len(), keys.expiry.iter().count()), (0, 0));
    }

    /// Two names that have one place, found by a search through some billions: they share what stands in the index, and one may
    /// go without the other.
    #[test]
    fn two_keys_in_one_place_do_not_lose_each_other() {
        let [one, other] = ["9b1aceed9a3a8f72", "c9759914b81d2034"].map(|name| Key::new(name).unwrap());
        assert_eq!(one.place(), other.place());
        let ms = |ms: u64| Time(ms * 1_000_000);
        let both = |rates: [&str; 2]| {
            let mut keys = Keys::new();
            grant(&mut keys, &one, ms(0), 1, &limit(rates[0]));
            grant(&mut keys, &other, ms(0), 2, &limit(rates[1]));
            check(&keys);
            keys
        };
        let mut keys = both(["1/10ms", "1/10ms"]);
        assert_eq!(keys.expiry.iter().count(), 1);
        assert!(keys.remove(&one));
        check(&keys);
        keys.forget_idle(ms(10), 1);
        assert_eq!((keys.len(), keys.expiry.iter().count()), (0, 0), "the other one leaves in its turn");

        let mut keys = both(["1/10ms", "1/10ms"]);
        grant(&mut keys, &other, ms(5), 3, &limit("1/10ms"));
        keys.forget_idle(ms(10), 1);
        check(&keys);
        assert_eq!((keys.get(&one), keys.len()), (None, 1), "one is idle, the other was used meanwhile");

        let mut keys = both(["1/20ms", "1/10ms"]);
        grant(&mut keys, &other, ms(5), 3, &limit("1/10ms"));
        keys.forget_idle(ms(10), 1);
        check(&keys);
        assert_eq!((keys.len(), keys.expiry.iter().count()), (2, 1), "the other is indexed anew, where the one is");
        keys.forget_idle(ms(20), 1);
        assert_eq!((keys.len(), keys.expiry.iter().count()), (0, 0));

        let mut keys = both(["1/10ms", "1/20ms"]);
        let before = keys.get(&one).cloned();
        assert!(keys.remove(&one));
        check(&keys);
        keys.put_back(&one, before);
        keys.put_back(&other, None);
        check(&keys);
        assert_eq!((keys.get(&other), keys.len()), (None, 1));

        let mut keys = both(["1/10ms", "1/20ms"]);
        keys.forget_idle(ms(10), 9);
        check(&keys);
        assert_eq!((keys.get(&one), keys.len()), (None, 1));
        keys.index_all();
        check(&keys);
    }

    #[test]
    fn granting_moves_the_register_but_not_the_index() {
        let mut keys = Keys::new();
        let ms = |ms: u64| Time(ms * 1_000_000);
        grant(&mut keys, &key(1), ms(0), 1, &limit("1/10ms"));
        grant(&mut keys, &key(1), ms(0), 2, &limit("1/20ms"));
        let state = keys.get(&key(1)).unwrap();
        assert_eq!((state.indexed, state.idle_at(), state.permit), (ms(10), ms(30), 2));
        assert_eq!(*state.limit, limit("1/20ms"), "the limit of the last grant");
        assert_eq!(keys.first_leaves_after(ms(4)), Span::from_millis(6));
        keys.forget_idle(ms(10), 1);
        assert_eq!(keys.get(&key(1)).unwrap().indexed, ms(30));
        assert_eq!(keys.first_leaves_after(ms(10)), Span::from_millis(20));
        keys.forget_idle(ms(29), 1);
        assert_eq!(keys.len(), 1);
        keys.forget_idle(ms(30), 1);
        assert_eq!((keys.len(), keys.first_leaves_after(ms(30))), (0, Span::ZERO));
    }

    #[test]
    fn equal_limits_are_shared_and_unused_ones_swept_out() {
        let mut keys = Keys::new();
        grant(&mut keys, &key(1), Time(0), 1, &limit("1/6s"));
        grant(&mut keys, &key(2), Time(0), 2, &limit("1/6s"));
        assert!(Arc::ptr_eq(&keys.get(&key(1)).unwrap().limit, &keys.get(&key(2)).unwrap().limit));
        // One key with a new limit every time: only its last one is in use.
        for count in 0..3 * SHARED_LIMITS_SWEEP {
            grant(&mut keys, &key(3), Time(0), 3, &limit(&format!("{}/h", count + 1)));
            assert!(keys.shared_limits.len() <= SHARED_LIMITS_SWEEP);
        }
        assert!(keys.shared_limits.contains(&limit("1/6s")), "in use");
    }

    #[test]
    fn more_limits_than_are_shared_still_work() {
        let mut keys = Keys::new();
        let count = SHARED_LIMITS_SWEEP as u64 + 10;
        for index in 0..count {
            grant(&mut keys, &key(index), Time(0), index + 1, &limit(&format!("{}/h", index + 1)));
        }
        assert_eq!(keys.shared_limits.len(), SHARED_LIMITS_SWEEP);
        assert_eq!(*keys.get(&key(count - 1)).unwrap().limit, limit(&format!("{count}/h")));
    }
}
