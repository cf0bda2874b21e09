//! The desk: gathers what applied entries bring until it is written, all at once. Pure: no store, no clock.
//!
//! Invariants
//! - An entry at or below the last recorded index is skipped whole, so nothing is counted twice after a restart.
//! - However many events come between two writes, one key gets at most [`PERMITS_PER_KEY`] and [`DENIALS_PER_KEY`] lines out
//!   of them, the newest. All of them are counted.
//! - What waits is bounded in memory ([`WEIGHT_MAX`]) and in time ([`WAITS_MAX`]); whoever writes asks [`Desk::is_due`].
//! - An event costs one look into a map for its key, one for its worker, and one when another policy decided than the last
//!   time. Nothing is allocated for it but its place in a list.

use super::event::{Applied, Audit, Event};
use super::names::{NO_NAME, NameId, Names, position};
use super::record::{AuditRecord, Counts, DeniedRecord, PermitRecord, cut};
use super::usage::Grain;
use crate::limiter::{Key, Time};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Permits of one key that are worth keeping.
pub(super) const PERMITS_PER_KEY: usize = 1_000;
/// Denials of one key that are worth keeping: a busy limit denies far more than it grants, and they look alike.
pub(super) const DENIALS_PER_KEY: usize = 100;
/// Longest text of the audit trail, in bytes.
const AUDIT_TEXT_BYTES_MAX: usize = 1_024;
/// Most members in a line of the audit trail.
const AUDIT_MEMBERS_MAX: usize = 64;

/// How long at least from one write to the next, unless the desk is full.
const WAITS_MIN: Duration = Duration::from_secs(1);
/// How long anything may wait. A write costs as much for a key with ten permits as for one with a single permit.
const WAITS_MAX: Duration = Duration::from_secs(10);
/// Keys that are so few that waiting longer saves nothing worth having.
const KEYS_FEW: usize = 1_000;
/// Lines, releases and seconds that wait at most, at 8 to 80 bytes each with what lists leave free: some 16 MiB. Ten seconds of
/// 12,000 permits a second over 10,000 keys fit.
const WEIGHT_MAX: usize = 262_144;
/// What a name weighs beside what is gathered under it, and a line of the audit trail.
const NAME_WEIGHT: usize = 4;
const AUDIT_WEIGHT: usize = 16;

/// What waits to be written, and the index up to which everything has come.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The last index that is recorded, in the store or in here.
    index: u64,
    weight: usize,
    gathered: Gathered,
}

/// What one write records.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The last index in here.
    pub(super) index: u64,
    /// Cluster time of the last entry in here; without one, there are only lines of the audit trail.
    pub(super) last: Option<Time>,
    /// When the last of it was taken down.
    pub(super) wall_ms: u64,
    /// Events that were told, for whoever counts them.
    pub(super) events: usize,
    pub(super) keys: HashMap<Key, Doings>,
    /// Of policies, workers and reasons.
    pub(super) names: Names,
    /// By minutes: of each policy, by the position of its name, and of everything.
    pub(super) policies: Vec<Vec<(u64, Counts)>>,
    pub(super) all: Vec<(u64, Counts)>,
    pub(super) audit: Vec<AuditRecord>,
    last_policy: Option<(Arc<str>, NameId)>,
}

/// What happened to one key, each kind in the order in which it came.
#[derive(Debug, Default)]
pub(super) struct Doings {
    pub(super) permits: VecDeque<PermitRecord>,
    released: Vec<u64>,
    pub(super) denied: VecDeque<DeniedRecord>,
    pub(super) seconds: Vec<Second>,
}

/// What happened to one key in one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Second {
    /// Since the beginning of cluster time.
    pub(super) number: u64,
    pub(super) counts: Counts,
    /// The rule that decided last.
    pub(super) policy: NameId,
}

impl Desk {
    /// An empty desk after what is recorded already.
    pub(super) fn after(index: u64) -> Self {
        Self { index, ..Self::default() }
    }

    /// Events that wait.
    pub(super) fn events(&self) -> usize {
        self.gathered.events
    }

    /// Whether so much waits that it has to be written before more comes.
    pub(super) fn is_full(&self) -> bool {
        self.weight + NAME_WEIGHT * self.gathered.names.len() >= WEIGHT_MAX
    }

    /// Whether to write now, so long after the last time.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        let soon = self.gathered.keys.len() < KEYS_FEW || !self.gathered.audit.is_empty();
        let waited = since >= WAITS_MAX || (soon && since >= WAITS_MIN);
        !self.gathered.is_empty() && (waited || self.is_full())
    }

    /// Clears the desk. `None`, if there is nothing to write.
    pub(super) fn take(&mut self) -> Option<Gathered> {
        self.weight = 0;
        let gathered = Gathered { index: self.index, ..mem::take(&mut self.gathered) };
        (!gathered.is_empty()).then_some(gathered)
    }

    /// Adds a change that stands in no entry.
    pub(super) fn note(&mut self, event: Audit, wall_ms: u64) {
        self.gathered.events += 1;
        self.weight += self.gathered.audited(None, event, wall_ms);
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, applied: Applied, wall_ms: u64) {
        let Applied { index, at, events } = applied;
        let gathered = &mut self.gathered;
        gathered.events += events.len();
        if index <= self.index {
            return;
        }
        let entry = Some((at.0, index));
        for event in events {
            self.weight += match event {
                Event::Audit(event) => gathered.audited(entry, event, wall_ms),
                Event::Reset { key } => {
                    gathered.audited(entry, Audit::KeyReset { key: key.as_str().to_owned() }, wall_ms)
                }
                Event::Granted { key, policy, permit, slot, cost, worker } => {
                    let (policy, worker) = (gathered.policy(policy), gathered.names.id_of(worker.as_ref()));
                    let (slot_ns, at_ns) = (slot.0, at.0);
                    gathered.granted(key, PermitRecord { permit, slot_ns, at_ns, wall_ms, cost, policy, worker })
                }
                Event::Denied { key, policy, cost, reason, worker } => {
                    let (policy, worker) = (gathered.policy(policy), gathered.names.id_of(worker.as_ref()));
                    let reason = gathered.names.id(reason);
                    gathered.denied(key, DeniedRecord { at_ns: at.0, wall_ms, cost, reason, policy, worker })
                }
                Event::Released { key, permit } => gathered.released(key, permit),
            };
        }
        gathered.last = Some(gathered.last.map_or(at, |last| last.max(at)));
        gathered.wall_ms = wall_ms;
        self.index = index;
    }
}

/// What is added says what it weighs.
impl Gathered {
    fn is_empty(&self) -> bool {
        self.last.is_none() && self.audit.is_empty()
    }

    fn audited(&mut self, entry: Option<(u64, u64)>, event: Audit, wall_ms: u64) -> usize {
        self.wall_ms = wall_ms;
        self.audit.push(AuditRecord { wall_ms, entry, event: bounded(event) });
        AUDIT_WEIGHT
    }

    /// The number of a policy. As a rule it is the one of the event before.
    fn policy(&mut self, policy: Option<Arc<str>>) -> NameId {
        let Some(policy) = policy else { return NO_NAME };
        if let Some((last, id)) = &self.last_policy
            && Arc::ptr_eq(last, &policy)
        {
            return *id;
        }
        let id = self.names.id_of(Some(&policy));
        self.last_policy = Some((policy, id));
        id
    }

    fn granted(&mut self, key: Key, record: PermitRecord) -> usize {
        let counts = Counts { granted: 1, cost: record.cost, denied: 0 };
        let (doings, weight) = self.count(key, record.at_ns, record.policy, counts);
        weight + push(&mut doings.permits, record, PERMITS_PER_KEY)
    }

    fn denied(&mut self, key: Key, record: DeniedRecord) -> usize {
        let counts = Counts { granted: 0, cost: 0, denied: 1 };
        let (doings, weight) = self.count(key, record.at_ns, record.policy, counts);
        weight + push(&mut doings.denied, record, DENIALS_PER_KEY)
    }

    fn released(&mut self, key: Key, permit: u64) -> usize {
        let (doings, new) = self.doings(key);
        doings.released.push(permit);
        new + 1
    }

    fn doings(&mut self, key: Key) -> (&mut Doings, usize) {
        match self.keys.entry(key) {
            Entry::Occupied(known) => (known.into_mut(), 0),
            Entry::Vacant(new) => (new.insert(Doings::default()), NAME_WEIGHT),
        }
    }

    /// Counts for everything, for the policy and for the key.
    fn count(&mut self, key: Key, at_ns: u64, policy: NameId, counts: Counts) -> (&mut Doings, usize) {
        let (second, minute) = (Grain::Second.bucket(Time(at_ns)), Grain::Minute.bucket(Time(at_ns)));
        let mut weight = add_to_last(&mut self.all, minute, counts);
        if let Some(at) = position(policy) {
            if self.policies.len() <= at {
                self.policies.resize(at + 1, Vec::new());
            }
            weight += add_to_last(&mut self.policies[at], minute, counts);
        }
        let (doings, new) = self.doings(key);
        weight += new + doings.count(second, policy, counts);
        (doings, weight)
    }
}

impl Doings {
    /// Permits that were given back. The key may have got more than are kept since: a permit that nobody will see any more
    /// needs no release.
    pub(super) fn released(&self) -> impl Iterator<Item = u64> {
        let is_full = self.permits.len() >= PERMITS_PER_KEY;
        let oldest = self.permits.front().filter(|_| is_full).map_or(0, |oldest| oldest.permit);
        self.released.iter().copied().filter(move |permit| *permit >= oldest)
    }

    fn count(&mut self, second: u64, policy: NameId, counts: Counts) -> usize {
        match self.seconds.last_mut() {
            Some(last) if last.number == second => {
                last.counts += counts;
                last.policy = policy;
                0
            }
            _ => {
                self.seconds.push(Second { number: second, counts, policy });
                1
            }
        }
    }
}

/// Time goes forward: it is the last bucket, or a new one. If it ever went back, a bucket stands there twice and is summed.
fn add_to_last(buckets: &mut Vec<(u64, Counts)>, bucket: u64, counts: Counts) -> usize {
    match buckets.last_mut() {
        Some((last, known)) if *last == bucket => {
            *known += counts;
            0
        }
        _ => {
            buckets.push((bucket, counts));
            1
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, record: T, most: usize) -> usize {
    let is_full = queue.len() >= most;
    if is_full {
        queue.pop_front();
    }
    queue.push_back(record);
    usize::from(!is_full)
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

    fn entry(index: u64, at: u64, events: Vec<Event>) -> Applied {
        Applied { index, at: Time(at), events }
    }

    #[test]
    fn what_is_recorded_already_is_skipped() {
        let mut desk = Desk::after(10);
        let reset = || Event::Reset { key: key("k") };
        desk.add(entry(8, 1, vec![granted(1), reset()]), 1);
        desk.add(entry(9, 2, vec![granted(2), reset()]), 1);
        assert!(!desk.is_due(WAITS_MAX), "nothing to write");
        desk.add(entry(11, 3, vec![granted(3), reset()]), 1);
        desk.add(entry(11, 3, vec![granted(4)]), 1);
        assert_eq!(desk.events(), 7, "they were told all the same");
        let gathered = desk.take().unwrap();
        assert_eq!(gathered.keys[&key("k")].permits.iter().map(|record| record.permit).collect::<Vec<_>>(), [3]);
        assert_eq!(gathered.audit.iter().filter_map(|line| line.entry).collect::<Vec<_>>(), [(3, 11)]);
        assert_eq!((gathered.index, gathered.last), (11, Some(Time(3))));
        desk.add(entry(11, 3, vec![granted(3)]), 1);
        assert!(desk.take().is_none(), "nor does it come again after it was taken");
    }

    #[test]
    fn usage_is_by_second_for_keys_and_by_minute_for_policies_and_all() {
        let mut desk = Desk::after(0);
        desk.add(entry(1, 59_500_000_000, vec![granted(1)]), 1);
        desk.add(entry(2, 61_500_000_000, vec![granted(2), granted(3), denied()]), 1);
        desk.add(entry(3, 62_000_000_000, vec![denied()]), 1);
        let gathered = desk.take().unwrap();
        let counts = |granted, denied| Counts { granted, cost: 3 * granted, denied };
        assert_eq!(gathered.all, [(0, counts(1, 0)), (1, counts(2, 2))]);
        assert_eq!(gathered.policies, [[(0, counts(1, 0)), (1, counts(2, 0))]]);
        assert_eq!(gathered.names.text(1), Some("p"));
        let second = |second, counts, policy| Second { number: second, counts, policy };
        let expected = [second(59, counts(1, 0), 1), second(61, counts(2, 1), 0), second(62, counts(0, 1), 0)];
        assert_eq!(gathered.keys[&key("k")].seconds, expected);
    }

    #[test]
    fn a_flood_of_one_key_is_counted_in_full_and_kept_in_part() {
        let mut desk = Desk::after(0);
        let released = |permit| Event::Released { key: key("k"), permit };
        let flood = (1..=5_000).flat_map(|permit| [granted(permit), denied(), released(permit)]).collect();
        desk.add(entry(1, 1, flood), 1);
        let gathered = desk.take().unwrap();
        let doings = &gathered.keys[&key("k")];
        assert_eq!((doings.permits.len(), doings.permits.back().unwrap().permit), (PERMITS_PER_KEY, 5_000));
        assert_eq!(doings.denied.len(), DENIALS_PER_KEY);
        assert!(doings.released().eq(4_001..=5_000), "a release is kept as long as its permit");
        assert_eq!(gathered.all[0].1.denied, 5_000);
    }

    /// Little is written soon, much is gathered for a while, and nothing without bound.
    #[test]
    fn writing_is_due_soon_or_when_the_desk_is_full() {
        let of = |name: String| Event::Released { key: key(&name), permit: 1 };
        let mut desk = Desk::after(0);
        assert!(!desk.is_due(WAITS_MAX), "nothing waits");
        desk.add(entry(1, 1, vec![granted(1)]), 1);
        assert_eq!((desk.is_due(Duration::ZERO), desk.is_due(WAITS_MIN)), (false, true));
        desk.add(entry(2, 1, (0..1_000).map(|number| of(number.to_string())).collect()), 1);
        assert_eq!((desk.is_due(WAITS_MIN), desk.is_due(WAITS_MAX)), (false, true));
        desk.note(Audit::Leader { node: 1, term: 1 }, 1);
        assert_eq!((desk.is_due(Duration::ZERO), desk.is_due(WAITS_MIN)), (false, true), "people wait for these");
        let mut index = 2;
        while !desk.is_full() {
            index += 1;
            desk.add(entry(index, index * 1_000_000_000, (0..100).map(|_| of("k".to_owned())).collect()), 1);
        }
        assert!(desk.is_due(Duration::ZERO));
        assert!(index < 3_000, "{index} entries");
        desk.take().unwrap();
        assert!(!desk.is_full() && !desk.is_due(WAITS_MAX));
    }

    /// Time that runs fast, as when a log is applied again, weighs as well.
    #[test]
    fn seconds_of_a_key_do_not_pile_up() {
        let mut desk = Desk::after(0);
        (1..=300_000).for_each(|index| {
            if !desk.is_full() {
                desk.add(entry(index, index * 1_000_000_000, vec![granted(index)]), 1);
            }
        });
        assert!(desk.is_full() && desk.events() < 262_144);
    }

    #[test]
    fn names_do_not_pile_up_either() {
        let mut desk = Desk::after(0);
        let of = |index: u64| Event::Denied {
            key: key("k"),
            policy: None,
            cost: 1,
            reason: "not_free_now",
            worker: Some(format!("worker-{index}").into()),
        };
        (1..=100_000).for_each(|index| {
            if !desk.is_full() {
                desk.add(entry(index, 1, vec![of(index)]), 1);
            }
        });
        assert!(desk.is_full() && desk.events() < 70_000);
    }

    #[test]
    fn long_texts_are_cut() {
        let mut desk = Desk::after(0);
        desk.note(Audit::PolicyPut { name: "n".repeat(9_999), revision: 1, summary: "ü".repeat(9_999) }, 1);
        let Audit::PolicyPut { name, summary, .. } = &desk.take().unwrap().audit[0].event else { panic!() };
        assert_eq!((name.len(), summary.len()), (1_024, 1_024));
    }
}
