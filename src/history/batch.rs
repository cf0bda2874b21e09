//! Gathers applied entries into what one write changes. Pure: no store, no clock.
//!
//! Invariants
//! - An entry at or below the last recorded index is skipped whole, so nothing is counted twice after a restart.
//! - However many events come at once, one key gets at most [`PERMITS_PER_KEY`] and [`DENIALS_PER_KEY`] records out of a
//!   batch, the newest. All of them are counted.

use super::event::{Applied, Audit, Event};
use super::place::{Grain, NAME_BYTES_MAX, Scope, cut};
use super::record::{AuditRecord, Counts, DeniedRecord, PermitRecord, UsageRecord};
use crate::limiter::{Key, Time};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Permits of one key that are worth keeping.
pub(super) const PERMITS_PER_KEY: usize = 1_000;
/// Denials of one key that are worth keeping: a busy limit denies far more than it grants, and they look alike.
pub(super) const DENIALS_PER_KEY: usize = 100;
/// Longest text of the audit trail, in bytes.
const AUDIT_TEXT_BYTES_MAX: usize = 1_024;
/// Most members in a line of the audit trail.
const AUDIT_MEMBERS_MAX: usize = 64;

/// What one write changes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    wall_ms: u64,
    /// The last index that is recorded, in the store or in here.
    pub(super) index: u64,
    /// Cluster time of the last entry in here.
    pub(super) last: Option<Time>,
    pub(super) permits: HashMap<Key, VecDeque<(u64, PermitRecord)>>,
    pub(super) released: Vec<(Key, u64)>,
    pub(super) denied: HashMap<Key, VecDeque<(u64, u32, DeniedRecord)>>,
    pub(super) usage: HashMap<(Grain, u64, Scope), UsageRecord>,
    pub(super) audit: Vec<AuditRecord>,
}

impl Batch {
    /// An empty batch after what is recorded already.
    pub(super) fn after(index: u64, wall_ms: u64) -> Self {
        Self { wall_ms, index, ..Self::default() }
    }

    /// When this is being written down.
    pub(super) fn wall_ms(&self) -> u64 {
        self.wall_ms
    }

    /// Adds a change that stands in no entry.
    pub(super) fn note(&mut self, event: Audit) {
        self.audit.push(AuditRecord { wall_ms: self.wall_ms, entry: None, event: bounded(event) });
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, applied: Applied) {
        let Applied { index, at, events } = applied;
        if index <= self.index {
            return;
        }
        let mut ordinal = 0;
        for event in events {
            let audited = match event {
                Event::Audit(event) => event,
                Event::Reset { key } => Audit::KeyReset { key: key.as_str().to_owned() },
                event => {
                    self.decided(index, &mut ordinal, at, event);
                    continue;
                }
            };
            let entry = Some((at.0, index));
            self.audit.push(AuditRecord { wall_ms: self.wall_ms, entry, event: bounded(audited) });
        }
        self.index = index;
        self.last = Some(self.last.map_or(at, |last| last.max(at)));
    }

    fn decided(&mut self, index: u64, ordinal: &mut u32, at: Time, event: Event) {
        match event {
            Event::Granted { key, policy, permit, slot, cost, worker } => {
                let counts = Counts { granted: 1, cost, denied: 0 };
                self.count(at, &key, policy.as_ref(), counts);
                let record = PermitRecord {
                    slot_ns: slot.0,
                    at_ns: at.0,
                    wall_ms: self.wall_ms,
                    cost,
                    policy: policy.as_deref().map(name),
                    worker: worker.as_deref().map(name),
                };
                push(self.permits.entry(key).or_default(), (permit, record), PERMITS_PER_KEY);
            }
            Event::Denied { key, policy, cost, reason, worker } => {
                self.count(at, &key, policy.as_ref(), Counts { granted: 0, cost: 0, denied: 1 });
                let record = DeniedRecord {
                    at_ns: at.0,
                    wall_ms: self.wall_ms,
                    cost,
                    reason: reason.to_owned(),
                    policy: policy.as_deref().map(name),
                    worker: worker.as_deref().map(name),
                };
                push(self.denied.entry(key).or_default(), (index, *ordinal, record), DENIALS_PER_KEY);
                *ordinal = ordinal.saturating_add(1);
            }
            Event::Released { key, permit } => self.released.push((key, permit)),
            Event::Reset { .. } | Event::Audit(_) => {}
        }
    }

    fn count(&mut self, at: Time, key: &Key, policy: Option<&Arc<str>>, counts: Counts) {
        for grain in [Grain::Second, Grain::Minute] {
            let bucket = grain.bucket(at);
            self.usage.entry((grain, bucket, Scope::All)).or_default().counts += counts;
            if let Some(policy) = policy {
                let scope = Scope::Policy(Arc::clone(policy));
                self.usage.entry((grain, bucket, scope)).or_default().counts += counts;
            }
            let usage = self.usage.entry((grain, bucket, Scope::Key(key.clone()))).or_default();
            usage.counts += counts;
            usage.policy = policy.map(|policy| name(policy));
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, record: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(record);
}

fn name(text: &str) -> String {
    cut(text, NAME_BYTES_MAX).to_owned()
}

/// The same without anything that is too long to keep.
fn bounded(event: Audit) -> Audit {
    let text = |text: String| cut(&text, AUDIT_TEXT_BYTES_MAX).to_owned();
    let few = |mut members: Vec<u64>| {
        members.truncate(AUDIT_MEMBERS_MAX);
        members
    };
    match event {
        Audit::PolicyPut { name, revision, summary } => {
            Audit::PolicyPut { name: text(name), revision, summary: text(summary) }
        }
        Audit::PolicyDeleted { name, revision } => Audit::PolicyDeleted { name: text(name), revision },
        Audit::KeyReset { key } => Audit::KeyReset { key: text(key) },
        Audit::Membership { voters, learners } => Audit::Membership { voters: few(voters), learners: few(learners) },
        leader @ Audit::Leader { .. } => leader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn granted(permit: u64) -> Event {
        Event::Granted { key: key("k"), policy: Some("p".into()), permit, slot: Time(9), cost: 3, worker: None }
    }

    fn denied() -> Event {
        Event::Denied { key: key("k"), policy: None, cost: 1, reason: "not_free_now", worker: None }
    }

    #[test]
    fn what_is_recorded_already_is_skipped() {
        let mut batch = Batch::after(10, 1);
        let reset = || Event::Reset { key: key("k") };
        batch.add(Applied { index: 8, at: Time(1), events: vec![granted(1), reset()] });
        batch.add(Applied { index: 9, at: Time(2), events: vec![granted(2), reset()] });
        batch.add(Applied { index: 11, at: Time(3), events: vec![granted(3), reset()] });
        batch.add(Applied { index: 11, at: Time(3), events: vec![granted(4)] });
        assert_eq!(batch.permits[&key("k")].iter().map(|(permit, _)| *permit).collect::<Vec<_>>(), [3]);
        assert_eq!(batch.audit.iter().filter_map(|line| line.entry).collect::<Vec<_>>(), [(3, 11)]);
        assert_eq!((batch.index, batch.last), (11, Some(Time(3))));
    }

    #[test]
    fn usage_is_by_second_and_minute_for_all_policy_and_key() {
        let mut batch = Batch::after(0, 1);
        let at = Time(61_500_000_000);
        batch.add(Applied { index: 1, at, events: vec![granted(1), granted(2), denied()] });
        let counts = |grain, bucket, scope| batch.usage.get(&(grain, bucket, scope)).map(|usage| usage.counts);
        let all = Some(Counts { granted: 2, cost: 6, denied: 1 });
        assert_eq!(counts(Grain::Second, 61, Scope::All), all);
        assert_eq!(counts(Grain::Minute, 1, Scope::Key(key("k"))), all);
        assert_eq!(
            counts(Grain::Minute, 1, Scope::Policy("p".into())),
            Some(Counts { granted: 2, cost: 6, denied: 0 })
        );
        assert_eq!(batch.usage.len(), 6);
    }

    #[test]
    fn a_flood_of_one_key_is_counted_in_full_and_kept_in_part() {
        let mut batch = Batch::after(0, 1);
        let flood = (1..=5_000).flat_map(|permit| [granted(permit), denied()]).collect();
        batch.add(Applied { index: 1, at: Time(1), events: flood });
        let permits = &batch.permits[&key("k")];
        assert_eq!((permits.len(), permits.back().unwrap().0), (PERMITS_PER_KEY, 5_000));
        assert_eq!(batch.denied[&key("k")].len(), DENIALS_PER_KEY);
        assert_eq!(batch.usage[&(Grain::Second, 0, Scope::All)].counts.denied, 5_000);
    }

    #[test]
    fn long_texts_are_cut() {
        let mut batch = Batch::after(0, 1);
        batch.note(Audit::PolicyPut { name: "n".repeat(9_999), revision: 1, summary: "ü".repeat(9_999) });
        let Audit::PolicyPut { name, summary, .. } = &batch.audit[0].event else { panic!() };
        assert_eq!((name.len(), summary.len()), (1_024, 1_024));
    }
}
