//! Reading what is kept. Every answer is bounded, and a record that cannot be read is left out.

use super::place::{Grain, Place, Scope, audit_from, denials_of, permits_of, releases_of, usage_from};
use super::record::{AuditRecord, Counts, DeniedRecord, PermitRecord, UsageRecord, decode};
use super::store::{Broken, Row, SECONDS_SHOWN, Store};
use super::view::{AuditLine, Bucket, Denied, Depth, KeyHistory, Permit, Usage};
use crate::limiter::{Key, Time};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Records that one question about all keys looks at; with more in the hour, the oldest are left out.
const SCANNED_MAX: usize = 500_000;
/// Minutes in the hour that usage is about.
const HOUR_MINUTES: u64 = 60;

impl Store {
    /// What is remembered of a key.
    pub(super) fn key(&self, key: &Key, depth: &Depth, wall_ms: u64) -> Result<KeyHistory, Broken> {
        let row = self.row();
        let scope = Scope::Key(key.clone());
        Ok(KeyHistory {
            until: row.until(),
            permits: self.permits(&row, key, depth.most, wall_ms)?,
            denied: self.denied(&row, key, depth.most, wall_ms)?,
            seconds: buckets(&row, Grain::Second, depth.seconds.min(SECONDS_SHOWN), &scope)?,
            minutes: buckets(&row, Grain::Minute, depth.minutes, &scope)?,
        })
    }

    fn permits(&self, row: &Row, key: &Key, most: usize, wall_ms: u64) -> Result<Vec<Permit>, Broken> {
        let mut permits = Vec::new();
        for item in row.volumes.iter().rev().flat_map(|volume| volume.db.scan_prefix(permits_of(key)).rev()) {
            if permits.len() >= most {
                break;
            }
            let (place, value) = item?;
            let (Some(Place::Permit { permit, .. }), Some(record)) =
                (Place::read(&place), decode::<PermitRecord>(&value))
            else {
                continue;
            };
            if self.bounds.too_old(record.wall_ms, wall_ms) {
                break;
            }
            permits.push(Permit {
                permit,
                slot: Time(record.slot_ns),
                at: Time(record.at_ns),
                cost: record.cost,
                policy: record.policy,
                worker: record.worker,
                released: false,
                wall_ms: record.wall_ms,
            });
        }
        let released = released(row, key, permits.last().map_or(u64::MAX, |oldest| oldest.permit))?;
        for permit in &mut permits {
            permit.released = released.contains(&permit.permit);
        }
        Ok(permits)
    }

    fn denied(&self, row: &Row, key: &Key, most: usize, wall_ms: u64) -> Result<Vec<Denied>, Broken> {
        let mut denied = Vec::new();
        for item in row.volumes.iter().rev().flat_map(|volume| volume.db.scan_prefix(denials_of(key)).rev()) {
            if denied.len() >= most {
                break;
            }
            let Some(record) = decode::<DeniedRecord>(&item?.1) else { continue };
            if self.bounds.too_old(record.wall_ms, wall_ms) {
                break;
            }
            denied.push(Denied {
                at: Time(record.at_ns),
                cost: record.cost,
                reason: record.reason,
                policy: record.policy,
                worker: record.worker,
                wall_ms: record.wall_ms,
            });
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
        let recent = row.volumes.iter().rev().filter(|volume| volume.header.last_ns >= since.0);
        for item in recent.flat_map(|volume| volume.db.range(usage_from(Grain::Minute, first)..).rev()) {
            let (place, value) = item?;
            let Some(Place::Usage { grain: Grain::Minute, bucket, scope }) = Place::read(&place) else { continue };
            if left == 0 {
                break;
            }
            left -= 1;
            if let Some(usage) = decode::<UsageRecord>(&value) {
                tally.add(bucket, scope, usage, policy);
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

/// The permits of a key from this one on that were given back.
fn released(row: &Row, key: &Key, from: u64) -> Result<HashSet<u64>, Broken> {
    let mut released = HashSet::new();
    let from = Place::Released { key: key.clone(), permit: from }.bytes();
    let prefix = releases_of(key);
    for volume in &row.volumes {
        for item in volume.db.range(from.clone()..) {
            let (place, _) = item?;
            if !place.starts_with(&prefix) {
                break;
            }
            if let Some(Place::Released { permit, .. }) = Place::read(&place) {
                released.insert(permit);
            }
        }
    }
    Ok(released)
}

/// The last so many buckets of one name in which something happened, oldest first.
fn buckets(row: &Row, grain: Grain, count: u64, scope: &Scope) -> Result<Vec<Bucket>, Broken> {
    let last = grain.bucket(row.until());
    let Some(back) = count.checked_sub(1) else { return Ok(Vec::new()) };
    let first = last.saturating_sub(back);
    let mut found: BTreeMap<u64, Counts> = BTreeMap::new();
    for volume in &row.volumes {
        let from = grain.bucket(Time(volume.header.first_ns)).max(first);
        let to = grain.bucket(Time(volume.header.last_ns)).min(last);
        for bucket in from..=to {
            let place = Place::Usage { grain, bucket, scope: scope.clone() };
            let value = volume.db.get(place.bytes())?;
            if let Some(usage) = value.and_then(|value| decode::<UsageRecord>(&value)) {
                *found.entry(bucket).or_default() += usage.counts;
            }
        }
    }
    Ok(series(grain, found))
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
    keys: HashMap<Key, UsageRecord>,
}

impl Tally {
    fn add(&mut self, bucket: u64, scope: Scope, usage: UsageRecord, wanted: Option<&str>) {
        let is_total = match (&scope, wanted) {
            (Scope::All, None) => true,
            (Scope::Policy(name), Some(wanted)) => **name == *wanted,
            _ => false,
        };
        if is_total {
            self.total += usage.counts;
            *self.minutes.entry(bucket).or_default() += usage.counts;
        }
        match scope {
            Scope::Policy(name) if wanted.is_none_or(|wanted| *name == *wanted) => {
                *self.policies.entry(name.to_string()).or_default() += usage.counts;
            }
            Scope::Key(key) if wanted.is_none() || usage.policy.as_deref() == wanted => {
                // The newest comes first, and says which rule it was last.
                let known = self.keys.entry(key).or_insert(UsageRecord { policy: usage.policy, ..Default::default() });
                known.counts += usage.counts;
            }
            _ => {}
        }
    }

    fn finish(self, since: Time, until: Time, most: usize, complete: bool) -> Usage {
        let mut policies: Vec<_> = self.policies.into_iter().collect();
        policies.sort_by(|a, b| busier(a.1, b.1).then_with(|| a.0.cmp(&b.0)));
        policies.truncate(most);
        let mut keys: Vec<_> = self.keys.into_iter().map(|(key, usage)| (key, usage.policy, usage.counts)).collect();
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
