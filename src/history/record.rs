//! What is kept, and its one codec: a format byte, then postcard.
//!
//! Invariant: bytes that are no record of this format are `None`, whatever they are. Nothing read here is trusted.

use super::event::Audit;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// The first byte of every value. A database of another format is moved aside.
pub(super) const FORMAT: u8 = 1;

/// A permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PermitRecord {
    /// Cluster time of the slot, in nanoseconds.
    pub(super) slot_ns: u64,
    /// Cluster time of the decision, in nanoseconds.
    pub(super) at_ns: u64,
    /// This node's wall clock when it wrote the record.
    pub(super) wall_ms: u64,
    pub(super) cost: u64,
    pub(super) policy: Option<String>,
    pub(super) worker: Option<String>,
}

/// A permit that was given back, and when this node heard of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReleasedRecord {
    pub(super) wall_ms: u64,
}

/// A denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeniedRecord {
    /// Cluster time of the decision, in nanoseconds.
    pub(super) at_ns: u64,
    pub(super) wall_ms: u64,
    pub(super) cost: u64,
    pub(super) reason: String,
    pub(super) policy: Option<String>,
    pub(super) worker: Option<String>,
}

/// What happened in one bucket of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Permits granted.
    pub granted: u64,
    /// What they cost together.
    pub cost: u64,
    /// Requests denied.
    pub denied: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.granted = self.granted.saturating_add(other.granted);
        self.cost = self.cost.saturating_add(other.cost);
        self.denied = self.denied.saturating_add(other.denied);
    }
}

/// Usage of one name in one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct UsageRecord {
    pub(super) counts: Counts,
    /// For a key: the rule that decided last.
    pub(super) policy: Option<String>,
}

/// A line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuditRecord {
    pub(super) wall_ms: u64,
    /// Cluster time and log index, for what stands in an entry.
    pub(super) entry: Option<(u64, u64)>,
    pub(super) event: Audit,
}

/// What a volume knows of itself; written in the batch that changes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct VolumeHeader {
    /// Wall clock of its beginning and of its last record.
    pub(super) opened_ms: u64,
    pub(super) last_ms: u64,
    /// The last log index that was recorded, here or in an earlier volume.
    pub(super) index: u64,
    /// Cluster time of the first and last entry in it.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// The number of the next line of the audit trail.
    pub(super) audit_next: u64,
}

/// The bytes of a record.
pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(record, vec![FORMAT])
}

/// The record of these bytes, if they are one to the last byte.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (FORMAT, body) = bytes.split_first().map(|(format, body)| (*format, body))? else { return None };
    let (record, rest) = postcard::take_from_bytes(body).ok()?;
    rest.is_empty().then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_flipped_ones_do_no_harm() {
        let permit = PermitRecord {
            slot_ns: 6_000_000_000,
            at_ns: 1,
            wall_ms: 1_700_000_000_000,
            cost: 2,
            policy: Some("p".to_owned()),
            worker: Some("w-1".to_owned()),
        };
        let event = Audit::Membership { voters: vec![1, 2, 3], learners: vec![4] };
        let audit = AuditRecord { wall_ms: 5, entry: Some((7, 8)), event };
        let (permit_bytes, audit_bytes) = (encode(&permit).unwrap(), encode(&audit).unwrap());
        assert_eq!((decode(&permit_bytes), decode(&audit_bytes)), (Some(permit), Some(audit)));
        for bytes in [permit_bytes, audit_bytes] {
            for at in 0..bytes.len() {
                for mask in [0x01, 0x80, 0xff] {
                    let mut bad = bytes.clone();
                    bad[at] ^= mask;
                    let _ = decode::<PermitRecord>(&bad);
                    let _ = decode::<AuditRecord>(&bad);
                }
                assert_eq!(decode::<PermitRecord>(&bytes[..at]), None, "cut at {at}");
            }
        }
        assert_eq!(decode::<Counts>(&[]), None);
        assert_eq!(decode::<Counts>(&[FORMAT + 1, 0, 0, 0]), None, "another format");
        assert_eq!(decode::<Counts>(&[FORMAT, 0, 0, 0, 0]), None, "a byte too many");
    }

    /// The bytes of format 1, as they lie on disks.
    #[test]
    fn the_format_stays() {
        let usage = UsageRecord { counts: Counts { granted: 1, cost: 300, denied: 0 }, policy: Some("p".to_owned()) };
        assert_eq!(encode(&usage).unwrap(), [1, 1, 0xac, 2, 0, 1, 1, b'p']);
        let audit = AuditRecord { wall_ms: 1, entry: None, event: Audit::Leader { node: 2, term: 3 } };
        assert_eq!(encode(&audit).unwrap(), [1, 1, 0, 4, 2, 3]);
    }
}
