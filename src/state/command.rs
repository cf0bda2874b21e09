//! What goes into the log: batches of commands under one stamp.
//!
//! These types are the replicated format: `raft/codec.rs` wraps them in a version byte, and old bytes stay in the tests
//! as fixtures.

use crate::limiter::{Ask, Key, Limit, Time};
use serde::{Deserialize, Serialize};
use std::fmt;

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
}

/// One request for a permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// What is limited.
    pub key: Key,
    /// The limit the request brought along, if any.
    pub limit: Option<Limit>,
    /// How much and how long.
    pub ask: Ask,
    /// Names the request so that a retry gets the same permit.
    pub identity: Option<Identity>,
}

/// A request id in the form the log carries: of fixed size, whatever clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// A 128-bit hash of the id's text. Two texts that meet here would need 2^64 deliberate tries.
    pub id: u128,
    /// A hash of what was asked for (key, limit and cost, not the terms of waiting, which a retry may shorten): tells a
    /// retry from another request that reuses the id.
    pub fingerprint: u64,
}

impl Identity {
    /// The identity of a request for `cost` of `key` under `limit` that calls itself `request_id`.
    pub fn of(request_id: &str, key: &Key, limit: Option<&Limit>, cost: u64) -> Self {
        let id_hash = blake3::hash(request_id.as_bytes());
        let mut asked = blake3::Hasher::new();
        asked.update(&(key.as_str().len() as u64).to_le_bytes());
        asked.update(key.as_str().as_bytes());
        asked.update(&cost.to_le_bytes());
        if let Some(limit) = limit {
            // Writing into a hasher does not fail; a limit that did not encode would merely be left out.
            let _ = postcard::to_io(limit, &mut asked);
        }
        Self { id: first_bytes_u128(&id_hash), fingerprint: first_bytes_u64(&asked.finalize()) }
    }
}

fn first_bytes_u128(hash: &blake3::Hash) -> u128 {
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

    #[test]
    fn a_fingerprint_tells_every_difference_in_what_is_asked_for() {
        let key = |text| Key::new(text).unwrap();
        let some = limit("1/6s", 10);
        let asked = [
            Identity::of("id", &key("a"), Some(&some), 1),
            Identity::of("id", &key("b"), Some(&some), 1),
            Identity::of("id", &key("a"), Some(&some), 2),
            Identity::of("id", &key("a"), None, 1),
            Identity::of("id", &key("a"), Some(&limit("1/6s", 9)), 1),
            Identity::of("id", &key("a"), Some(&limit("2/12s", 10)), 1),
        ];
        for (index, one) in asked.iter().enumerate() {
            assert_eq!(one.id, asked[0].id, "the id is the id");
            assert!(asked[..index].iter().all(|other| other.fingerprint != one.fingerprint), "{index}");
        }
        assert_ne!(Identity::of("other", &key("a"), Some(&some), 1).id, asked[0].id);
    }

    /// Retries from an older version of a node must meet what this one remembers.
    #[test]
    fn an_identity_is_for_ever() {
        let identity = Identity::of("id", &Key::new("a").unwrap(), Some(&limit("1/6s", 10)), 1);
        let (id, fingerprint) = (162_745_722_625_636_618_837_919_640_433_596_417_827, 1_458_172_209_062_913_572);
        assert_eq!(identity, Identity { id, fingerprint });
    }
}
