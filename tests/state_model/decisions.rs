//! P1 and P3: every decision is the oracle's, slots keep their distance, and what is not granted leaves no trace.

use crate::config;
use crate::ledger::{Decided, apply, fork, run, tick};
use crate::oracle::Terms;
use crate::script::{Log, logs};
use proptest::prelude::*;
use proptest::sample::Index;
use quorate::limiter::{Denial, Span, Time};
use quorate::state::{Acquire, Applied, Batch, Command, Grant, LeaderId, Machine, Outcome, Stamp};
use std::collections::BTreeMap;

const LEADER: LeaderId = LeaderId { term: u64::MAX, node: 1 };

/// The request alone in an entry, with room for any key.
fn alone(time: Time, acquire: &Acquire) -> Batch {
    let stamp = Stamp { leader: LEADER, time };
    Batch { stamp, keys_max: u64::MAX, commands: vec![Command::Acquire(acquire.clone())] }
}

fn fresh(decided: &Decided) -> Option<&Grant> {
    match &decided.outcome {
        Outcome::Granted(grant) if !grant.replayed => Some(grant),
        _ => None,
    }
}

/// Fresh grants by key, in the order they were given.
fn by_key(decided: &[Decided]) -> BTreeMap<&str, Vec<(&Decided, &Grant, Terms)>> {
    let mut keys: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for one in decided {
        if let (Some(grant), Some(limit)) = (fresh(one), &one.acquire.limit) {
            keys.entry(one.acquire.key.as_str()).or_default().push((one, grant, Terms::of(limit)));
        }
    }
    keys
}

proptest! {
    #![proptest_config(config(4_000))]

    /// P3: "Every answer, a grant *and* a denial *and* a read, is one point in a single order per cluster."
    #[test]
    fn every_decision_is_the_oracles(log in logs(24)) {
        let mut machine = Machine::default();
        let mut clock = Time::ZERO;
        for (at, entry) in log.0.iter().enumerate() {
            let decided = apply(&mut machine, at, entry);
            if let Some(verdicts) = &entry.verdicts {
                clock = clock.max(entry.batch.stamp.time);
                prop_assert_eq!(decided.len(), verdicts.len());
                for (one, verdict) in decided.iter().zip(verdicts) {
                    prop_assert_eq!(one.now, clock);
                    let differs = verdict.differs(&one.acquire, &one.outcome);
                    prop_assert!(differs.is_none(), "entry {at}: {}", differs.unwrap_or_default());
                }
            } else {
                prop_assert!(decided.is_empty(), "a stale stamp decides nothing");
            }
            prop_assert_eq!(machine.now(), clock);
            prop_assert_eq!((machine.keys(), machine.request_ids()), entry.held, "entry {}", at);
        }
    }

    /// P1: "Two permits of one key are never closer than the limit allows, in cluster time, whoever the leader was."
    #[test]
    fn slots_of_a_key_keep_their_distance(log in logs(24)) {
        let (_, decided) = run(&log);
        for (key, grants) in by_key(&decided) {
            for pair in grants.windows(2) {
                let ((one, earlier, terms), (_, later, _)) = (&pair[0], &pair[1]);
                let distance = u128::from(one.acquire.ask.cost) * terms.unit();
                let found = u128::from(later.slot.0) - u128::from(earlier.slot.0).min(u128::from(later.slot.0));
                prop_assert!(found >= distance, "{key}: {earlier:?} and {later:?} are not {distance} ns apart");
            }
            for (one, grant, _) in grants {
                prop_assert!(grant.slot >= one.now.after(one.acquire.ask.lead), "a slot lies ahead by the lead");
            }
        }
    }

    /// "It gets a fencing number (`permit`, strictly increasing over the whole cluster)".
    #[test]
    fn permits_count_up_without_a_gap(log in logs(24)) {
        let (machine, decided) = run(&log);
        let permits: Vec<_> = decided.iter().filter_map(fresh).map(|grant| grant.permit).collect();
        prop_assert_eq!(&permits, &(1..=permits.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(machine.permits(), permits.len() as u64);
    }

    /// P7: "Keys, reservations, […] everything has a limit": "never more than `max_reserved` are outstanding", and "a
    /// permit that is free now is granted whatever `max_reserved` says".
    #[test]
    fn reservations_are_bounded(log in logs(24)) {
        let (_, decided) = run(&log);
        for (key, grants) in by_key(&decided) {
            for (index, (one, grant, terms)) in grants.iter().enumerate() {
                let ahead: Vec<_> = grants[..=index].iter().filter(|(_, given, _)| given.slot > one.now).collect();
                // A reservation under a limit with closer slots was not made by this limit's rule.
                let by_this_rule = ahead.iter().all(|(_, _, earlier)| earlier.unit() >= terms.unit());
                if grant.slot > one.now && by_this_rule {
                    let most = terms.max_reserved;
                    prop_assert!(ahead.len() as u128 <= most, "{key}: {} ahead, {most} allowed: {one:?}", ahead.len());
                }
                if by_this_rule {
                    prop_assert!(grant.reserved >= ahead.len() as u64, "{key}: {grant:?}, and {} ahead", ahead.len());
                }
            }
        }
        let refused = decided.iter().filter(|one| matches!(one.outcome, Outcome::Denied(_)));
        for one in refused {
            let last = decided.iter().rfind(|given| {
                given.place < one.place && given.acquire.key == one.acquire.key && fresh(given).is_some()
            });
            prop_assert!(last.is_some(), "a key without a past has a free permit: {one:?}");
        }
    }

}

proptest! {
    #![proptest_config(config(2_000))]

    /// "A command that is not granted changes nothing", nor does a replay, nor an entry with a stale stamp: a machine that
    /// never saw them has the same state.
    #[test]
    fn what_is_not_granted_leaves_no_trace((log, cut) in (logs(16), any::<Index>())) {
        let (mut machine, mut twin) = (Machine::default(), Machine::default());
        let cut = cut.index(log.0.len());
        for (at, entry) in log.0.iter().enumerate() {
            let decided = apply(&mut machine, at, entry);
            if entry.batch.stamp.leader == entry.leader {
                let granted = decided.iter().filter(|one| fresh(one).is_some());
                let commands = granted.map(|one| Command::Acquire(one.acquire.clone())).collect();
                twin.apply(entry.leader, &Batch { commands, ..entry.batch.clone() });
            }
            if at == cut || at + 1 == log.0.len() {
                prop_assert_eq!(machine.freeze().digest(), twin.freeze().digest(), "entry {}", at);
            }
        }
    }

    /// An entry is its commands one after the other: how requests happen to share one is nobody's business.
    #[test]
    fn batching_decides_nothing(log in logs(16)) {
        let (machine, decided) = run(&log);
        let mut outcomes = Vec::new();
        let mut single = Machine::default();
        for entry in &log.0 {
            single.apply(entry.leader, &tick(&entry.batch));
            for command in &entry.batch.commands {
                let batch = Batch { commands: vec![command.clone()], ..entry.batch.clone() };
                if let Applied::Decided { outcomes: one, .. } = single.apply(entry.leader, &batch) {
                    outcomes.extend(one);
                }
            }
        }
        prop_assert_eq!(decided.into_iter().map(|one| one.outcome).collect::<Vec<_>>(), outcomes);
        prop_assert_eq!(machine.freeze().digest(), single.freeze().digest());
    }

    /// "When the same one could be granted if nobody else came": then, and not a nanosecond earlier.
    #[test]
    fn retry_after_is_exact((log, which) in (logs(12), any::<Index>())) {
        let (_, decided) = run(&log);
        let denials: Vec<_> = decided.iter().filter(|one| matches!(one.outcome, Outcome::Denied(_))).collect();
        if denials.is_empty() {
            return Ok(());
        }
        let one = denials[which.index(denials.len())];
        let Outcome::Denied(Denial { retry_after, .. }) = one.outcome else { return Ok(()) };
        prop_assert!(retry_after > Span::ZERO);
        let before = until(&log, one.place);
        let at = one.now.after(retry_after);
        let early = fork(&before).apply(LEADER, &alone(at.before(Span(1)), &one.acquire));
        prop_assert!(matches!(only(&early), Some(Outcome::Denied(_))), "a nanosecond early: {early:?}, {one:?}");
        let due = fork(&before).apply(LEADER, &alone(at, &one.acquire));
        prop_assert!(matches!(only(&due), Some(Outcome::Granted(_))), "after {retry_after}: {due:?}, {one:?}");
    }
}

/// The machine right after the command at `place`.
fn until(log: &Log, (last, index): (usize, usize)) -> Machine {
    let mut machine = Machine::default();
    for (at, entry) in log.0.iter().enumerate().take(last + 1) {
        let mut batch = entry.batch.clone();
        if at == last {
            batch.commands.truncate(index + 1);
        }
        machine.apply(entry.leader, &batch);
    }
    machine
}

fn only(applied: &Applied) -> Option<&Outcome> {
    match applied {
        Applied::Decided { outcomes, .. } => outcomes.first(),
        _ => None,
    }
}
