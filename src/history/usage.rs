//! Rows of usage: what happened in one minute to the names of a group. Pure.
//!
//! A row has the counts of its minute for everything, for policies or for keys, whichever names are in its group, and for keys
//! those of every second in it.
//!
//! Invariants
//! - A name may stand in several rows of a minute, in one of them once: what happened is the sum of them.
//! - A row does not grow past [`ROW_BYTES`]; what comes then goes to another.

use super::desk::Second;
use super::place::group_of;
use super::record::{Counts, ROW_BYTES, decode, encode};
use crate::limiter::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// About what a name takes beside itself, and a second.
const NAME_BYTES: usize = 10;
const SECOND_BYTES: usize = 5;

/// The width of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grain {
    /// One second of cluster time.
    Second,
    /// One minute of cluster time.
    Minute,
}

impl Grain {
    const fn ns(self) -> u64 {
        match self {
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
        }
    }

    /// The number of the bucket that an instant falls into.
    pub(super) const fn bucket(self, at: Time) -> u64 {
        at.0 / self.ns()
    }

    /// Where a bucket begins.
    pub(super) const fn start(self, bucket: u64) -> Time {
        Time(bucket.saturating_mul(self.ns()))
    }
}

/// Seconds in a minute.
pub(super) const MINUTE_SECONDS: u64 = 60;

/// Whose usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Scope<'a> {
    /// Everything.
    All,
    /// What one stored rule decided.
    Policy(&'a str),
    /// One key.
    Key(&'a str),
}

impl Scope<'_> {
    pub(super) fn group(&self) -> u16 {
        match self {
            Self::All => group_of(""),
            Self::Policy(name) | Self::Key(name) => group_of(name),
        }
    }
}

/// What happened to one name in one minute, or in a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage<'a> {
    pub(super) scope: Scope<'a>,
    /// For a key: the rule that decided last.
    pub(super) policy: Option<&'a str>,
    pub(super) counts: Counts,
    /// For a key: the seconds of the minute in which something happened, and what.
    pub(super) seconds: &'a [Second],
}

impl Usage<'_> {
    /// Its seconds, counted from the beginning of the minute.
    fn seconds(&self) -> impl Iterator<Item = (u8, Counts)> {
        let second = |second: &Second| u8::try_from(second.number % MINUTE_SECONDS).unwrap_or_default();
        self.seconds.iter().map(move |of| (second(of), of.counts))
    }
}

/// The same in a row. Whoever asks for minutes only passes over the seconds unread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record<'a> {
    #[serde(borrow)]
    pub(super) scope: Scope<'a>,
    pub(super) policy: Option<&'a str>,
    pub(super) counts: Counts,
    seconds: &'a [u8],
}

impl Record<'_> {
    /// What happened in single seconds, as far as it can be read.
    pub(super) fn seconds(&self) -> impl Iterator<Item = (u8, Counts)> {
        let mut rest = self.seconds;
        std::iter::from_fn(move || {
            let (second, others) = postcard::take_from_bytes(rest).ok()?;
            rest = others;
            Some(second)
        })
    }
}

/// The records of a row, if it is one.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<Record<'_>>> {
    decode(bytes)
}

/// The rows of this usage.
pub(super) fn rows(usage: &[Usage<'_>]) -> Result<Vec<Vec<u8>>, postcard::Error> {
    let (mut rows, mut row, mut bytes) = (Vec::new(), Row::default(), 0);
    for usage in usage {
        let more = bytes_of(usage);
        if bytes > 0 && bytes + more > ROW_BYTES {
            rows.push(row.encode()?);
            (row, bytes) = (Row::default(), 0);
        }
        row.add(usage.scope, usage.policy, usage.counts, usage.seconds());
        bytes += more;
    }
    if bytes > 0 {
        rows.push(row.encode()?);
    }
    Ok(rows)
}

/// A row of the same minute and group with this usage added, unless it cannot be read or would be too large.
pub(super) fn added(before: &[u8], usage: &[Usage<'_>]) -> Result<Option<Vec<u8>>, postcard::Error> {
    let more: usize = usage.iter().map(bytes_of).sum();
    if before.len() + more > ROW_BYTES {
        return Ok(None);
    }
    let Some(records) = read(before) else { return Ok(None) };
    let mut row = Row::default();
    for record in &records {
        row.add(record.scope, record.policy, record.counts, record.seconds());
    }
    for usage in usage {
        row.add(usage.scope, usage.policy, usage.counts, usage.seconds());
    }
    row.encode().map(Some)
}

/// About what it takes in a row.
fn bytes_of(usage: &Usage<'_>) -> usize {
    let name = match usage.scope {
        Scope::All => 0,
        Scope::Policy(name) | Scope::Key(name) => name.len(),
    };
    NAME_BYTES + name + usage.policy.map_or(0, str::len) + SECOND_BYTES * usage.seconds.len()
}

/// A row that is being put together.
#[derive(Debug, Default)]
struct Row<'a> {
    names: BTreeMap<Scope<'a>, Sums<'a>>,
}

#[derive(Debug, Default)]
struct Sums<'a> {
    policy: Option<&'a str>,
    counts: Counts,
    seconds: Vec<(u8, Counts)>,
}

impl<'a> Row<'a> {
    fn add(
        &mut self,
        scope: Scope<'a>,
        policy: Option<&'a str>,
        counts: Counts,
        seconds: impl Iterator<Item = (u8, Counts)>,
    ) {
        let sums = self.names.entry(scope).or_default();
        sums.policy = policy;
        sums.counts += counts;
        for (second, counts) in seconds {
            match sums.seconds.iter_mut().rev().find(|(known, _)| *known == second) {
                Some((_, known)) => *known += counts,
                None => sums.seconds.push((second, counts)),
            }
        }
    }

    fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        let packed = |sums: &Sums<'a>| {
            sums.seconds.iter().try_fold(Vec::new(), |bytes, second| postcard::to_extend(second, bytes))
        };
        let seconds = self.names.values().map(packed).collect::<Result<Vec<_>, _>>()?;
        let records = self.names.iter().zip(&seconds).map(|((scope, sums), seconds)| {
            let Sums { policy, counts, .. } = *sums;
            Record { scope: *scope, policy, counts, seconds }
        });
        encode(&records.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::NO_NAME;
    use super::*;

    const ONE: Counts = Counts { granted: 1, cost: 300, denied: 0 };
    const TWO: Counts = Counts { granted: 2, cost: 600, denied: 0 };

    fn of<'a>(scope: Scope<'a>, counts: Counts, seconds: &'a [Second]) -> Usage<'a> {
        Usage { scope, policy: Some("p"), counts, seconds }
    }

    /// One permit, a second of the hundredth minute.
    const fn at(second: u64) -> Second {
        Second { number: 6_000 + second, counts: ONE, policy: NO_NAME }
    }

    fn seconds(row: &[u8], scope: Scope<'_>) -> Vec<(u8, Counts)> {
        read(row).unwrap().iter().filter(|record| record.scope == scope).flat_map(Record::seconds).collect()
    }

    #[test]
    fn a_row_is_added_to_name_by_name_and_second_by_second() {
        let (key, other) = (Scope::Key("k"), Scope::Key("o"));
        let row = rows(&[of(key, ONE, &[at(7)]), of(Scope::All, ONE, &[])]).unwrap().remove(0);
        let (both, one) = ([at(7), at(8)], [at(8)]);
        let later = [Usage { policy: None, ..of(key, TWO, &both) }, of(other, ONE, &one)];
        let row = added(&row, &later).unwrap().unwrap();
        let found = read(&row).unwrap();
        let found: Vec<_> = found.iter().map(|record| (record.scope, record.policy, record.counts.granted)).collect();
        assert_eq!(found, [(Scope::All, Some("p"), 1), (key, None, 3), (other, Some("p"), 1)]);
        assert_eq!(seconds(&row, key), [(7, TWO), (8, ONE)]);
        assert_eq!(seconds(&row, other), [(8, ONE)]);
        assert_eq!(added(b"no row", &later).unwrap(), None);
    }

    #[test]
    fn rows_stay_small() {
        let names: Vec<_> = (0..1_000).map(|number| format!("customer/{number}")).collect();
        let seconds = [at(1)];
        let usage: Vec<_> = names.iter().map(|name| of(Scope::Key(name), ONE, &seconds)).collect();
        let many = rows(&usage).unwrap();
        assert!(many.len() > 3 && many.iter().all(|row| row.len() <= ROW_BYTES), "{} rows", many.len());
        assert_eq!(many.iter().map(|row| read(row).unwrap().len()).sum::<usize>(), 1_000);
        assert_eq!(added(&many[0], &usage).unwrap(), None, "that goes to another row");
        assert!(rows(&[]).unwrap().is_empty());
    }

    /// The bytes of format 2, as they lie on disks.
    #[test]
    fn the_format_stays() {
        let all = Usage { policy: None, ..of(Scope::All, ONE, &[]) };
        let row = rows(&[all, of(Scope::Policy("p"), ONE, &[]), of(Scope::Key("k"), ONE, &[at(59)])]).unwrap();
        let records = [
            &[0, 0, 1, 0xac, 2, 0, 0][..],
            &[1, 1, b'p', 1, 1, b'p', 1, 0xac, 2, 0, 0],
            &[2, 1, b'k', 1, 1, b'p', 1, 0xac, 2, 0, 5, 59, 1, 0xac, 2, 0],
        ];
        assert_eq!(row, [[&[2, 3], records.concat().as_slice()].concat()]);
        for at in 0..row[0].len() {
            assert_eq!(read(&row[0][..at]), None, "cut at {at}");
            let mut bad = row[0].clone();
            bad[at] ^= 0xff;
            let _ = read(&bad).iter().flatten().flat_map(Record::seconds).count();
        }
    }

    #[test]
    fn buckets_are_of_cluster_time() {
        let at = Time(61_500_000_000);
        assert_eq!((Grain::Second.bucket(at), Grain::Minute.bucket(at)), (61, 1));
        assert_eq!((Grain::Second.start(61), Grain::Minute.start(1)), (Time(61_000_000_000), Time(60_000_000_000)));
    }
}
