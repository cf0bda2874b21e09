//! What goes into the log: batches of commands under one stamp.
//!
//! These types are the replicated format: `raft/codec.rs` wraps them in a version byte, and old bytes stay in the tests
//! as fixtures.

use super::policies::{Condition, Policy};
use crate::limiter::{Key, Limit, Terms, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// What a name takes beside the request that holds it, about: nothing if it is short, some hundred bytes if not.
const KEY_HEAP_BYTES: usize = 64;

/// Who leads: a term of office. Two leaders never share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct LeaderId {
    /// The Raft term.
    pub term: u64,
    /// The node that leads in it.
    pub node: u64,
}

impl fmt::Display for LeaderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}", self.term, self.node)
    }
}

/// The time of an entry, and whose time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The leader on whose timeline `time` was read. Apply compares it with the leader of the entry itself: they differ
    /// when leadership was lost and regained between stamping and appending, and then the stamp means nothing.
    pub leader: LeaderId,
    /// Cluster time when the entry was proposed.
    pub time: Time,
}

/// One log entry: everything that queued up while the previous one was on its way. Without commands it is a tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// When, by whose clock.
    pub stamp: Stamp,
    /// How many keys may be held: the leader's figure, so that all nodes decide alike whatever their own settings.
    pub keys_max: u64,
    /// Decided in this order.
    pub commands: Vec<Command>,
}

impl Batch {
    /// What it takes in memory, about: one command may be a thousand requests.
    pub fn memory_bytes(&self) -> u64 {
        let requests: usize = self.commands.iter().map(Command::weight).sum();
        (size_of::<Self>() + requests * (size_of::<Acquire>() + KEY_HEAP_BYTES)) as u64
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} at {} by {}", self.commands.len(), self.stamp.time, self.stamp.leader)
    }
}

/// One thing to decide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Ask for a permit.
    Acquire(Acquire),
    /// Ask for several, in order.
    Several(Several),
    /// Give a permit back.
    Release(Held),
    /// Extend a lease.
    Renew(Held),
    /// Give back whatever a request got, if it is still its own.
    Withdraw(Withdraw),
    /// Forget all about a key.
    Reset(Key),
    /// Store a rule.
    PutPolicy {
        /// Its name.
        name: Arc<str>,
        /// What it says.
        policy: Policy,
        /// Only if.
        condition: Condition,
    },
    /// Remove a rule.
    DeletePolicy {
        /// Its name.
        name: Arc<str>,
        /// Only if.
        condition: Condition,
    },
}

impl Command {
    /// How many keys it asks about: how much work it is to apply.
    pub fn weight(&self) -> usize {
        match self {
            Self::Acquire(acquire) => 1 + acquire.more.len(),
            Self::Several(several) => several.acquires.iter().map(|acquire| 1 + acquire.more.len()).sum(),
            Self::Withdraw(withdraw) => withdraw.keys.len(),
            _ => 1,
        }
    }
}

/// One request for a permit, or for one of each of several keys, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// What is asked for.
    pub first: Wanted,
    /// What is asked for besides, with the same slot. No key comes twice.
    pub more: Vec<Wanted>,
    /// How soon, and how long it would wait.
    pub terms: Terms,
    /// Names the request so that a retry gets the same permit.
    pub identity: Option<Identity>,
    /// A number of its own for each one who asks under an identity; see [`Withdraw`]. Zero for those who never withdraw.
    pub claim: u64,
    /// A label for the history.
    pub worker: Option<Arc<str>>,
    /// Others stand in line for this key: only what it was granted before is for it, else [`Outcome::Skipped`].
    ///
    /// [`Outcome::Skipped`]: super::Outcome::Skipped
    pub replay_only: bool,
}

impl Acquire {
    /// A request for one permit of one key.
    pub const fn one(key: Key, limit: Option<Limit>, cost: u64, terms: Terms) -> Self {
        let first = Wanted { key, limit, cost };
        Self { first, more: Vec::new(), terms, identity: None, claim: 0, worker: None, replay_only: false }
    }

    /// Everything that is asked for.
    pub fn wanted(&self) -> impl Iterator<Item = &Wanted> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

/// One key of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// What is limited.
    pub key: Key,
    /// The limit the request brought along, if any.
    pub limit: Option<Limit>,
    /// What it takes of it.
    pub cost: u64,
}

/// Several requests in one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Several {
    /// In order.
    pub acquires: Vec<Acquire>,
    /// What one that is not granted means for the others.
    pub rule: SeveralRule,
}

/// What a request that is not granted means for the others of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeveralRule {
    /// Nothing.
    Each,
    /// Those after it are not tried: nobody overtakes.
    InLine,
    /// None of them is granted.
    AllOrNothing,
}

/// A permit of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The key.
    pub key: Key,
    /// The permit's number.
    pub permit: u64,
}

/// Somebody who waited has gone away. What the request got goes back, unless somebody else has asked under the same id since:
/// then that one may rely on it, and nobody can tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdraw {
    /// The id of the request.
    pub id: u128,
    /// The claim that goes away.
    pub claim: u64,
    /// The keys of the request, in its order.
    pub keys: Vec<Key>,
}

/// A request id in the form the log carries: of fixed size, whatever clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// A 128-bit hash of the id's text. Two texts that meet here would need 2^64 deliberate tries.
    pub id: u128,
    /// A hash of what was asked for (keys, limits and costs, not the terms of waiting, which a retry may shorten): tells a
    /// retry from another request that reuses the id.
    pub fingerprint: u64,
}

impl Identity {
    /// The identity of a request for all this that calls itself `request_id`.
    pub fn of<'a>(request_id: &str, wanted: impl IntoIterator<Item = &'a Wanted>) -> Self {
        let mut asked = blake3::Hasher::new();
        for Wanted { key, limit, cost } in wanted {
            asked.update(&(key.as_str().len() as u64).to_le_bytes());
            asked.update(key.as_str().as_bytes());
            asked.update(&cost.to_le_bytes());
            // Writing into a hasher does not fail; a limit that did not encode would merely be left out.
            let _ = postcard::to_io(limit, &mut asked);
        }
        Self { id: request_id_hash(request_id), fingerprint: first_bytes_u64(&asked.finalize()) }
    }
}

/// What the log carries of a request id.
pub fn request_id_hash(request_id: &str) -> u128 {
    let hash = blake3::hash(request_id.as_bytes());
    let (head, _) = hash.as_bytes().split_first_chunk::<16>().expect("a hash has 32 bytes");
    u128::from_le_bytes(*head)
}

fn first_bytes_u64(hash: &blake3::Hash) -> u64 {
    let (head, _) = hash.as_bytes().split_first_chunk::<8>().expect("a hash has 32 bytes");
    u64::from_le_bytes(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Spacing, Span};

    fn limit(rate: &str, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
    }

    fn wanted(key: &str, limit: Option<Limit>, cost: u64) -> Wanted {
        Wanted { key: Key::new(key).unwrap(), limit, cost }
    }

    #[test]
    fn a_fingerprint_tells_every_difference_in_what_is_asked_for() {
        let some = Some(limit("1/6s", 10));
        let asked = [
            vec![wanted("a", some, 1)],
            vec![wanted("b", some, 1)],
            vec![wanted("a", some, 2)],
            vec![wanted("a", None, 1)],
            vec![wanted("a", Some(limit("1/6s", 9)), 1)],
            vec![wanted("a", Some(limit("2/12s", 10)), 1)],
            vec![wanted("a", some, 1), wanted("b", some, 1)],
            vec![wanted("b", some, 1), wanted("a", some, 1)],
        ];
        let asked = asked.map(|wanted| Identity::of("id", &wanted));
        for (index, one) in asked.iter().enumerate() {
            assert_eq!(one.id, asked[0].id, "the id is the id");
            assert!(asked[..index].iter().all(|other| other.fingerprint != one.fingerprint), "{index}");
        }
        assert_ne!(Identity::of("other", &[wanted("a", some, 1)]).id, asked[0].id);
    }

    /// Retries from an older version of a node must meet what this one remembers.
    #[test]
    fn an_identity_is_for_ever() {
        let identity = Identity::of("id", &[wanted("a", Some(limit("1/6s", 10)), 1)]);
        let (id, fingerprint) = (162_745_722_625_636_618_837_919_640_433_596_417_827, 1_546_130_958_482_882_666);
        assert_eq!(identity, Identity { id, fingerprint });
    }
}
