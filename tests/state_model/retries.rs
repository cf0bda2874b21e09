//! P5: "At most once. A retry with the same `request_id` gets the same permit, from any node, also after a failover", for
//! "the retention time of the id".

use crate::config;
use crate::ledger::{Decided, bytes, fork, one, run};
use crate::script::logs;
use proptest::prelude::*;
use quorate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
use quorate::limits::REQUEST_ID_RETENTION_NS;
use quorate::state::{
    Acquire, Command, Grant, Held, Identity, Machine, Outcome, Permit, Wanted, Withdraw, request_id_hash,
};

fn grant(decided: &Decided) -> Option<(&Acquire, &Grant)> {
    match (&decided.command, &decided.outcome) {
        (Command::Acquire(acquire), Outcome::Granted(grant)) => Some((acquire, grant)),
        _ => None,
    }
}

/// Asks for one permit at an instant and says how that went.
fn ask(machine: &mut Machine, time: Time, acquire: &Acquire) -> Outcome {
    one(machine, time, Command::Acquire(acquire.clone()))
}

/// A request that no script makes.
fn request(id: &str) -> Acquire {
    let key = Key::new("of these tests alone").unwrap();
    let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::from_millis(250), 10).unwrap());
    let mut acquire = Acquire::one(key, Some(limit), 1, Terms::default());
    acquire.identity = Some(Identity::of(id, acquire.wanted()));
    acquire
}

/// What stays the same in every answer to one request: all but how its keys stand by now.
fn lasting(grant: &Grant) -> Grant {
    let lasting = |permit: &Permit| Permit { reserved: 0, remaining: 0, reset_after: Span::ZERO, ..permit.clone() };
    let (first, more) = (lasting(&grant.first), grant.more.iter().map(lasting).collect());
    Grant { replayed: true, first, more, ..grant.clone() }
}

/// Whether what a request got was given back, or its keys forgotten, between two of its answers.
fn given_back(decided: &[Decided], grant: &Grant) -> bool {
    let numbers = grant.first.number..=grant.first.number + grant.more.len() as u64;
    decided.iter().any(|one| match (&one.command, &one.outcome) {
        (Command::Release(held), Outcome::Released(true)) => numbers.contains(&held.permit),
        (Command::Withdraw(_), Outcome::Withdrawn(permits)) => permits.iter().any(Option::is_some),
        _ => false,
    })
}

proptest! {
    #![proptest_config(config(1_500))]

    /// "The same permit": with its slot, its stamp and its deadlines, and only while the id is remembered.
    #[test]
    fn a_replay_is_the_first_answer_again(log in logs(24)) {
        let (_, decided) = run(&log);
        for (index, one) in decided.iter().enumerate() {
            let Some((again, answer)) = grant(one).filter(|(_, answer)| answer.replayed) else { continue };
            let first = decided[..index].iter().find_map(|first| {
                let (asked, given) = first.granted()?;
                (given.first.number == answer.first.number).then_some((first, asked, given))
            });
            prop_assert!(first.is_some(), "never granted before: {one:?}");
            let Some((first, asked, given)) = first else { continue };
            prop_assert_eq!(lasting(given), lasting(answer));
            prop_assert_eq!(asked.identity, again.identity);
            prop_assert!(asked.wanted().eq(again.wanted()));
            // One that is held is remembered from its slot on.
            let from = if answer.slot > first.now { answer.slot } else { first.now };
            prop_assert!(one.now.since(from) < Span(REQUEST_ID_RETENTION_NS), "should be forgotten: {one:?}");
        }
    }

    /// "A grant that was answered is never […] given twice": an id gets no second permit within its retention, unless it gave
    /// the first one back.
    #[test]
    fn an_id_gets_one_permit(log in logs(24)) {
        let (_, decided) = run(&log);
        for (index, one) in decided.iter().enumerate() {
            let Some((acquire, given)) = one.granted() else { continue };
            let Some(identity) = acquire.identity else { continue };
            let twice = decided[index + 1..].iter().position(|later| {
                grant(later).is_some_and(|(again, other)| {
                    again.identity.is_some_and(|again| again.id == identity.id)
                        && later.now.since(one.now) < Span(REQUEST_ID_RETENTION_NS)
                        && other.first.number != given.first.number
                })
            });
            let Some(twice) = twice.map(|at| index + 1 + at) else { continue };
            prop_assert!(given_back(&decided[index..twice], given), "{one:?}\nand again {:?}", decided[twice]);
        }
    }
}

proptest! {
    #![proptest_config(config(500))]

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
            prop_assert!(again.replayed);
            prop_assert_eq!(lasting(&first), lasting(&again));
            prop_assert_eq!(machine.permits(), before);
        }
        let dearer = Wanted { cost: 2, ..asked.first.clone() };
        let another = Acquire { identity: Some(Identity::of("mine", [&dearer])), ..asked.clone() };
        prop_assert_eq!(ask(&mut machine, last, &another), Outcome::RequestIdReused);
        let Outcome::Granted(second) = ask(&mut machine, last.after(Span(1)), &asked) else {
            return Err(TestCaseError::fail("a forgotten id is a new request"));
        };
        prop_assert!(!second.replayed && second.first.number > first.first.number);
    }
}

#[test]
fn a_denied_request_is_a_fresh_question_under_the_same_id() {
    let mut machine = Machine::default();
    let hasty = |id| Acquire { terms: Terms { free_now_only: true, ..Terms::default() }, ..request(id) };
    assert!(matches!(ask(&mut machine, Time(0), &hasty("first")), Outcome::Granted(_)));
    assert!(matches!(ask(&mut machine, Time(0), &hasty("second")), Outcome::Denied { .. }));
    assert_eq!(machine.request_ids(), 1, "only grants are remembered");
    let free = Time(6_250_000_000);
    let Outcome::Granted(grant) = ask(&mut machine, free, &hasty("second")) else { panic!("free by now") };
    assert_eq!((grant.first.number, grant.replayed), (2, false));
}

/// "Not the terms of waiting, which a retry may shorten."
#[test]
fn a_retry_may_wait_less_than_the_first_try() {
    let mut machine = Machine::default();
    ask(&mut machine, Time(0), &request("first"));
    let Outcome::Granted(first) = ask(&mut machine, Time(0), &request("second")) else { panic!("a reservation") };
    let mut retry = request("second");
    retry.terms = Terms { max_wait: Some(Span::ZERO), free_now_only: true, ..retry.terms };
    let before = bytes(&machine);
    let Outcome::Granted(again) = ask(&mut machine, Time(0), &retry) else { panic!("the same permit") };
    assert_eq!(Grant { replayed: true, ..first }, again);
    assert_eq!(before, bytes(&machine), "a replay consumes nothing");
}

/// "Asking again after the permit was given back" is a fresh question.
#[test]
fn after_a_release_a_retry_is_a_new_request() {
    let mut machine = Machine::default();
    ask(&mut machine, Time(0), &request("first"));
    let Outcome::Granted(second) = ask(&mut machine, Time(0), &request("second")) else { panic!("a reservation") };
    let held = Held { key: request("second").first.key, permit: second.first.number };
    assert_eq!(one(&mut machine, Time(0), Command::Release(held.clone())), Outcome::Released(true));
    assert_eq!(machine.request_ids(), 1);
    let Outcome::Granted(third) = ask(&mut machine, Time(0), &request("second")) else { panic!("a reservation") };
    assert_eq!(
        (third.slot, third.first.number, third.replayed),
        (second.slot, 3, false),
        "the same place, a new permit"
    );
    assert_eq!(one(&mut machine, Time(0), Command::Release(held)), Outcome::Released(false), "that one is gone");
    let Outcome::Granted(again) = ask(&mut machine, third.slot, &request("second")) else { panic!("the same permit") };
    assert!(again.replayed);
    let late = Held { key: request("second").first.key, permit: 3 };
    assert_eq!(one(&mut machine, third.slot, Command::Release(late)), Outcome::Released(false), "its slot has come");
}

/// "What the request got goes back, unless somebody else has asked under the same id since: then that one may rely on it."
#[test]
fn a_permit_that_two_rely_on_is_nobodys_to_withdraw() {
    let mut machine = Machine::default();
    let claimed = |claim| Acquire { claim, ..request("mine") };
    let keys = vec![request("mine").first.key];
    let withdraw = |id: &str, claim| Command::Withdraw(Withdraw { id: request_id_hash(id), claim, keys: keys.clone() });
    ask(&mut machine, Time(0), &request("before"));
    let nothing = Outcome::Withdrawn(vec![None]);
    ask(&mut machine, Time(0), &claimed(7));
    ask(&mut machine, Time(0), &claimed(7));
    let before = bytes(&machine);
    assert_eq!(one(&mut machine, Time(0), withdraw("mine", 8)), nothing, "not its own");
    assert_eq!(one(&mut machine, Time(0), withdraw("other", 7)), nothing);
    assert_eq!(before, bytes(&machine));
    assert_eq!(
        one(&mut machine, Time(0), withdraw("mine", 7)),
        Outcome::Withdrawn(vec![Some(2)]),
        "asked twice by one"
    );
    assert_eq!(one(&mut machine, Time(0), withdraw("mine", 7)), nothing, "once");
    let Outcome::Granted(grant) = ask(&mut machine, Time(0), &claimed(7)) else { panic!("a new request") };
    assert!(!grant.replayed && grant.first.number == 3);
    ask(&mut machine, Time(0), &claimed(8));
    for claim in [7, 8, 0] {
        assert_eq!(one(&mut machine, Time(0), withdraw("mine", claim)), nothing, "{claim}: two rely on it");
    }
}

/// A request for several keys goes back as a whole.
#[test]
fn a_withdrawal_gives_all_keys_back() {
    let mut machine = Machine::default();
    let other = Wanted { key: Key::new("another").unwrap(), ..request("x").first };
    let mut both = Acquire { more: vec![other.clone()], claim: 5, ..request("x") };
    both.identity = Some(Identity::of("both", both.wanted()));
    ask(&mut machine, Time(0), &request("before"));
    assert!(matches!(ask(&mut machine, Time(0), &both), Outcome::Granted(grant) if grant.more.len() == 1));
    let keys = both.wanted().map(|wanted| wanted.key.clone()).collect();
    let withdraw = Command::Withdraw(Withdraw { id: request_id_hash("both"), claim: 5, keys });
    assert_eq!(one(&mut machine, Time(0), withdraw), Outcome::Withdrawn(vec![Some(2), Some(3)]));
    let free = Acquire { first: other, terms: Terms { free_now_only: true, ..Terms::default() }, ..request("y") };
    assert!(matches!(ask(&mut machine, Time(0), &Acquire { identity: None, ..free }), Outcome::Granted(_)));
    assert_eq!(machine.request_ids(), 1);
}
