//! Request ids that the agent has seen, so that a retry gets the same permit and its deadline stays where it was.
//!
//! They are kept as long as the cluster keeps its own, in memory only: an agent that was started anew takes a retry for a new
//! request. That wastes a slot and breaks nothing.

use super::block::{Ns, Slot};
use crate::limits::REQUEST_ID_RETENTION_NS;
use std::collections::{HashMap, VecDeque};

/// Ids remembered at once.
pub(super) const IDS_MAX: usize = 131_072;

/// One id.
#[derive(Debug, Clone)]
struct Seen<W, G> {
    what: W,
    first: Ns,
    slot: Option<Slot<G>>,
    permit: Option<u64>,
}

/// What is known of an id when a request comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known<G> {
    /// It has been granted this slot; first seen then.
    Granted(Slot<G>, Ns),
    /// It has nothing yet; first seen then, which may be just now.
    Waiting(Ns),
    /// It was used for something else.
    Reused,
    /// No more can be remembered.
    Full,
}

/// All ids, the oldest first.
#[derive(Debug)]
pub(super) struct Ids<W, G> {
    seen: HashMap<String, Seen<W, G>>,
    order: VecDeque<(Ns, String)>,
    /// Who has which permit.
    holders: HashMap<u64, String>,
}

impl<W, G> Default for Ids<W, G> {
    fn default() -> Self {
        Self { seen: HashMap::new(), order: VecDeque::new(), holders: HashMap::new() }
    }
}

impl<W: PartialEq, G: Clone> Ids<W, G> {
    /// A request under `id` for `what` comes at `now`.
    pub(super) fn meet(&mut self, id: &str, what: W, now: Ns) -> Known<G> {
        self.forget_old(now);
        if let Some(seen) = self.seen.get(id) {
            if seen.what != what {
                return Known::Reused;
            }
            return match &seen.slot {
                Some(slot) => Known::Granted(slot.clone(), seen.first),
                None => Known::Waiting(seen.first),
            };
        }
        if self.seen.len() >= IDS_MAX {
            return Known::Full;
        }
        self.seen.insert(id.to_owned(), Seen { what, first: now, slot: None, permit: None });
        self.order.push_back((now, id.to_owned()));
        Known::Waiting(now)
    }

    /// The request under `id` gets this permit and its slot.
    pub(super) fn grant(&mut self, id: &str, permit: u64, slot: &Slot<G>) {
        if let Some(seen) = self.seen.get_mut(id) {
            (seen.slot, seen.permit) = (Some(slot.clone()), Some(permit));
            self.holders.insert(permit, id.to_owned());
        }
    }

    /// Forgets who got a permit: it is given back, and a retry is a new request.
    pub(super) fn forget(&mut self, permit: u64) {
        if let Some(id) = self.holders.remove(&permit)
            && let Some(seen) = self.seen.get_mut(&id)
        {
            (seen.slot, seen.permit) = (None, None);
        }
    }

    fn forget_old(&mut self, now: Ns) {
        while let Some((at, _)) = self.order.front()
            && at.saturating_add(REQUEST_ID_RETENTION_NS) <= now
        {
            if let Some((_, id)) = self.order.pop_front()
                && let Some(permit) = self.seen.remove(&id).and_then(|seen| seen.permit)
            {
                self.holders.remove(&permit);
            }
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
        assert_eq!(ids.meet("a", "k", S), Known::Waiting(S));
        assert_eq!(ids.meet("a", "k", 2 * S), Known::Waiting(S), "first seen stays");
        let slot = Slot::new(7, (0, S), S, None);
        ids.grant("a", 7, &slot);
        assert_eq!(ids.meet("a", "k", 3 * S), Known::Granted(slot, S));
        assert_eq!(ids.meet("a", "other", 3 * S), Known::Reused);
        ids.forget(7);
        assert_eq!(
            ids.meet("a", "k", 4 * S),
            Known::Waiting(S),
            "given back: a new request, whose first send was then"
        );
        assert_eq!(ids.meet("a", "k", S + REQUEST_ID_RETENTION_NS), Known::Waiting(S + REQUEST_ID_RETENTION_NS));
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let mut ids = Ids::<_, ()>::default();
        for number in 0..IDS_MAX {
            assert_eq!(ids.meet(&number.to_string(), (), S), Known::Waiting(S));
        }
        assert_eq!(ids.meet("one more", (), S), Known::Full);
        assert_eq!(ids.meet("one more", (), S + REQUEST_ID_RETENTION_NS), Known::Waiting(S + REQUEST_ID_RETENTION_NS));
    }
}
