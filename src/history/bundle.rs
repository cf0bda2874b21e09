//! Rows of permits and denials: what one write brought for the keys of a group, packed. Pure.
//!
//! Lines follow one another closely in number and in time, and a few names stand in many of them. So a row has a table of
//! its names, and a line says how it differs from the line of its kind before it, whichever key that was of. A permit takes 10
//! to 20 bytes then.
//!
//! Invariants
//! - The lines of a key come in the order in which they were packed, in a row and from row to row.
//! - A row is closed once it has [`ROW_BYTES`], so it is no larger than that and one line.

use super::names::{NO_NAME, NameId, position};
use super::record::{DeniedRecord, PermitRecord, ROW_BYTES, decode, encode, name};
use serde::{Deserialize, Serialize};
use std::mem;

/// About what a line takes, and what a key does beside its name.
const PERMIT_BYTES: usize = 18;
const DENIAL_BYTES: usize = 14;
const RELEASE_BYTES: usize = 4;
const KEY_BYTES: usize = 5;

/// What is in a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bundle<'a> {
    /// The table of the lines' names.
    pub(super) names: Vec<&'a str>,
    pub(super) keys: Vec<Lines<'a>>,
}

/// What a row has of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lines<'a> {
    pub(super) key: &'a str,
    /// Oldest first, like the others.
    pub(super) permits: Vec<PermitRecord>,
    /// Numbers of permits that were given back, here or in an earlier row.
    pub(super) released: Vec<u64>,
    pub(super) denied: Vec<DeniedRecord>,
}

impl Lines<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.permits.is_empty() && self.released.is_empty() && self.denied.is_empty()
    }
}

/// The bytes of a row.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    names: Vec<&'a str>,
    #[serde(borrow)]
    parts: Vec<Part<'a>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Part<'a> {
    key: &'a str,
    permits: Vec<PackedPermit>,
    released: Vec<i64>,
    denied: Vec<PackedDenial>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PackedPermit {
    permit: i64,
    at_ns: i64,
    wall_ms: i64,
    /// After the decision, not after the last line.
    slot_ns: i64,
    cost: u64,
    policy: NameId,
    worker: NameId,
}

#[derive(Debug, Serialize, Deserialize)]
struct PackedDenial {
    at_ns: i64,
    wall_ms: i64,
    cost: u64,
    reason: NameId,
    policy: NameId,
    worker: NameId,
}

/// The last line of each kind: the next one says how it differs. Every difference of two numbers has its sum.
#[derive(Debug, Default)]
struct Last {
    permit: u64,
    permit_at_ns: u64,
    permit_wall_ms: u64,
    released: u64,
    denied_at_ns: u64,
    denied_wall_ms: u64,
}

fn difference(last: &mut u64, next: u64) -> i64 {
    let difference = next.wrapping_sub(*last).cast_signed();
    *last = next;
    difference
}

fn sum(last: &mut u64, difference: i64) -> u64 {
    *last = last.wrapping_add_signed(difference);
    *last
}

/// Packs lines into rows, key after key.
#[derive(Debug)]
pub(super) struct Packer<'a, N> {
    /// The table of whoever has the lines.
    texts: &'a [N],
    /// Where each of those stands in the table of the row, and which do.
    ids: Vec<NameId>,
    used: Vec<usize>,
    row: Row<'a>,
    last: Last,
    bytes: usize,
    bytes_max: usize,
    rows: Vec<Vec<u8>>,
}

impl<'a, N: AsRef<str>> Packer<'a, N> {
    /// For lines with these names.
    pub(super) fn new(texts: &'a [N]) -> Self {
        Self::with_rows_of(ROW_BYTES, texts)
    }

    fn with_rows_of(bytes_max: usize, texts: &'a [N]) -> Self {
        let (ids, used, row, last) = (vec![NO_NAME; texts.len()], Vec::new(), Row::default(), Last::default());
        Self { texts, ids, used, row, last, bytes: 0, bytes_max, rows: Vec::new() }
    }

    pub(super) fn permit(&mut self, key: &'a str, record: &PermitRecord) -> Result<(), postcard::Error> {
        let packed = PackedPermit {
            permit: difference(&mut self.last.permit, record.permit),
            at_ns: difference(&mut self.last.permit_at_ns, record.at_ns),
            wall_ms: difference(&mut self.last.permit_wall_ms, record.wall_ms),
            slot_ns: record.slot_ns.wrapping_sub(record.at_ns).cast_signed(),
            cost: record.cost,
            policy: self.name(record.policy),
            worker: self.name(record.worker),
        };
        self.part(key).permits.push(packed);
        self.grown_by(PERMIT_BYTES)
    }

    /// A permit that was given back. To come after the permit, if that is of the same write.
    pub(super) fn released(&mut self, key: &'a str, permit: u64) -> Result<(), postcard::Error> {
        let packed = difference(&mut self.last.released, permit);
        self.part(key).released.push(packed);
        self.grown_by(RELEASE_BYTES)
    }

    pub(super) fn denied(&mut self, key: &'a str, record: &DeniedRecord) -> Result<(), postcard::Error> {
        let packed = PackedDenial {
            at_ns: difference(&mut self.last.denied_at_ns, record.at_ns),
            wall_ms: difference(&mut self.last.denied_wall_ms, record.wall_ms),
            cost: record.cost,
            reason: self.name(record.reason),
            policy: self.name(record.policy),
            worker: self.name(record.worker),
        };
        self.part(key).denied.push(packed);
        self.grown_by(DENIAL_BYTES)
    }

    /// The rows since the last time, in their order; none for nothing.
    pub(super) fn rows(&mut self) -> Result<Vec<Vec<u8>>, postcard::Error> {
        self.close()?;
        Ok(mem::take(&mut self.rows))
    }

    /// The number of a name in this row.
    fn name(&mut self, id: NameId) -> NameId {
        let Some(at) = position(id).filter(|at| *at < self.texts.len()) else { return NO_NAME };
        if self.ids[at] == NO_NAME {
            let text = name(self.texts[at].as_ref());
            self.row.names.push(text);
            self.used.push(at);
            self.bytes += text.len() + 1;
            // No more names in a row than bytes.
            self.ids[at] = NameId::try_from(self.row.names.len()).unwrap_or(NO_NAME);
        }
        self.ids[at]
    }

    fn part(&mut self, key: &'a str) -> &mut Part<'a> {
        let parts = &mut self.row.parts;
        if parts.last().is_none_or(|part| part.key != key) {
            self.bytes += key.len() + KEY_BYTES;
            parts.push(Part { key, ..Part::default() });
        }
        let last = parts.len() - 1;
        &mut parts[last]
    }

    fn grown_by(&mut self, bytes: usize) -> Result<(), postcard::Error> {
        self.bytes += bytes;
        if self.bytes >= self.bytes_max { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), postcard::Error> {
        if !self.row.parts.is_empty() {
            self.rows.push(encode(&self.row)?);
        }
        self.row.names.clear();
        self.row.parts.clear();
        self.used.drain(..).for_each(|at| self.ids[at] = NO_NAME);
        self.last = Last::default();
        self.bytes = 0;
        Ok(())
    }
}

impl<'a> Bundle<'a> {
    /// What is in a row, if it is one.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let Row { names, parts } = decode::<Row<'_>>(bytes)?;
        let known = |id: NameId| position(id).is_none_or(|at| at < names.len()).then_some(id);
        let mut last = Last::default();
        let mut keys = Vec::with_capacity(parts.len());
        for part in parts {
            let permits = part.permits.into_iter().map(|packed| {
                let permit = sum(&mut last.permit, packed.permit);
                let at_ns = sum(&mut last.permit_at_ns, packed.at_ns);
                let wall_ms = sum(&mut last.permit_wall_ms, packed.wall_ms);
                let slot_ns = at_ns.wrapping_add_signed(packed.slot_ns);
                let (policy, worker) = (known(packed.policy)?, known(packed.worker)?);
                Some(PermitRecord { permit, slot_ns, at_ns, wall_ms, cost: packed.cost, policy, worker })
            });
            let permits = permits.collect::<Option<_>>()?;
            let released = part.released.into_iter().map(|packed| sum(&mut last.released, packed)).collect();
            let denied = part.denied.into_iter().map(|packed| {
                let at_ns = sum(&mut last.denied_at_ns, packed.at_ns);
                let wall_ms = sum(&mut last.denied_wall_ms, packed.wall_ms);
                let (policy, worker) = (known(packed.policy)?, known(packed.worker)?);
                Some(DeniedRecord { at_ns, wall_ms, cost: packed.cost, reason: known(packed.reason)?, policy, worker })
            });
            let denied = denied.collect::<Option<_>>()?;
            keys.push(Lines { key: part.key, permits, released, denied });
        }
        Some(Self { names, keys })
    }

    /// The row of this, unless there is nothing in it. It is one row, however large: it was read from one.
    pub(super) fn packed(&self) -> Result<Option<Vec<u8>>, postcard::Error> {
        let mut packer = Packer::with_rows_of(usize::MAX, &self.names);
        for Lines { key, permits, released, denied } in &self.keys {
            permits.iter().try_for_each(|record| packer.permit(key, record))?;
            released.iter().try_for_each(|permit| packer.released(key, *permit))?;
            denied.iter().try_for_each(|record| packer.denied(key, record))?;
        }
        Ok(packer.rows()?.pop())
    }

    pub(super) fn name(&self, id: NameId) -> Option<&'a str> {
        self.names.get(position(id)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 3] = ["api", "w-1", "not_free_now"];

    fn permit(permit: u64, at_ns: u64) -> PermitRecord {
        let worker = if permit % 2 == 1 { 2 } else { NO_NAME };
        let wall_ms = 1_700_000_000_000_u64.wrapping_add(permit);
        PermitRecord { permit, slot_ns: at_ns.wrapping_add(5), at_ns, wall_ms, cost: 2, policy: 1, worker }
    }

    fn denied(at_ns: u64) -> DeniedRecord {
        DeniedRecord { at_ns, wall_ms: 9, cost: 1, reason: 3, policy: NO_NAME, worker: 2 }
    }

    fn bundle(keys: Vec<Lines<'static>>) -> Bundle<'static> {
        Bundle { names: NAMES.to_vec(), keys }
    }

    #[test]
    fn lines_read_back_and_flipped_rows_do_no_harm() {
        let bundle = bundle(vec![
            Lines { key: "a", permits: vec![permit(7, 100), permit(9, 90)], released: vec![7, 3], denied: vec![] },
            Lines { key: "ü", permits: vec![permit(8, 0)], released: vec![], denied: vec![denied(80), denied(81)] },
        ]);
        let bytes = bundle.packed().unwrap().unwrap();
        assert_eq!(Bundle::read(&bytes), Some(bundle.clone()));
        assert_eq!([0, 1, 3, 4].map(|id| bundle.name(id)), [None, Some("api"), Some("not_free_now"), None]);
        for at in 0..bytes.len() {
            assert_eq!(Bundle::read(&bytes[..at]), None, "cut at {at}");
            for mask in [0x01, 0x80, 0xff] {
                let mut bad = bytes.clone();
                bad[at] ^= mask;
                let _ = Bundle::read(&bad);
            }
        }
    }

    #[test]
    fn names_that_nobody_needs_any_more_are_left_out() {
        let mut bundle =
            bundle(vec![Lines { key: "a", permits: vec![permit(2, 1)], released: vec![], denied: vec![] }]);
        let bytes = bundle.packed().unwrap().unwrap();
        assert_eq!(Bundle::read(&bytes).unwrap().names, ["api"]);
        bundle.keys.clear();
        assert_eq!(bundle.packed().unwrap(), None);
    }

    /// The bytes of format 2, as they lie on disks.
    #[test]
    fn the_format_stays() {
        let record = PermitRecord { wall_ms: 9, worker: NO_NAME, ..permit(3, 4) };
        let permits = vec![record, PermitRecord { permit: 4, wall_ms: 8, ..record }];
        let bundle = bundle(vec![Lines { key: "k", permits, released: vec![3], denied: vec![denied(1)] }]);
        let names = [&[2, 3, 3][..], b"api", &[12], b"not_free_now", &[3], b"w-1"].concat();
        let permits = [2, 6, 8, 18, 10, 2, 1, 0, 2, 0, 1, 10, 2, 1, 0];
        let expected = [&names[..], &[1, 1, b'k'], &permits, &[1, 6], &[1, 2, 18, 1, 2, 0, 3]].concat();
        assert_eq!(bundle.packed().unwrap().unwrap(), expected);
    }

    #[test]
    fn many_lines_become_many_rows_in_their_order() {
        let records: Vec<_> = (1..=2_000).map(|number| permit(number, number * 1_000_000_000)).collect();
        let mut packer = Packer::new(&NAMES);
        for record in &records {
            packer.permit("busy", record).unwrap();
        }
        packer.released("busy", 1).unwrap();
        let rows = packer.rows().unwrap();
        assert!(rows.len() > 4 && rows.iter().all(|row| row.len() < ROW_BYTES), "{} rows", rows.len());
        let bytes: usize = rows.iter().map(Vec::len).sum();
        assert!(bytes < 20 * records.len(), "{bytes} bytes");
        let bundles: Vec<_> = rows.iter().map(|row| Bundle::read(row).unwrap()).collect();
        let found = bundles.iter().flat_map(|bundle| bundle.keys[0].permits.iter().map(move |record| (bundle, record)));
        let found =
            found.map(|(bundle, record)| (record.permit, bundle.name(record.policy), bundle.name(record.worker)));
        assert!(found.eq((1..=2_000).map(|number| (number, Some("api"), (number % 2 == 1).then_some("w-1")))));
        assert_eq!(bundles.last().unwrap().keys[0].released, [1]);
        assert!(packer.rows().unwrap().is_empty());
    }

    type Numbers = (u64, u64, u64, u64);

    proptest! {
        /// Whatever the numbers are: time may stand still or go back, and a slot may lie before its decision.
        #[test]
        fn any_numbers_read_back(numbers in prop::collection::vec(any::<Numbers>(), 1..20)) {
            let one = |(number, slot_ns, at_ns, wall_ms): &Numbers| PermitRecord { slot_ns: *slot_ns, wall_ms: *wall_ms, ..permit(*number, *at_ns) };
            let permits: Vec<_> = numbers.iter().map(one).collect();
            let denied = numbers.iter().map(|(cost, _, at_ns, wall_ms)| DeniedRecord { cost: *cost, wall_ms: *wall_ms, ..denied(*at_ns) }).collect();
            let released = numbers.iter().map(|(number, ..)| *number).collect();
            let mixed = Lines { key: "k", permits: permits.clone(), released, denied };
            let keys = vec![mixed, Lines { key: "l", permits, released: vec![], denied: vec![] }];
            let bytes = bundle(keys.clone()).packed().unwrap().unwrap();
            let found = Bundle::read(&bytes).unwrap();
            let name = |id| found.name(id);
            for (found, keys) in found.keys.iter().zip(&keys) {
                prop_assert_eq!(&found.released, &keys.released);
                let plain = |record: &PermitRecord| PermitRecord { policy: NO_NAME, worker: NO_NAME, ..*record };
                prop_assert!(found.permits.iter().map(plain).eq(keys.permits.iter().map(plain)));
                prop_assert!(found.denied.iter().map(|record| record.at_ns).eq(keys.denied.iter().map(|record| record.at_ns)));
                prop_assert!(found.denied.iter().all(|record| name(record.reason) == Some("not_free_now")));
            }
        }
    }
}
