//! P1 and P3: every decision is the oracle's, slots keep their distance, and what is not granted leaves no trace.

use crate::config;
use crate::ledger::{Decided, apply, fork, one, run, tick};
use crate::past::Figures;
use crate::script::{Log, logs};
use proptest::prelude::*;
use proptest::sample::Index;
use quorate::limiter::{Denial, Limit, Span, Time};
use quorate::state::{Applied, Batch, Command, Machine, Outcome};

proptest! {
    #![proptest_config(config(4_000))]

    /// P3: "Every answer, a grant *and* a denial *and* a read, is one point in a single order per cluster."
    #[test]
    fn every_decision_is_the_oracles(log in logs(24)) {
        let mut machine = Machine::default();
        let mut clock = Time::ZERO;
        for (at, entry) in log.0.iter().enumerate() {
            let applied = machine.apply(entry.leader, &entry.batch);
            match (&entry.verdicts, applied) {
                (Some(verdicts), Applied::Decided { now, outcomes }) => {
                    clock = clock.max(entry.batch.stamp.time);
                    prop_assert_eq!(now, clock);
                    prop_assert_eq!(outcomes.len(), verdicts.len());
                    for (command, (verdict, outcome)) in entry.batch.commands.iter().zip(verdicts.iter().zip(&outcomes)) {
                        let differs = verdict.differs(outcome);
                        prop_assert!(differs.is_none(), "entry {at}: {command:?}\n{}", differs.unwrap_or_default());
                    }
                }
                (None, Applied::StaleStamp) => {}
                (verdicts, applied) => prop_assert!(false, "{verdicts:?} and {applied:?}"),
            }
            prop_assert_eq!(machine.now(), clock);
            prop_assert_eq!((machine.keys(), machine.request_ids()), entry.held, "entry {}", at);
        }
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    /// "It gets a fencing number (`permit`, strictly increasing over the whole cluster)".
    #[test]
    fn permits_count_up_without_a_gap(log in logs(24)) {
        let (machine, decided) = run(&log);
        let grants = decided.iter().filter_map(Decided::granted);
        let permits: Vec<_> = grants.flat_map(|(_, grant)| grant.permits()).map(|permit| permit.number).collect();
        prop_assert_eq!(&permits, &(1..=permits.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(machine.permits(), permits.len() as u64);
    }

    /// "A command that is not granted changes nothing", nor does a replay but for whose it is, nor a release that comes too late,
    /// nor an entry with a stale stamp: a machine that never saw them has the same state.
    #[test]
    fn what_is_not_granted_leaves_no_trace((log, cut) in (logs(16), any::<Index>())) {
        let (mut machine, mut twin) = (Machine::default(), Machine::default());
        let cut = cut.index(log.0.len());
        for (at, entry) in log.0.iter().enumerate() {
            let decided = apply(&mut machine, at, entry);
            if entry.batch.stamp.leader == entry.leader {
                let effective = decided.iter().filter(|one| had_effect(&one.outcome));
                let commands = effective.map(|one| one.command.clone()).collect();
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
        let mut outcomes = Vec::new();
        let (mut machine, mut single) = (Machine::default(), Machine::default());
        let mut expected = Vec::new();
        for entry in &log.0 {
            if let Applied::Decided { outcomes, .. } = machine.apply(entry.leader, &entry.batch) {
                expected.extend(outcomes);
            }
            single.apply(entry.leader, &tick(&entry.batch));
            for command in &entry.batch.commands {
                let batch = Batch { commands: vec![command.clone()], ..entry.batch.clone() };
                if let Applied::Decided { outcomes: one, .. } = single.apply(entry.leader, &batch) {
                    outcomes.extend(one);
                }
            }
        }
        prop_assert_eq!(expected, outcomes);
        prop_assert_eq!(machine.freeze().digest(), single.freeze().digest());
    }

    /// "When the same one could be granted if nobody else came": then, and not a nanosecond earlier, for every kind of limit.
    /// Of several limits at once it is "a lower bound for all of them together".
    #[test]
    fn retry_after_is_exact((log, which) in (logs(12), any::<Index>())) {
        let (_, decided) = run(&log);
        let is_denied = |one: &&Decided| !one.of_several && matches!(one.outcome, Outcome::Denied { .. });
        let denials: Vec<_> = decided.iter().filter(is_denied).collect();
        if denials.is_empty() {
            return Ok(());
        }
        let denied = denials[which.index(denials.len())];
        let (Outcome::Denied { denial: Denial { retry_after, .. }, .. }, Command::Acquire(acquire)) =
            (&denied.outcome, &denied.command)
        else {
            return Ok(());
        };
        prop_assert!(*retry_after > Span::ZERO);
        let before = until(&log, denied.place);
        let at = denied.now.after(*retry_after);
        let early = one(&mut fork(&before), at.before(Span(1)), denied.command.clone());
        // `kinds.rs` knows what a ramp does not promise.
        let is_ramp = |limit| Figures::of(&limit).is_some_and(|figures| !figures.is_steady());
        let ramped = acquire.wanted().filter_map(|wanted| log.only_limit(&wanted.key)).any(is_ramp);
        prop_assert!(ramped || matches!(early, Outcome::Denied { .. }), "a nanosecond early: {early:?}, {denied:?}");
        if acquire.more.is_empty() && !ramped {
            let due = one(&mut fork(&before), at, denied.command.clone());
            prop_assert!(matches!(due, Outcome::Granted(_)), "after {retry_after}: {due:?}, {denied:?}");
        }
    }
}

/// Whether a command changed anything but who asked last.
fn had_effect(outcome: &Outcome) -> bool {
    match outcome {
        // A replay says from now on whose permit it is.
        Outcome::Granted(_)
        | Outcome::Released(true)
        | Outcome::Renewed { .. }
        | Outcome::Reset(true)
        | Outcome::PolicyPut { changed: true, .. }
        | Outcome::PolicyDeleted { .. } => true,
        Outcome::Withdrawn(permits) => permits.iter().any(Option::is_some),
        _ => false,
    }
}

/// The machine right before the command at `place`.
pub(crate) fn until(log: &Log, (last, index): (usize, usize)) -> Machine {
    let mut machine = Machine::default();
    for (at, entry) in log.0.iter().enumerate().take(last + 1) {
        let mut batch = entry.batch.clone();
        if at == last {
            batch.commands.truncate(index);
        }
        machine.apply(entry.leader, &batch);
    }
    machine
}

proptest! {
    #![proptest_config(config(1_000))]

    /// P7: "never more than `max_reserved` are outstanding", and "a permit that is free now is granted whatever `max_reserved`
    /// says". Those that another limit pushed ahead are not this limit's own, and a lead is no reservation of a bucket.
    #[test]
    fn reservations_are_bounded(log in logs(24)) {
        let (_, decided) = run(&log);
        for granted in decided.iter().filter(|one| one.granted().is_some_and(|(acquire, _)| acquire.more.is_empty())) {
            let Some((acquire, grant)) = granted.granted() else { continue };
            let Some(limit @ (Limit::Spacing(_) | Limit::Bucket(_))) = log.only_limit(&acquire.first.key) else { continue };
            let Some(figures) = Figures::of(&limit) else { continue };
            let pushed = decided.iter().any(|one| matches!(&one.command, Command::Acquire(other) if !other.more.is_empty()
                || other.terms.lead > Span::ZERO));
            if !pushed && grant.slot > granted.now {
                prop_assert!(u128::from(grant.first.reserved) <= figures.max_reserved, "{granted:?}");
            }
        }
    }
}
