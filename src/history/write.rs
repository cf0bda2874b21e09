//! Writing down what was gathered: everything in one batch, and then no more of a busy key than its share.
//!
//! Invariants
//! - One batch has the lines, the counts and the audit trail of all entries since the last one, and the index of the last.
//! - A write costs a few changes of the tree for every group that something happened in, however many events there were.
//! - The newest volume keeps the newest [`PERMITS_PER_KEY`] permits and [`DENIALS_PER_KEY`] denials of a key: its share. Of
//!   what a group has beyond the shares of its keys, nothing is removed before it is half of all, so that a row is not written
//!   again for every key in it. So a busy key that is alone in its group has up to two shares, and what is beyond shares
//!   never takes more room than what is not. Trimming is a batch of its own and only removes.

use super::bundle::{Bundle, Lines, Packer};
use super::desk::{DENIALS_PER_KEY, Desk, Doings, Gathered, PERMITS_PER_KEY, Second};
use super::place::{Kind, Place, group_of, lines_of};
use super::record::{AuditRecord, Counts, VolumeHeader, encode, name};
use super::store::{Broken, Store, Volume};
use super::usage::{self, MINUTE_SECONDS, Scope, Usage};
use crate::limiter::Key;
use std::collections::{BTreeSet, HashMap};

/// Groups that are trimmed after one write, so that none takes long. Others wait for the next.
const TRIMMED_MAX: usize = 32;
/// Keys whose lines in the newest volume are counted for trimming. Past it counting starts over, and a key may get a
/// little more than its share.
const TALLIES_MAX: usize = 65_536;

/// What the writer knows of the newest volume without looking. It may forget: that costs a few rows more.
#[derive(Debug, Default)]
pub(super) struct Margin {
    /// Lines of a key: permits, denials.
    tallies: HashMap<Key, [usize; 2]>,
    groups: HashMap<(Kind, u16), Tally>,
    /// Minute and number of the last row of usage of each group; more of that minute may be added to it.
    open: HashMap<u16, (u64, u64)>,
}

/// Lines of one kind and group.
#[derive(Debug, Default)]
struct Tally {
    lines: usize,
    /// Those beyond the shares of their keys.
    beyond: usize,
}

/// How many lines of a kind one key may have.
fn share(kind: Kind) -> usize {
    match kind {
        Kind::Permits => PERMITS_PER_KEY,
        Kind::Denials => DENIALS_PER_KEY,
    }
}

impl Margin {
    /// Counts the lines of a write. Says which groups have too many beyond shares now.
    fn count(&mut self, gathered: &Gathered) -> BTreeSet<(Kind, u16)> {
        if self.tallies.len() >= TALLIES_MAX {
            self.tallies.clear();
            self.groups.clear();
        }
        let mut due = BTreeSet::new();
        for (key, Doings { permits, denied, .. }) in &gathered.keys {
            let more = [(Kind::Permits, permits.len()), (Kind::Denials, denied.len())];
            if more.iter().all(|(_, more)| *more == 0) {
                continue;
            }
            let lines = self.tallies.entry(key.clone()).or_default();
            for ((kind, more), lines) in more.into_iter().zip(lines) {
                let place = (kind, group_of(key.as_str()));
                let group = self.groups.entry(place).or_default();
                let beyond = lines.saturating_sub(share(kind));
                *lines += more;
                group.lines += more;
                group.beyond += lines.saturating_sub(share(kind)) - beyond;
                if group.beyond > share(kind).max(group.lines / 2) {
                    due.insert(place);
                }
            }
        }
        due
    }
}

impl Store {
    /// Writes what is on the desk. If that fails it is lost, and the store with it.
    pub(super) fn write(&self, desk: &mut Desk) -> Result<(), Broken> {
        let Some(gathered) = desk.take() else { return Ok(()) };
        let mut margin = self.margin();
        let header = {
            let row = self.row();
            let Some(newest) = row.volumes.last() else { return Ok(()) };
            let mut writing = Writing { newest, header: newest.header.clone(), ops: sled::Batch::default() };
            writing.lines(&gathered)?;
            writing.usage(&gathered, &mut margin)?;
            writing.audit(&gathered.audit)?;
            writing.commit(&gathered)?
        };
        if let Some(newest) = self.row_mut().volumes.last_mut() {
            newest.header = header;
        }
        margin
            .count(&gathered)
            .into_iter()
            .take(TRIMMED_MAX)
            .try_for_each(|(kind, group)| self.trim(kind, group, &mut margin))
    }

    /// Removes all but the newest lines of every key of a group from the newest volume, and the releases of what is gone.
    fn trim(&self, kind: Kind, group: u16, margin: &mut Margin) -> Result<(), Broken> {
        let row = self.row();
        let Some(newest) = row.volumes.last() else { return Ok(()) };
        let mut ops = sled::Batch::default();
        let mut kept: HashMap<String, Kept> = HashMap::new();
        for item in newest.db.scan_prefix(lines_of(kind, group, None)).rev() {
            let (place, value) = item?;
            let Some(mut bundle) = Bundle::read(&value) else { continue };
            let mut is_changed = false;
            for own in &mut bundle.keys {
                let kept = match kept.get_mut(own.key) {
                    Some(kept) => kept,
                    None => kept.entry(own.key.to_owned()).or_default(),
                };
                is_changed |= kept.keep_of(own, share(kind));
            }
            if is_changed {
                bundle.keys.retain(|lines| !lines.is_empty());
                match bundle.packed()? {
                    Some(row) => ops.insert(place, row),
                    None => ops.remove(place),
                }
            }
        }
        newest.db.apply_batch(ops)?;
        for (key, kept) in &kept {
            if let Some(lines) = margin.tallies.get_mut(key.as_str()) {
                lines[kind as usize] = kept.lines;
            }
        }
        margin.groups.insert((kind, group), Tally { lines: kept.values().map(|kept| kept.lines).sum(), beyond: 0 });
        Ok(())
    }
}

/// What is kept of a key, from the newest line on.
#[derive(Debug, Default)]
struct Kept {
    lines: usize,
    /// The number of the oldest permit.
    oldest: u64,
}

impl Kept {
    /// Cuts off what is beyond the share. Says whether that was anything.
    fn keep_of(&mut self, own: &mut Lines<'_>, share: usize) -> bool {
        // A row has lines of one kind.
        let (had, had_released) = (own.permits.len() + own.denied.len(), own.released.len());
        let gone = had.saturating_sub(share - self.lines);
        self.lines += had - gone;
        own.permits.drain(..gone.min(own.permits.len()));
        own.denied.drain(..gone.min(own.denied.len()));
        self.oldest = own.permits.first().map_or(self.oldest, |first| first.permit);
        if self.lines == share {
            own.released.retain(|permit| *permit >= self.oldest);
        }
        gone > 0 || own.released.len() < had_released
    }
}

/// One batch for the newest volume.
struct Writing<'a> {
    newest: &'a Volume,
    header: VolumeHeader,
    ops: sled::Batch,
}

impl Writing<'_> {
    /// Permits, releases and denials.
    fn lines(&mut self, gathered: &Gathered) -> Result<(), Broken> {
        let mut keys: Vec<_> =
            gathered.keys.iter().map(|(key, of)| (group_of(key.as_str()), key.as_str(), of)).collect();
        keys.sort_unstable_by_key(|(group, ..)| *group);
        let names = gathered.names.texts();
        let (mut permits, mut denials) = (Packer::new(names), Packer::new(names));
        for keys in keys.chunk_by(|(group, ..), (next, ..)| group == next) {
            for (_, key, doings) in keys {
                doings.permits.iter().try_for_each(|record| permits.permit(key, record))?;
                // Behind the permits: whoever reads the newest first meets a release before its permit.
                doings.released().try_for_each(|permit| permits.released(key, permit))?;
                doings.denied.iter().try_for_each(|record| denials.denied(key, record))?;
            }
            for (kind, rows) in [(Kind::Permits, permits.rows()?), (Kind::Denials, denials.rows()?)] {
                for row in rows {
                    let (group, number) = (keys[0].0, self.next_number());
                    self.ops.insert(Place::Lines { kind, group, number }.bytes(), row);
                }
            }
        }
        Ok(())
    }

    /// Counts of everything, of policies and of keys.
    fn usage(&mut self, gathered: &Gathered, margin: &mut Margin) -> Result<(), Broken> {
        let mut usage = usage_of(gathered);
        usage.sort_by_key(|(minute, group, _)| (*minute, *group));
        for same in usage.chunk_by(|(minute, group, _), next| (*minute, *group) == (next.0, next.1)) {
            let (minute, group, _) = same[0];
            let usage: Vec<_> = same.iter().map(|(.., usage)| *usage).collect();
            if let Some((_, number)) = margin.open.get(&group).filter(|(open, _)| *open == minute) {
                let place = Place::Usage { minute, group, number: *number }.bytes();
                if let Some(before) = self.newest.db.get(&place)?
                    && let Some(row) = usage::added(&before, &usage)?
                {
                    self.ops.insert(place, row);
                    continue;
                }
            }
            for row in usage::rows(&usage)? {
                let number = self.next_number();
                self.ops.insert(Place::Usage { minute, group, number }.bytes(), row);
                margin.open.insert(group, (minute, number));
            }
        }
        Ok(())
    }

    fn audit(&mut self, lines: &[AuditRecord]) -> Result<(), Broken> {
        for line in lines {
            self.ops.insert(Place::Audit { number: self.header.audit_next }.bytes(), encode(line)?);
            self.header.audit_next += 1;
        }
        Ok(())
    }

    /// Writes all of it with the index, and says what the header is now.
    fn commit(self, gathered: &Gathered) -> Result<VolumeHeader, Broken> {
        let Self { newest, mut header, mut ops } = self;
        header.index = gathered.index;
        header.last_ms = gathered.wall_ms.max(header.last_ms);
        header.last_ns = gathered.last.map_or(header.last_ns, |last| last.0.max(header.last_ns));
        ops.insert(Place::Header.bytes(), encode(&header)?);
        newest.db.apply_batch(ops)?;
        Ok(header)
    }

    fn next_number(&mut self) -> u64 {
        self.header.row_next += 1;
        self.header.row_next
    }
}

/// What was counted, with its minute and its group.
fn usage_of(gathered: &Gathered) -> Vec<(u64, u16, Usage<'_>)> {
    let names = &gathered.names;
    let mut found = Vec::with_capacity(gathered.keys.len() + 1);
    let policies = names.texts().iter().zip(&gathered.policies);
    let policies = policies.map(|(policy, minutes)| (Scope::Policy(name(policy)), minutes));
    for (scope, minutes) in policies.chain([(Scope::All, &gathered.all)]) {
        let group = scope.group();
        let usage = |counts: &Counts| Usage { scope, policy: None, counts: *counts, seconds: &[] };
        found.extend(minutes.iter().map(|(minute, counts)| (*minute, group, usage(counts))));
    }
    for (key, doings) in &gathered.keys {
        let scope = Scope::Key(key.as_str());
        let group = scope.group();
        let minute = |second: &Second| second.number / MINUTE_SECONDS;
        for seconds in doings.seconds.chunk_by(|second, next| minute(second) == minute(next)) {
            let mut counts = Counts::default();
            for second in seconds {
                counts += second.counts;
            }
            let policy = seconds.last().and_then(|last| names.text(last.policy)).map(name);
            found.push((minute(&seconds[0]), group, Usage { scope, policy, counts, seconds }));
        }
    }
    found
}
