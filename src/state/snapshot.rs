//! The state as bytes, and its digest.
//!
//! ```text
//! format byte · head · a block of policies · 4096 blocks of keys · 4096 blocks of requests
//! block = length (u32, little endian) · postcard
//! ```
//! Written and read block by block, so that neither side ever holds a second copy of everything. The digest is the hash of
//! exactly these bytes: equal states, and only those, have equal digests. Whether the bytes arrived whole is the business
//! of the file around them (`raft/snapshot_file.rs`).

use super::keys::{KeyState, Keys};
use super::machine::{Frozen, Machine};
use super::policies::{Policies, Rule, Stored};
use super::requests::{Remembered, Requests, Rules};
use super::shards::{Placed, Shard};
use crate::limiter::{Key, Time};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::sync::Arc;
use thiserror::Error;

/// Increase it with every change of what is written, and keep reading the old one.
const FORMAT: u8 = 3;
/// Neither time nor permits get here in centuries: a head beyond it is damage, and counting on from it would overflow.
const COUNT_MAX: u64 = u64::MAX / 2;
/// Largest block that is believed: with a hundred million keys one has some megabytes.
const BLOCK_BYTES_MAX: u32 = 1 << 30;

/// Why bytes are not a snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Reading failed or ended too soon.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] io::Error),
    /// Written by a version this one does not know.
    #[error("snapshot format {0} is not known to this version, which reads {FORMAT}")]
    Format(u8),
    /// The bytes do not decode.
    #[error("damaged snapshot: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Head {
    now: Time,
    permits: u64,
    policy_revision: u64,
    key_blocks: u32,
    request_blocks: u32,
}

impl Frozen {
    /// Writes everything. The order of bytes depends on the state alone.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (keys, requests) = (self.keys.pieces(), self.requests.pieces());
        let blocks = |count: usize| u32::try_from(count).map_err(io::Error::other);
        out.write_all(&[FORMAT])?;
        let head = Head {
            now: self.now,
            permits: self.permits,
            policy_revision: self.policies.revision(),
            key_blocks: blocks(keys.len())?,
            request_blocks: blocks(requests.len())?,
        };
        write_block(out, &head)?;
        write_block(out, &self.policies.all().collect::<Vec<_>>())?;
        for piece in keys {
            write_piece(out, piece)?;
        }
        for piece in requests {
            write_piece(out, piece)?;
        }
        Ok(())
    }

    /// Equal for equal states.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        // A hasher takes every byte, and a state always encodes: there is no failure to report.
        let written = self.write(&mut hasher);
        debug_assert!(written.is_ok(), "{written:?}");
        *hasher.finalize().as_bytes()
    }

    /// Cluster time of this view.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Keys in this view.
    pub const fn keys(&self) -> usize {
        self.keys.len()
    }
}

impl Machine {
    /// Reads a state back. Nothing is trusted: every length is bounded, every name checked, and every
    /// invariant of the state holds afterwards.
    pub fn read(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let mut format = [0];
        input.read_exact(&mut format)?;
        if format[0] != FORMAT {
            return Err(SnapshotError::Format(format[0]));
        }
        let head: Head = read_block(input)?;
        if head.now.0 > COUNT_MAX || head.permits > COUNT_MAX {
            return Err(SnapshotError::Damaged(format!(
                "no cluster is {} old or has granted {}",
                head.now, head.permits
            )));
        }
        let policies = Policies::restore(head.policy_revision, read_block::<Vec<Stored>>(input)?)
            .ok_or_else(|| SnapshotError::Damaged("two policies are one, or newer than the last".to_owned()))?;
        let mut keys = Keys::new();
        for _ in 0..head.key_blocks {
            for (key, state) in read_block::<Vec<(Key, KeyState)>>(input)? {
                if state.permit > head.permits {
                    return Err(SnapshotError::Damaged(format!(
                        "key {key} has permit {} of {}",
                        state.permit, head.permits
                    )));
                }
                if keys.get(&key).is_some() {
                    return Err(SnapshotError::Damaged(format!("key {key} stands there twice")));
                }
                keys.restore(key, state);
            }
        }
        keys.index_all();
        let requests = read_requests(input, &head)?;
        Ok(Self { now: head.now, permits: head.permits, keys, requests, policies })
    }
}

/// Requests that were granted by one rule share it, as they did before they were written.
#[derive(Default)]
struct Shared(BTreeSet<Arc<Rule>>);

impl Shared {
    fn share(&mut self, rules: &Rules) -> Rules {
        let one = |rule: &Option<Arc<Rule>>| {
            let rule = rule.as_ref()?;
            if !self.0.contains(rule) {
                self.0.insert(Arc::clone(rule));
            }
            self.0.get(rule).cloned()
        };
        Arc::new(rules.iter().map(one).collect())
    }
}

fn read_requests(input: &mut impl Read, head: &Head) -> Result<Requests, SnapshotError> {
    let mut listed = Vec::new();
    let mut shared = Shared::default();
    for _ in 0..head.request_blocks {
        for (id, mut request) in read_block::<Vec<(u128, Remembered)>>(input)? {
            request.rules = request.rules.map(|rules| shared.share(&rules));
            listed.push((id, request));
        }
    }
    for (_, request) in &listed {
        if request.permit > head.permits {
            return Err(SnapshotError::Damaged(format!("a request has permit {} of {}", request.permit, head.permits)));
        }
        if request.stamp > head.now {
            return Err(SnapshotError::Damaged(format!("a request was decided at {}, after the end", request.stamp)));
        }
    }
    let count = listed.len();
    let requests = Requests::restore(listed);
    if requests.len() != count {
        return Err(SnapshotError::Damaged(format!("{count} requests, and only {} names", requests.len())));
    }
    Ok(requests)
}

fn write_piece<K, V>(out: &mut impl Write, piece: &Shard<K, V>) -> io::Result<()>
where
    K: Serialize + Ord + Clone + Placed,
    V: Serialize + Clone,
{
    write_block(out, &piece.iter().collect::<Vec<_>>())
}

fn write_block(out: &mut impl Write, block: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(block).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&bytes)
}

fn read_block<T: DeserializeOwned>(input: &mut impl Read) -> Result<T, SnapshotError> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > BLOCK_BYTES_MAX {
        return Err(SnapshotError::Damaged(format!("a block of {length} bytes")));
    }
    // Grows with what really arrives, not with what the length claims.
    let mut bytes = Vec::new();
    input.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != u64::from(length) {
        return Err(SnapshotError::Damaged(format!("a block of {length} bytes ends after {}", bytes.len())));
    }
    let (block, rest) = postcard::take_from_bytes(&bytes).map_err(|error| SnapshotError::Damaged(error.to_string()))?;
    if !rest.is_empty() {
        return Err(SnapshotError::Damaged(format!("a block of {length} bytes has {} too many", rest.len())));
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Limit, Register, Spacing, Span};

    /// A snapshot with these keys and requests, each list a block of its own, under a head of five seconds and three
    /// permits.
    fn snapshot(keys: &[Vec<(Key, KeyState)>], requests: &[Vec<(u128, Remembered)>]) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        let count = |blocks: usize| u32::try_from(blocks).unwrap();
        let head = Head {
            now: Time(5),
            permits: 3,
            policy_revision: 0,
            key_blocks: count(keys.len()),
            request_blocks: count(requests.len()),
        };
        write_block(&mut bytes, &head).unwrap();
        write_block(&mut bytes, &Vec::<Stored>::new()).unwrap();
        for block in keys {
            write_block(&mut bytes, block).unwrap();
        }
        for block in requests {
            write_block(&mut bytes, block).unwrap();
        }
        bytes
    }

    fn state(key: &str, permit: u64) -> (Key, KeyState) {
        let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 10).unwrap());
        let state = KeyState { register: Register::default(), permit, indexed: Time(7), limit: Arc::new(limit) };
        (Key::new(key).unwrap(), state)
    }

    fn request(id: u128, permit: u64) -> (u128, Remembered) {
        let (slot, stamp) = (Time(6), Time(5));
        (
            id,
            Remembered {
                fingerprint: 1,
                claim: 0,
                permit,
                slot,
                stamp,
                start_before: None,
                expires_at: None,
                kept_until: Time(9),
                rules: None,
            },
        )
    }

    fn damage(bytes: &[u8]) -> String {
        match Machine::read(&mut &*bytes) {
            Err(SnapshotError::Damaged(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn items_may_lie_in_any_block() {
        let one = snapshot(&[vec![state("a", 1), state("b", 2)]], &[vec![request(1, 1), request(2, 2)]]);
        let two = snapshot(&[vec![state("b", 2)], vec![state("a", 1)]], &[vec![request(2, 2)], vec![request(1, 1)]]);
        let [one, two] = [one, two].map(|bytes| Machine::read(&mut bytes.as_slice()).unwrap());
        assert_eq!((one.keys(), one.request_ids()), (2, 2));
        assert_eq!(one.freeze().digest(), two.freeze().digest());
    }

    /// "Each key stands in the expiry index, at `indexed`": a second register would leave the first one's place in it.
    #[test]
    fn names_that_stand_there_twice_are_damage() {
        let again = (Key::new("a").unwrap(), KeyState { indexed: Time(8), ..state("a", 2).1 });
        assert_eq!(damage(&snapshot(&[vec![state("a", 1)], vec![again]], &[])), "key a stands there twice");
        let twice = snapshot(&[], &[vec![request(7, 1)], vec![request(7, 2)]]);
        assert_eq!(damage(&twice), "2 requests, and only 1 names");
    }

    /// "Strictly increasing over the whole cluster": a permit ahead of the count would be given out again.
    #[test]
    fn permits_and_times_ahead_of_the_head_are_damage() {
        assert!(Machine::read(&mut snapshot(&[vec![state("a", 3)]], &[vec![request(7, 3)]]).as_slice()).is_ok());
        assert_eq!(damage(&snapshot(&[vec![state("a", 4)]], &[])), "key a has permit 4 of 3");
        assert_eq!(damage(&snapshot(&[], &[vec![request(7, 4)]])), "a request has permit 4 of 3");
        let (id, early) = request(7, 3);
        let early = Remembered { stamp: Time(6), ..early };
        assert_eq!(
            damage(&snapshot(&[], &[vec![(id, early)]])),
            "a request was decided at 0.000000006s, after the end"
        );
    }

    #[test]
    fn a_block_with_more_in_it_than_it_says_is_damage() {
        let mut bytes = vec![FORMAT];
        write_block(&mut bytes, &(Time(5), 3_u64, 0_u64, 0_u32, 0_u32, 99_u8)).unwrap();
        assert_eq!(damage(&bytes), "a block of 6 bytes has 1 too many");
    }
}
