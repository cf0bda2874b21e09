//! Reading what is kept. Every answer is bounded, and a row that cannot be read is left out.
//!
//! A look at one key reads the rows of its group, the newest first, and stops when it has enough.

use super::bundle::Bundle;
use super::place::{Kind, Place, audit_from, group_of, lines_of, usage_of};
use super::record::{AuditRecord, Counts, DeniedRecord, PermitRecord, decode};
use super::store::{Broken, Row, SECONDS_SHOWN, Store};
use super::usage::{self, Grain, MINUTE_SECONDS, Scope};
use super::view::{AuditLine, Bucket, Denied, Depth, KeyHistory, Permit, Usage};
use crate::limiter::{Key, Time};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Counts of names in minutes that one question about all keys looks at; with more in the hour, the oldest are left out.
const SCANNED_MAX: usize = 1_000_000;
/// Minutes in the hour that usage is about.
const HOUR_MINUTES: u64 = 60;

impl Store {
    /// What is remembered of a key.
    pub(super) fn key(&self, key: &Key, depth: &Depth, wall_ms: u64) -> Result<KeyHistory, Broken> {
        let row = self.row();
        let (seconds, minutes) = buckets(&row, key, depth)?;
        Ok(KeyHistory {
            until: row.until(),
            permits: self.permits(&row, key, depth.most, wall_ms)?,
            denied: self.denied(&row, key, depth.most, wall_ms)?,
            seconds,
            minutes,
        })
    }

    fn permits(&self, row: &Row, key: &Key, most: usize, wall_ms: u64) -> Result<Vec<Permit>, Broken> {
        let mut permits = Vec::new();
        // The newest rows come first, and a release lies in no earlier row than its permit.
        let mut released: HashSet<u64> = HashSet::new();
        for value in lines(row, Kind::Permits, key) {
            if permits.len() >= most {
                break;
            }
            let value = value?;
            let Some(bundle) = Bundle::read(&value) else { continue };
            for own in bundle.keys.iter().filter(|own| own.key == key.as_str()) {
                released.extend(&own.released);
                for record in own.permits.iter().rev() {
                    if permits.len() >= most || self.bounds.too_old(record.wall_ms, wall_ms) {
                        return Ok(permits);
                    }
                    permits.push(permit(record, &bundle, released.contains(&record.permit)));
                }
            }
        }
        Ok(permits)
    }

    fn denied(&self, row: &Row, key: &Key, most: usize, wall_ms: u64) -> Result<Vec<Denied>, Broken> {
        let mut denied = Vec::new();
        for value in lines(row, Kind::Denials, key) {
            if denied.len() >= most {
                break;
            }
            let value = value?;
            let Some(bundle) = Bundle::read(&value) else { continue };
            for own in bundle.keys.iter().filter(|own| own.key == key.as_str()) {
                for record in own.denied.iter().rev() {
                    if denied.len() >= most || self.bounds.too_old(record.wall_ms, wall_ms) {
                        return Ok(denied);
                    }
                    denied.push(denial(record, &bundle));
                }
            }
        }
        Ok(denied)
    }

    /// Usage over the last hour, of everything or of one policy.
    pub(super) fn usage(&self, policy: Option<&str>, most: usize) -> Result<Usage, Broken> {
        let row = self.row();
        let until = row.until();
        let first = Grain::Minute.bucket(until).saturating_sub(HOUR_MINUTES - 1);
        let since = Grain::Minute.start(first);
        let mut tally = Tally::default();
        let mut left = SCANNED_MAX;
        let hour = usage_of(first, None, None)..audit_from();
        let recent = row.volumes.iter().rev().filter(|volume| volume.header.last_ns >= since.0);
        for item in recent.flat_map(|volume| volume.db.range(hour.clone()).rev()) {
            let (place, value) = item?;
            let (Some(Place::Usage { minute, .. }), Some(records)) = (Place::read(&place), usage::read(&value)) else {
                continue;
            };
            if left < records.len() {
                left = 0;
                break;
            }
            left -= records.len();
            for record in &records {
                tally.add(minute, record, policy);
            }
        }
        Ok(tally.finish(since, until, most, left > 0))
    }

    /// The newest lines of the audit trail, newest first.
    pub(super) fn audit_lines(&self, most: usize) -> Result<Vec<AuditLine>, Broken> {
        let mut lines = Vec::new();
        let row = self.row();
        for item in row.volumes.last().into_iter().flat_map(|newest| newest.db.range(audit_from()..).rev()) {
            if lines.len() >= most {
                break;
            }
            let (place, value) = item?;
            if let (Some(Place::Audit { number }), Some(AuditRecord { wall_ms, entry, event })) =
                (Place::read(&place), decode(&value))
            {
                let entry = entry.map(|(at, index)| (Time(at), index));
                lines.push(AuditLine { number, entry, wall_ms, event });
            }
        }
        Ok(lines)
    }
}

/// The rows that may have lines of a key, the newest first.
fn lines(row: &Row, kind: Kind, key: &Key) -> impl Iterator<Item = sled::Result<sled::IVec>> {
    let prefix = lines_of(kind, group_of(key.as_str()), None);
    let volumes = row.volumes.iter().rev();
    volumes.flat_map(move |volume| volume.db.scan_prefix(&prefix).values().rev())
}

fn permit(record: &PermitRecord, bundle: &Bundle<'_>, released: bool) -> Permit {
    let PermitRecord { permit, slot_ns, at_ns, wall_ms, cost, policy, worker } = *record;
    let (policy, worker) = (bundle.name(policy).map(str::to_owned), bundle.name(worker).map(str::to_owned));
    Permit { permit, slot: Time(slot_ns), at: Time(at_ns), cost, policy, worker, released, wall_ms }
}

fn denial(record: &DeniedRecord, bundle: &Bundle<'_>) -> Denied {
    let DeniedRecord { at_ns, wall_ms, cost, reason, policy, worker } = *record;
    let (policy, worker) = (bundle.name(policy).map(str::to_owned), bundle.name(worker).map(str::to_owned));
    let reason = bundle.name(reason).unwrap_or_default().to_owned();
    Denied { at: Time(at_ns), cost, reason, policy, worker, wall_ms }
}

/// The last so many seconds, and minutes, in which something happened to a key, oldest first.
fn buckets(row: &Row, key: &Key, depth: &Depth) -> Result<(Vec<Bucket>, Vec<Bucket>), Broken> {
    let (last_second, last_minute) = (Grain::Second.bucket(row.until()), Grain::Minute.bucket(row.until()));
    let wanted_seconds = last_n(last_second, depth.seconds.min(SECONDS_SHOWN));
    let wanted_minutes = last_n(last_minute, depth.minutes);
    let first = wanted_minutes.start.min(wanted_seconds.start / MINUTE_SECONDS);
    let (mut seconds, mut minutes) = (BTreeMap::<_, Counts>::new(), BTreeMap::<_, Counts>::new());
    let group = Some(group_of(key.as_str()));
    for volume in &row.volumes {
        let from = Grain::Minute.bucket(Time(volume.header.first_ns)).max(first);
        let to = Grain::Minute.bucket(Time(volume.header.last_ns)).min(last_minute);
        for minute in from..=to {
            for value in volume.db.scan_prefix(usage_of(minute, group, None)).values() {
                let value = value?;
                for usage in
                    usage::read(&value).into_iter().flatten().filter(|usage| usage.scope == Scope::Key(key.as_str()))
                {
                    if wanted_minutes.contains(&minute) {
                        *minutes.entry(minute).or_default() += usage.counts;
                    }
                    for (second, counts) in usage.seconds() {
                        let second = minute * MINUTE_SECONDS + u64::from(second);
                        if wanted_seconds.contains(&second) {
                            *seconds.entry(second).or_default() += counts;
                        }
                    }
                }
            }
        }
    }
    Ok((series(Grain::Second, seconds), series(Grain::Minute, minutes)))
}

/// So many buckets, up to and with this one.
fn last_n(last: u64, count: u64) -> Range<u64> {
    let end = last.saturating_add(1);
    end.saturating_sub(count)..end
}

fn series(grain: Grain, found: BTreeMap<u64, Counts>) -> Vec<Bucket> {
    found.into_iter().map(|(bucket, counts)| Bucket { at: grain.start(bucket), counts }).collect()
}

/// Sums over the hour.
#[derive(Default)]
struct Tally {
    total: Counts,
    minutes: BTreeMap<u64, Counts>,
    policies: HashMap<String, Counts>,
    /// With the rule that decided last.
    keys: HashMap<Key, (Option<String>, Counts)>,
}

impl Tally {
    fn add(&mut self, minute: u64, usage: &usage::Record<'_>, wanted: Option<&str>) {
        let is_total = match (usage.scope, wanted) {
            (Scope::All, None) => true,
            (Scope::Policy(name), Some(wanted)) => name == wanted,
            _ => false,
        };
        if is_total {
            self.total += usage.counts;
            *self.minutes.entry(minute).or_default() += usage.counts;
        }
        match usage.scope {
            Scope::Policy(name) if wanted.is_none_or(|wanted| name == wanted) => {
                *self.policies.entry(name.to_owned()).or_default() += usage.counts;
            }
            Scope::Key(name) if wanted.is_none() || usage.policy == wanted => {
                if let Some((_, known)) = self.keys.get_mut(name) {
                    *known += usage.counts;
                } else if let Ok(key) = Key::new(name) {
                    // The newest comes first, and says which rule it was last.
                    self.keys.insert(key, (usage.policy.map(str::to_owned), usage.counts));
                }
            }
            _ => {}
        }
    }

    fn finish(self, since: Time, until: Time, most: usize, complete: bool) -> Usage {
        let mut policies: Vec<_> = self.policies.into_iter().collect();
        policies.sort_by(|a, b| busier(a.1, b.1).then_with(|| a.0.cmp(&b.0)));
        policies.truncate(most);
        let mut keys: Vec<_> = self.keys.into_iter().map(|(key, (policy, counts))| (key, policy, counts)).collect();
        keys.sort_by(|a, b| busier(a.2, b.2).then_with(|| a.0.cmp(&b.0)));
        keys.truncate(most);
        let minutes = series(Grain::Minute, self.minutes);
        Usage { since, until, total: self.total, minutes, policies, keys, complete }
    }
}

/// More requests first, granted or denied.
fn busier(a: Counts, b: Counts) -> std::cmp::Ordering {
    let requests = |counts: Counts| counts.granted.saturating_add(counts.denied);
    requests(b).cmp(&requests(a))
}
