//! Request ids that the agent has answered or is about to, so that a retry gets the same and its deadline stays where it was.
//!
//! An id is known from when its request begins to wait until it is refused or its permit given back; then it is as good as new.
//! So an instant of first sight is kept only with a slot: one that outlived its request would make the deadline of the next
//! request under the same id too late.
//!
//! Ids are kept as long as the cluster keeps its own, in memory only: an agent that was started anew, or had to make room, takes a
//! retry for a new request. That wastes a slot and breaks nothing.

use super::block::{Ns, Slot};
use crate::limits::REQUEST_ID_RETENTION_NS;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Ids remembered at once.
pub(super) const IDS_MAX: usize = 131_072;
/// Where room has to be made, an id goes whose permit has been over for this long: whoever has not asked again by then will not.
pub(super) const OVER_NS: Ns = 10_000_000_000;
/// Ids that are looked at to make room for one.
const LOOKED_AT_MAX: usize = 1_024;

/// What came of an id.
#[derive(Debug, Clone)]
enum State<G> {
    /// Its request waits for a block.
    Waits,
    /// It has this slot, under this number, and was first seen then.
    Granted(Slot<G>, u64, Ns),
    /// It was put to the cluster at that instant.
    Passed(Ns),
}

/// One id.
#[derive(Debug, Clone)]
struct Seen<W, G> {
    what: W,
    state: State<G>,
    /// Its place in the order.
    number: u64,
}

/// What is known of an id when a request comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known<G> {
    /// Nothing.
    New,
    /// Its request waits.
    Waits,
    /// It has been granted this slot; first seen then.
    Granted(Slot<G>, Ns),
    /// It was put to the cluster, which remembers it.
    Passed,
    /// It was used for something else.
    Reused,
}

/// All ids, in the order of what came of them.
#[derive(Debug)]
pub(super) struct Ids<W, G> {
    seen: HashMap<Arc<str>, Seen<W, G>>,
    order: BTreeMap<u64, (Ns, Arc<str>)>,
    /// Who has which permit.
    holders: HashMap<u64, Arc<str>>,
    numbers: u64,
}

impl<W, G> Default for Ids<W, G> {
    fn default() -> Self {
        Self { seen: HashMap::new(), order: BTreeMap::new(), holders: HashMap::new(), numbers: 0 }
    }
}

impl<W: PartialEq, G: Clone> Ids<W, G> {
    /// A request under `id` for `what` comes at `now`.
    pub(super) fn find(&mut self, id: &str, what: &W, now: Ns) -> Known<G> {
        self.forget_old(now);
        match self.seen.get(id) {
            None => Known::New,
            // What it was used for, only the cluster knows exactly.
            Some(Seen { state: State::Passed(_), .. }) => Known::Passed,
            Some(seen) if seen.what != *what => Known::Reused,
            Some(Seen { state: State::Waits, .. }) => Known::Waits,
            Some(Seen { state: State::Granted(slot, _, first), .. }) => Known::Granted(slot.clone(), *first),
        }
    }

    /// Whether one more can be remembered; makes room for it if that can be.
    pub(super) fn has_room(&mut self, now: Ns) -> bool {
        if self.seen.len() < IDS_MAX {
            return true;
        }
        let is_over = |id: &Arc<str>| {
            self.seen.get(id).is_none_or(|seen| match &seen.state {
                State::Waits => false,
                State::Granted(slot, ..) => slot.until.unwrap_or(slot.start).saturating_add(OVER_NS) <= now,
                State::Passed(at) => at.saturating_add(OVER_NS) <= now,
            })
        };
        let over = self.order.values().take(LOOKED_AT_MAX).map(|(_, id)| id).find(|id| is_over(id)).cloned();
        over.is_some_and(|id| {
            self.drop(&id);
            true
        })
    }

    /// The request under `id` waits for a block.
    pub(super) fn waits(&mut self, id: &str, what: W, now: Ns) {
        self.put(id, what, State::Waits, now);
    }

    /// The request under `id`, first seen at `first`, gets this permit and its slot.
    pub(super) fn grant(&mut self, id: &str, what: W, (permit, slot): (u64, &Slot<G>), first: Ns, now: Ns) {
        let id = self.put(id, what, State::Granted(slot.clone(), permit, first), now);
        self.holders.insert(permit, id);
    }

    /// The request under `id` is put to the cluster, and so will be its retries: the answer may be lost on its way.
    pub(super) fn pass(&mut self, id: &str, what: W, now: Ns) {
        self.put(id, what, State::Passed(now), now);
    }

    /// The request under `id` came to nothing: another one is a new one.
    pub(super) fn drop(&mut self, id: &str) {
        if let Some(seen) = self.seen.remove(id) {
            self.order.remove(&seen.number);
            if let State::Granted(_, permit, _) = seen.state {
                self.holders.remove(&permit);
            }
        }
    }

    /// Forgets who got a permit: it is given back, and a retry is a new request.
    pub(super) fn forget(&mut self, permit: u64) {
        if let Some(id) = self.holders.get(&permit).cloned() {
            self.drop(&id);
        }
    }

    fn put(&mut self, id: &str, what: W, state: State<G>, now: Ns) -> Arc<str> {
        self.drop(id);
        self.numbers += 1;
        let (id, number) = (Arc::<str>::from(id), self.numbers);
        self.seen.insert(Arc::clone(&id), Seen { what, state, number });
        self.order.insert(number, (now, Arc::clone(&id)));
        id
    }

    fn forget_old(&mut self, now: Ns) {
        while let Some((_, (at, id))) = self.order.first_key_value()
            && at.saturating_add(REQUEST_ID_RETENTION_NS) <= now
        {
            let id = Arc::clone(id);
            self.drop(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Ns = 1_000_000_000;

    #[test]
    fn a_retry_meets_what_the_first_attempt_got() {
        let mut ids = Ids::default();
        assert_eq!(ids.find("a", &"k", S), Known::New);
        ids.waits("a", "k", S);
        assert_eq!(ids.find("a", &"k", 2 * S), Known::Waits);
        let slot = Slot::new(7, (0, S), S, None);
        ids.grant("a", "k", (7, &slot), S, 2 * S);
        assert_eq!(ids.find("a", &"k", 3 * S), Known::Granted(slot.clone(), S));
        assert_eq!(ids.find("a", &"other", 3 * S), Known::Reused);
        ids.forget(7);
        assert_eq!(ids.find("a", &"k", 4 * S), Known::New, "given back: nothing is kept, no instant either");
        ids.grant("a", "k", (8, &slot), 4 * S, 4 * S);
        assert_eq!(ids.find("a", &"k", 4 * S + REQUEST_ID_RETENTION_NS), Known::New);
    }

    #[test]
    fn a_request_that_came_to_nothing_leaves_no_trace() {
        let mut ids = Ids::<_, u64>::default();
        ids.waits("a", "k", S);
        ids.drop("a");
        assert_eq!(ids.find("a", &"other", 60 * S), Known::New);
        assert!(ids.order.is_empty() && ids.holders.is_empty());
    }

    #[test]
    fn what_was_passed_on_is_passed_on_again() {
        let mut ids = Ids::<_, u64>::default();
        ids.pass("a", "k", S);
        assert_eq!(ids.find("a", &"k", 60 * S), Known::Passed);
        assert_eq!(ids.find("a", &"other", 60 * S), Known::Passed, "the cluster says what is wrong with it");
        assert_eq!(ids.find("a", &"k", S + REQUEST_ID_RETENTION_NS), Known::New);
    }

    #[test]
    fn memory_is_bounded_and_room_is_made_of_what_is_over() {
        let mut ids = Ids::default();
        let slot = Slot::new((), (0, S), S, Some(2 * S));
        for number in 0..IDS_MAX {
            assert!(ids.has_room(S));
            ids.grant(&number.to_string(), (), (number as u64, &slot), S, S);
        }
        assert!(!ids.has_room(2 * S + OVER_NS - 1), "somebody may still ask for every one of them");
        assert!(ids.has_room(2 * S + OVER_NS));
        assert_eq!(ids.seen.len(), IDS_MAX - 1);
        assert_eq!(ids.find("0", &(), 2 * S + OVER_NS), Known::New, "the oldest went");
        assert_eq!(ids.holders.len(), IDS_MAX - 1);
    }
}
