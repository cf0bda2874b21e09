//! P5: "At most once. A retry with the same `request_id` gets the same permit, from any node, also after a failover", for
//! "the retention time of the id".

use crate::config;
use crate::ledger::{Decided, bytes, fork, run};
use crate::script::logs;
use proptest::prelude::*;
use quorate::limiter::{Ask, Key, Limit, Spacing, Span, Time};
use quorate::limits::{KEYS_DEFAULT, REQUEST_ID_RETENTION_NS};
use quorate::state::{Acquire, Applied, Batch, Command, Grant, Identity, LeaderId, Machine, Outcome, Stamp};

const LEADER: LeaderId = LeaderId { term: u64::MAX, node: 2 };

fn grant(decided: &Decided) -> Option<&Grant> {
    if let Outcome::Granted(grant) = &decided.outcome { Some(grant) } else { None }
}

/// Asks for one permit at an instant and says how that went.
fn ask(machine: &mut Machine, time: Time, acquire: &Acquire) -> Outcome {
    let stamp = Stamp { leader: LEADER, time };
    let batch = Batch { stamp, keys_max: KEYS_DEFAULT, commands: vec![Command::Acquire(acquire.clone())] };
    match machine.apply(LEADER, &batch) {
        Applied::Decided { mut outcomes, .. } if outcomes.len() == 1 => outcomes.remove(0),
        other => panic!("one command, one outcome: {other:?}"),
    }
}

/// A request that no script makes.
fn request(id: &str) -> Acquire {
    let key = Key::new("of these tests alone").unwrap();
    let limit = Some(Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::from_millis(250), 10).unwrap()));
    let identity = Some(Identity::of(id, &key, limit.as_ref(), 1));
    Acquire { key, limit, ask: Ask::default(), identity }
}

proptest! {
    #![proptest_config(config(4_000))]

    /// "The same permit": with its slot, its stamp and its deadlines, and only while the id is remembered.
    #[test]
    fn a_replay_is_the_first_answer_again(log in logs(24)) {
        let (_, decided) = run(&log);
        for (index, one) in decided.iter().enumerate() {
            let Some(answer) = grant(one).filter(|answer| answer.replayed) else { continue };
            let first = decided[..index].iter().find(|first| {
                grant(first).is_some_and(|grant| !grant.replayed && grant.permit == answer.permit)
            });
            prop_assert!(first.is_some(), "never granted before: {one:?}");
            let Some((first, given)) = first.and_then(|first| Some((first, grant(first)?))) else { continue };
            prop_assert_eq!(Grant { replayed: true, reserved: answer.reserved, ..*given }, *answer);
            prop_assert_eq!(first.acquire.identity, one.acquire.identity);
            prop_assert_eq!(&first.acquire.key, &one.acquire.key);
            prop_assert_eq!(first.acquire.ask.cost, one.acquire.ask.cost);
            prop_assert!(one.now.since(first.now) < Span(REQUEST_ID_RETENTION_NS), "should be forgotten: {one:?}");
        }
    }

    /// "A grant that was answered is never […] given twice": an id gets no second permit within its retention.
    #[test]
    fn an_id_gets_one_permit(log in logs(24)) {
        let (_, decided) = run(&log);
        for (index, one) in decided.iter().enumerate() {
            let (Some(identity), Some(given)) = (one.acquire.identity, grant(one).filter(|grant| !grant.replayed)) else {
                continue;
            };
            let twice = decided[index + 1..].iter().find(|later| {
                later.acquire.identity.is_some_and(|again| again.id == identity.id)
                    && later.now.since(one.now) < Span(REQUEST_ID_RETENTION_NS)
                    && grant(later).is_some_and(|grant| grant.permit != given.permit)
            });
            prop_assert!(twice.is_none(), "{one:?}\nand again {twice:?}");
        }
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    /// Ids are forgotten after the retention, to the nanosecond, whatever else happens and with or without a snapshot.
    #[test]
    fn an_id_is_remembered_for_its_retention_exactly((log, restored) in (logs(12), any::<bool>())) {
        let (mut machine, _) = run(&log);
        let asked = request("mine");
        let start = machine.now();
        let Outcome::Granted(first) = ask(&mut machine, start, &asked) else {
            return Err(TestCaseError::fail("a fresh key grants"));
        };
        if restored {
            machine = fork(&machine);
        }
        let last = start.after(Span(REQUEST_ID_RETENTION_NS - 1));
        for time in [start, last] {
            let before = machine.permits();
            let Outcome::Granted(again) = ask(&mut machine, time, &asked) else {
                return Err(TestCaseError::fail("a retry gets the same permit"));
            };
            prop_assert_eq!(Grant { replayed: true, reserved: again.reserved, ..first }, again);
            prop_assert_eq!(machine.permits(), before);
        }
        let another = Acquire { identity: Some(Identity::of("mine", &asked.key, asked.limit.as_ref(), 2)), ..asked.clone() };
        prop_assert_eq!(ask(&mut machine, last, &another), Outcome::RequestIdReused);
        let Outcome::Granted(second) = ask(&mut machine, last.after(Span(1)), &asked) else {
            return Err(TestCaseError::fail("a forgotten id is a new request"));
        };
        prop_assert!(!second.replayed && second.permit > first.permit);
    }
}

#[test]
fn a_denied_request_is_a_fresh_question_under_the_same_id() {
    let mut machine = Machine::default();
    let hasty = |id| Acquire { ask: Ask { free_now_only: true, ..Ask::default() }, ..request(id) };
    assert!(matches!(ask(&mut machine, Time(0), &hasty("first")), Outcome::Granted(_)));
    assert!(matches!(ask(&mut machine, Time(0), &hasty("second")), Outcome::Denied(_)));
    assert_eq!(machine.request_ids(), 1, "only grants are remembered");
    let free = Time(6_250_000_000);
    let Outcome::Granted(grant) = ask(&mut machine, free, &hasty("second")) else { panic!("free by now") };
    assert_eq!((grant.permit, grant.replayed), (2, false));
}

/// "Not the terms of waiting, which a retry may shorten."
#[test]
fn a_retry_may_wait_less_than_the_first_try() {
    let mut machine = Machine::default();
    ask(&mut machine, Time(0), &request("first"));
    let Outcome::Granted(first) = ask(&mut machine, Time(0), &request("second")) else { panic!("a reservation") };
    let mut retry = request("second");
    retry.ask = Ask { max_wait: Some(Span::ZERO), free_now_only: true, ..retry.ask };
    let before = bytes(&machine);
    let Outcome::Granted(again) = ask(&mut machine, Time(0), &retry) else { panic!("the same permit") };
    assert_eq!(Grant { replayed: true, ..first }, again);
    assert_eq!(before, bytes(&machine), "a replay consumes nothing");
}
