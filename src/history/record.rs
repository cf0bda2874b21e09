//! What is kept, and its one codec: a format byte, then postcard.
//!
//! Invariant: bytes that are no record of this format are `None`, whatever they are. Nothing read here is trusted.
//!
//! Not here: rows that hold many records (`bundle.rs`, `usage.rs`).

use super::event::Audit;
use super::names::NameId;
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// The first byte of every value. A database of another format is moved aside.
pub(super) const FORMAT: u8 = 2;

/// Bytes of a row past which another is begun. The store puts up to 16 rows into a page and pages over 128 KiB into files
/// of their own; rows of this size stay below that.
pub(super) const ROW_BYTES: usize = 6 * 1024;

/// Longest name of a policy or a worker, in bytes; keys have at most as many.
const NAME_BYTES_MAX: usize = 256;

/// A permit. Its names are numbers in a table that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PermitRecord {
    /// The fencing number.
    pub(super) permit: u64,
    /// Cluster time of the slot, in nanoseconds.
    pub(super) slot_ns: u64,
    /// Cluster time of the decision, in nanoseconds.
    pub(super) at_ns: u64,
    /// This node's wall clock when it took the record down.
    pub(super) wall_ms: u64,
    pub(super) cost: u64,
    pub(super) policy: NameId,
    pub(super) worker: NameId,
}

/// A denial. Its names are numbers in a table that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeniedRecord {
    /// Cluster time of the decision, in nanoseconds.
    pub(super) at_ns: u64,
    pub(super) wall_ms: u64,
    pub(super) cost: u64,
    pub(super) reason: NameId,
    pub(super) policy: NameId,
    pub(super) worker: NameId,
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
    /// The number of the next row.
    pub(super) row_next: u64,
    /// The number of the next line of the audit trail.
    pub(super) audit_next: u64,
}

/// The bytes of a record.
pub(super) fn encode(record: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_extend(record, vec![FORMAT])
}

/// The record of these bytes, if they are one to the last byte.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (FORMAT, body) = bytes.split_first().map(|(format, body)| (*format, body))? else { return None };
    let (record, rest) = postcard::take_from_bytes(body).ok()?;
    rest.is_empty().then_some(record)
}

/// A name as it is kept.
pub(super) fn name(text: &str) -> &str {
    cut(text, NAME_BYTES_MAX)
}

/// The beginning of a text, in whole characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_and_flipped_ones_do_no_harm() {
        let header = VolumeHeader { opened_ms: 1_700_000_000_000, index: 7, row_next: 300, ..VolumeHeader::default() };
        let event = Audit::Membership { voters: vec![1, 2, 3], learners: vec![4] };
        let audit = AuditRecord { wall_ms: 5, entry: Some((7, 8)), event };
        let (header_bytes, audit_bytes) = (encode(&header).unwrap(), encode(&audit).unwrap());
        assert_eq!((decode(&header_bytes), decode(&audit_bytes)), (Some(header), Some(audit)));
        (0..header_bytes.len())
            .for_each(|at| assert_eq!(decode::<VolumeHeader>(&header_bytes[..at]), None, "cut at {at}"));
        (0..audit_bytes.len())
            .for_each(|at| assert_eq!(decode::<AuditRecord>(&audit_bytes[..at]), None, "cut at {at}"));
        for bytes in [header_bytes, audit_bytes] {
            for (at, mask) in (0..bytes.len()).flat_map(|at| [0x01, 0x80, 0xff].map(|mask| (at, mask))) {
                let mut bad = bytes.clone();
                bad[at] ^= mask;
                let _ = decode::<VolumeHeader>(&bad);
                let _ = decode::<AuditRecord>(&bad);
            }
        }
        assert_eq!(decode::<Counts>(&[]), None);
        assert_eq!(decode::<Counts>(&[FORMAT + 1, 0, 0, 0]), None, "another format");
        assert_eq!(decode::<Counts>(&[FORMAT, 0, 0, 0, 0]), None, "a byte too many");
    }

    /// The bytes of format 2, as they lie on disks. Rows have theirs in `bundle.rs` and `usage.rs`.
    #[test]
    fn the_format_stays() {
        let (opened_ms, last_ms, index) = (1, 2, 300);
        let header = VolumeHeader { opened_ms, last_ms, index, first_ns: 4, last_ns: 5, row_next: 6, audit_next: 7 };
        assert_eq!(encode(&header).unwrap(), [2, 1, 2, 0xac, 2, 4, 5, 6, 7]);
        let audit = AuditRecord { wall_ms: 1, entry: None, event: Audit::Leader { node: 2, term: 3 } };
        assert_eq!(encode(&audit).unwrap(), [2, 1, 0, 4, 2, 3]);
    }

    #[test]
    fn long_names_are_cut_at_whole_characters() {
        assert_eq!((cut("aü", 2), cut("aü", 3), cut("", 5)), ("a", "aü", ""));
        assert_eq!(name(&"ü".repeat(1_000)), "ü".repeat(128));
    }
}
