//! P7: "Bounded. Keys, reservations, queues, bodies, batches, ids: everything has a limit and a clear error past it."

use crate::config;
use crate::ledger::{Decided, apply, fork, run};
use crate::script::logs;
use proptest::prelude::*;
use quorate::limiter::{Ask, Key, Limit, Spacing, Span, Time};
use quorate::limits::{
    KEYS_DEFAULT, KEYS_EXPIRED_PER_ENTRY_MAX, REQUEST_ID_RETENTION_NS, REQUEST_IDS_EXPIRED_PER_ENTRY_MAX,
};
use quorate::state::{Acquire, Applied, Batch, Command, Identity, KeyView, LeaderId, Machine, Outcome, Stamp};
use std::collections::{BTreeMap, BTreeSet};

const LEADER: LeaderId = LeaderId { term: u64::MAX, node: 3 };
const SECOND: u64 = 1_000_000_000;

fn limit(rate: &str, max_reserved: u32) -> Limit {
    Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
}

fn acquire(key: &str, limit: &Limit) -> Acquire {
    Acquire { key: Key::new(key).unwrap(), limit: Some(limit.clone()), ask: Ask::default(), identity: None }
}

fn batch(time: u64, keys_max: u64, asked: impl IntoIterator<Item = Acquire>) -> Batch {
    let stamp = Stamp { leader: LEADER, time: Time(time) };
    Batch { stamp, keys_max, commands: asked.into_iter().map(Command::Acquire).collect() }
}

fn decide(machine: &mut Machine, batch: &Batch) -> Vec<Outcome> {
    match machine.apply(LEADER, batch) {
        Applied::Decided { outcomes, .. } => outcomes,
        other => panic!("this leader's own stamp: {other:?}"),
    }
}

fn granted(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Granted(_))).count()
}

proptest! {
    #![proptest_config(config(2_000))]

    /// "Idle keys leave memory when their state equals a fresh one."
    #[test]
    fn everything_that_idles_leaves(log in logs(24)) {
        let (mut machine, decided) = run(&log);
        let ends = decided.iter().filter_map(|one| match (&one.outcome, &one.acquire.limit) {
            (Outcome::Granted(grant), Some(Limit::Spacing(spacing))) if !grant.replayed => {
                Some(grant.slot.after(spacing.unit().times(one.acquire.ask.cost)?))
            }
            _ => None,
        });
        let last = ends.max().unwrap_or_default().max(machine.now());
        let busy = machine.keys();
        decide(&mut machine, &batch(last.0.saturating_sub(1), KEYS_DEFAULT, []));
        prop_assert!(machine.keys() <= busy);
        prop_assert_eq!(machine.keys() > 0, last > machine.now(), "the last key leaves on time, not before");
        decide(&mut machine, &batch(last.0, KEYS_DEFAULT, []));
        prop_assert_eq!(machine.keys(), 0);
        decide(&mut machine, &batch(last.after(Span(REQUEST_ID_RETENTION_NS)).0, KEYS_DEFAULT, []));
        prop_assert_eq!(machine.request_ids(), 0);
    }

    /// `keys_max` refuses new keys, and nobody else.
    #[test]
    fn too_many_keys_refuses_only_new_ones(log in logs(24)) {
        let mut machine = Machine::default();
        let mut ends: BTreeMap<Key, Time> = BTreeMap::new();
        for (at, entry) in log.0.iter().enumerate() {
            for Decided { now, acquire, outcome, .. } in apply(&mut machine, at, entry) {
                let busy = ends.values().filter(|end| **end > now).count() as u64;
                let is_new = ends.get(&acquire.key).is_none_or(|end| *end <= now);
                match outcome {
                    Outcome::TooManyKeys { .. } => {
                        prop_assert!(is_new && busy >= entry.batch.keys_max, "{busy} keys, new: {is_new}");
                    }
                    Outcome::Granted(grant) if !grant.replayed => {
                        prop_assert!(!is_new || busy < entry.batch.keys_max, "{busy} keys were enough");
                        let Some(Limit::Spacing(spacing)) = &acquire.limit else { continue };
                        let end = grant.slot.after(spacing.unit().times(acquire.ask.cost).unwrap());
                        ends.insert(acquire.key, end);
                    }
                    _ => {}
                }
            }
        }
    }

    /// P3: "a read is one point in a single order": it tells of the last grant, and of nothing once that is over.
    #[test]
    fn a_view_tells_of_the_last_grant(log in logs(16)) {
        let (machine, decided) = run(&log);
        let restored = fork(&machine);
        let keys: BTreeSet<_> = decided.iter().map(|one| &one.acquire.key).collect();
        for key in keys {
            let last = decided.iter().rfind(|one| {
                one.acquire.key == *key && matches!(&one.outcome, Outcome::Granted(grant) if !grant.replayed)
            });
            let expected = last.and_then(|one| match (&one.outcome, &one.acquire.limit) {
                (Outcome::Granted(grant), Some(Limit::Spacing(spacing))) => {
                    let next = grant.slot.after(spacing.unit().times(one.acquire.ask.cost)?);
                    let reserved = spacing.outstanding(grant.slot, machine.now());
                    let view = KeyView { limit: one.acquire.limit.clone()?, next, reserved, permit: grant.permit };
                    (next > machine.now()).then_some(view)
                }
                _ => None,
            });
            prop_assert_eq!(machine.view(key, Time::ZERO), expected.clone());
            prop_assert_eq!(restored.view(key, machine.now()), expected.clone());
            if let Some(view) = expected {
                prop_assert_eq!(machine.view(key, view.next), None);
                let last_instant = machine.view(key, view.next.before(Span(1)));
                prop_assert_eq!(last_instant.map(|last| (last.permit, last.reserved)), Some((view.permit, 0)));
            }
        }
    }
}

/// "A bounded number per entry": forgetting many keys takes many entries, and they are as good as forgotten meanwhile.
#[test]
fn a_bounded_number_of_keys_leaves_per_entry() {
    let limit = limit("1/6s", 0);
    let count = 2 * KEYS_EXPIRED_PER_ENTRY_MAX + 10;
    let mut machine = Machine::default();
    let everybody = |time| batch(time, KEYS_DEFAULT, (0..count).map(|index| acquire(&format!("key {index}"), &limit)));
    assert_eq!(granted(&decide(&mut machine, &everybody(0))), count);
    assert_eq!(machine.keys(), count);

    let idle = 6 * SECOND;
    decide(&mut machine, &batch(idle - 1, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), count, "not a nanosecond early");
    let mut restored = fork(&machine);
    for left in [count - KEYS_EXPIRED_PER_ENTRY_MAX, count - 2 * KEYS_EXPIRED_PER_ENTRY_MAX, 0, 0] {
        decide(&mut machine, &batch(idle, KEYS_DEFAULT, []));
        assert_eq!(machine.keys(), left);
        decide(&mut restored, &batch(idle, KEYS_DEFAULT, []));
        assert_eq!(restored.freeze().digest(), machine.freeze().digest(), "the same ones leave after a restore");
    }

    let mut crowded = Machine::default();
    decide(&mut crowded, &everybody(0));
    // Half of them are still in memory, and everybody is granted as if nobody were.
    assert_eq!(granted(&decide(&mut crowded, &everybody(idle))), count);
}

/// Those that are due but still in memory count as keys: the bound is on memory.
#[test]
fn a_key_that_is_due_still_takes_a_place() {
    let limit = limit("1/6s", 0);
    let count = KEYS_EXPIRED_PER_ENTRY_MAX + 1;
    let keys_max = 1;
    let mut machine = Machine::default();
    let everybody = (0..count).map(|index| acquire(&format!("key {index}"), &limit));
    decide(&mut machine, &batch(0, KEYS_DEFAULT, everybody));
    let outcomes = decide(&mut machine, &batch(6 * SECOND, keys_max, [acquire("new", &limit)]));
    assert_eq!(outcomes, [Outcome::TooManyKeys { retry_after: Span::ZERO }], "the next entry has room");
    let outcomes = decide(&mut machine, &batch(6 * SECOND, keys_max, [acquire("new", &limit)]));
    assert_eq!(granted(&outcomes), 1);
}

/// "When its turn comes, a key that was used meanwhile is indexed anew": it stays, and leaves when its own time has come.
#[test]
fn a_key_used_meanwhile_is_indexed_anew() {
    let limit = limit("1/6s", 10);
    let mut machine = Machine::default();
    let use_it = |time| batch(time, KEYS_DEFAULT, [acquire("a", &limit)]);
    decide(&mut machine, &use_it(0));
    decide(&mut machine, &use_it(3 * SECOND));
    // Indexed at 6 s, free from 12 s on: so far the index does not know.
    let mut restored = fork(&machine);
    let by_then = batch(5 * SECOND, 1, [acquire("b", &limit)]);
    let refused = [Outcome::TooManyKeys { retry_after: Span::from_secs(1) }];
    assert_eq!(decide(&mut machine, &by_then), refused, "a lower bound: what the index says");

    for machine in [&mut machine, &mut restored] {
        decide(machine, &batch(6 * SECOND, KEYS_DEFAULT, []));
        assert_eq!(machine.keys(), 1, "its turn came, and it was used meanwhile");
        let by_then = batch(6 * SECOND, 1, [acquire("b", &limit)]);
        assert_eq!(decide(machine, &by_then), [Outcome::TooManyKeys { retry_after: Span::from_secs(6) }]);
        decide(machine, &batch(12 * SECOND - 1, KEYS_DEFAULT, []));
        assert_eq!(machine.keys(), 1);
        decide(machine, &batch(12 * SECOND, KEYS_DEFAULT, []));
        assert_eq!(machine.keys(), 0);
    }
    assert_eq!(machine.freeze().digest(), restored.freeze().digest());
}

/// Looking at a key that is only indexed anew is work too: it counts towards the bound.
#[test]
fn indexing_anew_counts_as_work() {
    let limit = limit("1/6s", 1);
    let count = KEYS_EXPIRED_PER_ENTRY_MAX;
    let mut machine = Machine::default();
    let all = |prefix: &'static str| {
        let limit = limit.clone();
        (0..count).map(move |index| acquire(&format!("{prefix} {index}"), &limit))
    };
    // Those that will be indexed anew come first in the index, so one entry has no time for the others.
    decide(&mut machine, &batch(0, KEYS_DEFAULT, all("a").chain(all("b"))));
    decide(&mut machine, &batch(1, KEYS_DEFAULT, all("a")));
    decide(&mut machine, &batch(6 * SECOND, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), 2 * count);
    decide(&mut machine, &batch(6 * SECOND, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), count);
    decide(&mut machine, &batch(12 * SECOND, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), 0);
}

#[test]
fn a_bounded_number_of_request_ids_is_forgotten_per_entry() {
    let limit = limit("1000000/s", 100_000);
    let count = REQUEST_IDS_EXPIRED_PER_ENTRY_MAX + 10;
    let named = (0..count).map(|index| {
        let mut one = acquire("a", &limit);
        one.identity = Some(Identity::of(&format!("request {index}"), &one.key, one.limit.as_ref(), 1));
        one
    });
    let mut machine = Machine::default();
    assert_eq!(granted(&decide(&mut machine, &batch(0, KEYS_DEFAULT, named))), count);
    decide(&mut machine, &batch(REQUEST_ID_RETENTION_NS - 1, KEYS_DEFAULT, []));
    assert_eq!(machine.request_ids(), count);
    decide(&mut machine, &batch(REQUEST_ID_RETENTION_NS, KEYS_DEFAULT, []));
    assert_eq!(machine.request_ids(), 10);
    decide(&mut machine, &batch(REQUEST_ID_RETENTION_NS, KEYS_DEFAULT, []));
    assert_eq!(machine.request_ids(), 0);
}

#[test]
fn a_view_looks_ahead_but_never_back() {
    let limit = limit("1/6s", 10);
    let mut machine = Machine::default();
    let key = Key::new("a").unwrap();
    assert_eq!(machine.view(&key, Time::ZERO), None, "never used");
    decide(&mut machine, &batch(0, KEYS_DEFAULT, [acquire("a", &limit), acquire("a", &limit), acquire("a", &limit)]));
    decide(&mut machine, &batch(6 * SECOND, KEYS_DEFAULT, []));
    let view = |reserved| Some(KeyView { limit: limit.clone(), next: Time(18 * SECOND), reserved, permit: 3 });
    assert_eq!(machine.view(&key, Time::ZERO), view(1), "the past is not offered again");
    assert_eq!(machine.view(&key, Time(6 * SECOND)), view(1));
    assert_eq!(machine.view(&key, Time(12 * SECOND - 1)), view(1));
    assert_eq!(machine.view(&key, Time(12 * SECOND)), view(0), "its slot has come");
    assert_eq!(machine.view(&key, Time(18 * SECOND - 1)), view(0));
    assert_eq!(machine.view(&key, Time(18 * SECOND)), None, "as good as fresh");
    assert_eq!(machine.keys(), 1, "looking forgets nothing");
}
