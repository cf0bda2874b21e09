//! P7: "Bounded. Keys, reservations, queues, bodies, batches, ids: everything has a limit and a clear error past it."

use crate::config;
use crate::ledger::{LEADER, fork, one, run};
use crate::script::{any_limit, logs};
use proptest::prelude::*;
use quorate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
use quorate::limits::{
    KEYS_DEFAULT, KEYS_EXPIRED_PER_ENTRY_MAX, REQUEST_ID_RETENTION_NS, REQUEST_IDS_EXPIRED_PER_ENTRY_MAX,
};
use quorate::state::{Acquire, Applied, Batch, Command, Identity, Machine, Outcome, Stamp};

const SECOND: u64 = 1_000_000_000;

fn limit(rate: &str, max_reserved: u32) -> Limit {
    Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
}

fn acquire(key: &str, limit: &Limit) -> Acquire {
    Acquire::one(Key::new(key).unwrap(), Some(*limit), 1, Terms::default())
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
    #![proptest_config(config(600))]

    /// "Idle keys leave memory when their state equals a fresh one", of every kind: not before, and not after. A key that was
    /// given back may stay until it would have left.
    #[test]
    fn everything_that_idles_leaves((log, limit) in (logs(16), any_limit())) {
        let (mut machine, _) = run(&log);
        let mine = Key::new("mine alone").unwrap();
        let mut last = machine.now();
        while let Outcome::Granted(grant) =
            one(&mut machine, last, Command::Acquire(Acquire::one(mine.clone(), Some(limit), 1, Terms::default())))
        {
            prop_assert!(grant.first.reset_after > Span::ZERO);
            last = machine.now();
        }
        let view = machine.view(&mine, last);
        prop_assert!(view.is_some());
        let leaves = last.after(view.map_or(Span::ZERO, |view| view.standing.reset_after));
        decide(&mut machine, &batch(leaves.0 - 1, KEYS_DEFAULT, []));
        prop_assert!(machine.view(&mine, leaves.before(Span(1))).is_some(), "not a nanosecond early");
        prop_assert_eq!(machine.view(&mine, leaves), None);
        // Once more, because a key whose turn in the index comes is only put where it stands by now.
        let mut kept = machine.keys();
        decide(&mut machine, &batch(leaves.0, KEYS_DEFAULT, []));
        prop_assert!(machine.keys() < kept);
        kept = machine.keys();
        decide(&mut machine, &batch(u64::MAX / 4, KEYS_DEFAULT, []));
        prop_assert_eq!((machine.keys(), machine.request_ids()), (0, 0), "{} before", kept);
    }

    /// P3: "a read is one point in a single order": it tells what a request for one permit would get, with the terms that nobody
    /// had to say. `remaining` of them are granted one after the other and no more; the first one that is refused is told to come
    /// back when the view says.
    #[test]
    fn a_view_is_what_a_request_would_meet(log in logs(16)) {
        let (machine, _) = run(&log);
        let restored = fork(&machine);
        for key in ["a", "ab", "c", "d", "github: Zürich", "ключ"].map(|key| Key::new(key).unwrap()) {
            let view = machine.view(&key, machine.now());
            prop_assert_eq!(&view, &restored.view(&key, Time::ZERO), "never back, and the same after a restore");
            let Some(view) = view else { continue };
            let mut twin = fork(&machine);
            let now = machine.now();
            let ask = Command::Acquire(Acquire::one(key.clone(), Some(view.limit), 1, Terms::default()));
            let mut standing = view.standing;
            for left in (0..view.standing.remaining.min(50)).rev() {
                prop_assert_eq!(standing.retry_after, Span::ZERO, "{:?}", standing);
                let outcome = one(&mut twin, now, ask.clone());
                let Outcome::Granted(grant) = &outcome else {
                    return Err(TestCaseError::fail(format!("{left} more should be granted: {outcome:?} of {view:?}")));
                };
                prop_assert_eq!(grant.slot, standing.next);
                let after = twin.view(&key, now).map(|view| view.standing);
                prop_assert_eq!(after.map(|after| (after.remaining, after.reserved)), Some((grant.first.remaining, grant.first.reserved)));
                if view.standing.remaining <= 50 {
                    prop_assert_eq!(grant.first.remaining, left, "of {:?}", view);
                }
                standing = after.unwrap_or(standing);
            }
            if view.standing.remaining <= 50 {
                prop_assert!(standing.retry_after > Span::ZERO, "{standing:?}");
                let outcome = one(&mut twin, now, ask);
                let Outcome::Denied { denial, .. } = outcome else {
                    return Err(TestCaseError::fail(format!("no more were left: {outcome:?} of {view:?}")));
                };
                prop_assert_eq!(denial.retry_after, standing.retry_after);
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
    let all = |prefix: &'static str| (0..count).map(move |index| acquire(&format!("{prefix} {index}"), &limit));
    // Those that will be indexed anew come first in the index, so one entry has no time for the others.
    decide(&mut machine, &batch(0, KEYS_DEFAULT, all("a")));
    decide(&mut machine, &batch(1, KEYS_DEFAULT, all("b")));
    decide(&mut machine, &batch(2, KEYS_DEFAULT, all("a")));
    decide(&mut machine, &batch(6 * SECOND + 1, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), 2 * count);
    decide(&mut machine, &batch(6 * SECOND + 1, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), count);
    decide(&mut machine, &batch(12 * SECOND, KEYS_DEFAULT, []));
    assert_eq!(machine.keys(), 0);
}

#[test]
fn a_bounded_number_of_request_ids_is_forgotten_per_entry() {
    let limit = limit("1000000/s", 10_000);
    let count = REQUEST_IDS_EXPIRED_PER_ENTRY_MAX + 10;
    let named = (0..count).map(|index| {
        let mut one = acquire("a", &limit);
        one.identity = Some(Identity::of(&format!("request {index}"), one.wanted()));
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
    let view = |reserved| Some((limit, Time(18 * SECOND), reserved, 3));
    let seen = |machine: &Machine, at| {
        let view = machine.view(&key, Time(at))?;
        Some((view.limit, view.standing.next, view.standing.reserved, view.permit))
    };
    assert_eq!(seen(&machine, 0), view(1), "the past is not offered again");
    assert_eq!(seen(&machine, 6 * SECOND), view(1));
    assert_eq!(seen(&machine, 12 * SECOND - 1), view(1));
    assert_eq!(seen(&machine, 12 * SECOND), view(0), "its slot has come");
    assert_eq!(seen(&machine, 18 * SECOND - 1), view(0));
    assert_eq!(seen(&machine, 18 * SECOND), None, "as good as fresh");
    assert_eq!(machine.keys(), 1, "looking forgets nothing");
}
