//! Several requests in one command: each for itself, in line, or all or nothing.

use crate::ledger::{bytes, one};
use quorate::limiter::{Key, Limit, Reason, Spacing, Span, Terms, Time};
use quorate::state::{Acquire, Command, Identity, Machine, Outcome, Several, SeveralRule};

/// Three requests of which the second is refused.
fn three() -> Vec<Acquire> {
    let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 0).unwrap());
    let ask = |key: &str, id: &str| {
        let mut acquire = Acquire::one(Key::new(key).unwrap(), Some(limit), 1, Terms::default());
        acquire.identity = Some(Identity::of(id, acquire.wanted()));
        acquire
    };
    vec![ask("a", "first"), ask("a", "second"), ask("b", "third")]
}

/// What comes of them, in words, and whether anything changed.
fn decided(rule: SeveralRule, acquires: Vec<Acquire>) -> (Vec<&'static str>, u64, bool) {
    let mut machine = Machine::default();
    // So that keys and ids that were there before are there after.
    one(
        &mut machine,
        Time(5),
        Command::Acquire(Acquire::one(Key::new("b*").unwrap(), acquires[0].first.limit, 1, Terms::default())),
    );
    let before = bytes(&machine);
    let Outcome::Several(outcomes) = one(&mut machine, Time(5), Command::Several(Several { acquires, rule })) else {
        panic!("one for each")
    };
    let words = outcomes.iter().map(|outcome| match outcome {
        Outcome::Granted(grant) if grant.replayed => "again",
        Outcome::Granted(_) => "granted",
        Outcome::Denied { denial, .. } if denial.reason == Reason::ReservationsFull => "denied",
        Outcome::Skipped => "skipped",
        other => panic!("{other:?}"),
    });
    (words.collect(), machine.permits() - 1, bytes(&machine) != before)
}

#[test]
fn each_for_itself() {
    assert_eq!(decided(SeveralRule::Each, three()), (vec!["granted", "denied", "granted"], 2, true));
}

/// "Those after it are not tried: nobody overtakes."
#[test]
fn in_line() {
    assert_eq!(decided(SeveralRule::InLine, three()), (vec!["granted", "denied", "skipped"], 1, true));
}

/// "None of them is granted": not a byte changes, the numbers of permits included.
#[test]
fn all_or_nothing() {
    assert_eq!(decided(SeveralRule::AllOrNothing, three()), (vec!["skipped", "denied", "skipped"], 0, false));
    let mut two = three();
    two.remove(1);
    assert_eq!(decided(SeveralRule::AllOrNothing, two), (vec!["granted", "granted"], 2, true));
    // The same request twice is one request, and what it got goes back once.
    let [first, second, third] = three().try_into().unwrap();
    let twice = vec![first.clone(), first.clone(), third];
    assert_eq!(decided(SeveralRule::AllOrNothing, twice), (vec!["granted", "again", "granted"], 2, true));
    let twice = vec![first.clone(), first, second];
    assert_eq!(decided(SeveralRule::AllOrNothing, twice), (vec!["skipped", "skipped", "denied"], 0, false));
}
