//! What a key keeps when its limit changes, and which stored rule is in force.

use super::document::read;
use super::stage::{Stage, ms, sec};
use quorate::limiter::{Key, Limit, Member, Overrides, Reason, Terms};
use quorate::state::{Acquire, Command, Condition, Outcome, Pattern, Policy, policy_name};
use serde_json::{Value, json};

fn stage(limit: &Value) -> Stage {
    Stage::new(&[read(limit)])
}

/// "From spacing to spacing `next` is kept: what was granted keeps the distance it was granted with."
#[test]
fn spacing_keeps_next() {
    let mut stage = stage(&json!("1/m"));
    assert_eq!(stage.at(0).slots(2), [0, sec(60)]);
    let faster = json!({"rate": "10/s", "max_reserved": 10_000});
    assert_eq!(stage.at(sec(1)).change(read(&faster)).ask(), Ok(sec(120)), "after the minute that was promised");
    assert_eq!(stage.ask(), Ok(ms(120_100)), "and from there on at the new rate");
}

/// "A larger burst is there at once, less what is owed; a smaller one keeps what is owed, and waits until it is paid."
#[test]
fn a_bucket_stays_as_empty_as_it_was() {
    let bucket = |burst: u64| json!({"kind": "bucket", "rate": "10/s", "burst": burst});
    let mut larger = stage(&bucket(10));
    assert_eq!(larger.at(sec(1)).at_once(20), 10);
    assert_eq!(larger.change(read(&bucket(30))).at_once(40), 20);
    let mut smaller = stage(&bucket(30));
    assert_eq!(smaller.at(sec(1)).at_once(40), 30);
    smaller.change(read(&bucket(10)));
    assert_eq!(smaller.ask(), Err((Reason::ReservationsFull, ms(2_100))), "twenty are over the new burst, and one");
}

/// "Permits that are owed stay owed, at the new rate."
#[test]
fn a_slower_bucket_is_owed_as_many_permits() {
    let mut stage = stage(&json!({"kind": "bucket", "rate": "10/s", "burst": 5}));
    assert_eq!(stage.at(sec(1)).at_once(4), 4);
    stage.change(read(&json!({"kind": "bucket", "rate": "1/s", "burst": 5})));
    assert_eq!((stage.at_once(20), stage.ask()), (1, Err((Reason::ReservationsFull, sec(1)))));
    assert_eq!(stage.at(sec(4)).at_once(20), 3, "four were owed, and one was taken");
}

/// "From one window to another what was counted counts on; it may count longer, never shorter."
#[test]
fn a_window_keeps_its_counts() {
    let mut stage = stage(&json!({"kind": "window", "rate": "10/m"}));
    assert_eq!(stage.at(sec(30)).at_once(20), 10);
    stage.change(read(&json!({"kind": "window", "rate": "15/m", "resolution": "1s"})));
    assert_eq!(stage.at_once(20), 5);
    stage.change(read(&json!({"kind": "window", "rate": "15/m", "aligned": true})));
    assert_eq!((stage.at_once(20), stage.at(sec(60)).at_once(20)), (0, 15));
}

/// "From a window to a bucket and back what is owed stays owed."
#[test]
fn another_kind_inherits_what_is_owed() {
    let window = json!({"kind": "window", "rate": "10/m"});
    let bucket = json!({"kind": "bucket", "rate": "10/m", "burst": 12});
    let mut stage = stage(&window);
    assert_eq!(stage.at(sec(30)).at_once(20), 10);
    assert_eq!(stage.change(read(&bucket)).at_once(20), 2, "ten of the twelve are gone");
    assert_eq!(stage.at(sec(36)).at_once(20), 1, "and come back at the bucket's rate");
    assert_eq!(stage.change(read(&window)).at_once(20), 0);
}

/// "A key changes over with the first grant under the new limit: a denial changes nothing."
#[test]
fn a_key_changes_over_with_a_grant() {
    let fast = json!({"kind": "bucket", "rate": "10/s", "burst": 5});
    let slow = json!({"kind": "bucket", "rate": "1/s", "burst": 5});
    let mut denied = stage(&fast);
    assert_eq!(denied.at(sec(1)).at_once(20), 5);
    assert_eq!(denied.change(read(&slow)).ask(), Err((Reason::ReservationsFull, sec(1))), "five are owed, slowly");
    assert_eq!(denied.at(ms(1_500)).at_once(20), 5, "but the old bucket was full again by now");
    let mut granted = stage(&fast);
    assert_eq!(granted.at(sec(1)).at_once(4), 4);
    assert_eq!(granted.change(read(&slow)).at_once(20), 1);
    assert_eq!(granted.at(ms(1_500)).at_once(20), 0);
    assert_eq!(granted.at(sec(2)).at_once(20), 1);
}

/// "Leases run on, as long as they were granted for; a renewal gives the new length."
#[test]
fn leases_run_on() {
    let concurrency = |max: u64, lease: &str| json!({"kind": "concurrency", "max": max, "lease": lease});
    let mut stage = stage(&concurrency(4, "60s"));
    assert_eq!(stage.at(0).at_once(9), 4);
    stage.change(read(&concurrency(2, "10s")));
    assert_eq!(stage.at(sec(1)).ask(), Err((Reason::InFlightFull, sec(59))), "four run, two may");
    assert!(stage.release(1) && stage.release(2) && stage.release(3));
    assert_eq!(stage.ask(), Ok(sec(1)));
    assert_eq!(stage.renew(5), Some(sec(10)));
    assert_eq!(stage.renew(4), Some(sec(59)), "never shorter than it was");
}

/// "A ramp begins anew unless it is the same one."
#[test]
fn another_ramp_begins_anew() {
    let ramp = |rate: &str, over: &str| json!({"rate": rate, "ramp": {"from": "1/s", "over": over}});
    let mut stage = stage(&ramp("10/s", "10s"));
    for second in 0..=10 {
        stage.at(sec(second)).ask().unwrap();
    }
    let slots = stage.at(sec(11)).change(read(&ramp("20/s", "10s"))).slots(2);
    assert_eq!(slots[1] - slots[0], ms(50), "the same ramp to another rate has been climbed");
    let slots = stage.at(sec(12)).change(read(&ramp("20/s", "20s"))).slots(2);
    assert_eq!(slots[1] - slots[0], sec(1));
}

fn put(stage: &mut Stage, name: &str, pattern: &str, limit: &Value, overrides: Overrides) {
    let policy = Policy { pattern: Pattern::new(pattern).unwrap(), limit: read(limit), overrides };
    let put = Command::PutPolicy { name: policy_name(name).unwrap(), policy, condition: Condition::Always };
    let outcome = stage.command(put);
    assert!(matches!(outcome, Outcome::PolicyPut { .. }), "{outcome:?}");
}

/// The rule that decides, and the limit with what the request brought along.
fn rule(stage: &mut Stage, key: &str, limit: Option<Limit>) -> Option<(String, Limit)> {
    let acquire = Acquire::one(Key::new(key).unwrap(), limit, 1, Terms::default());
    match stage.command(Command::Acquire(acquire)) {
        Outcome::Granted(grant) => grant.first.rule.map(|rule| (rule.policy.to_string(), rule.limit)),
        Outcome::NoLimit { .. } => None,
        other => panic!("{other:?}"),
    }
}

/// "A whole key before any beginning, a longer beginning before a shorter one."
#[test]
fn the_most_specific_pattern_wins() {
    let mut stage = stage(&json!("1/s"));
    assert_eq!(rule(&mut stage, "github:token", None), None, "no rule and no limit: 404");
    for (name, pattern) in [("all", "*"), ("short", "github:*"), ("long", "github:user:*"), ("one", "github:user:7")] {
        put(&mut stage, name, pattern, &json!("10/s"), Overrides::NONE);
    }
    let mut name = |key: &str| rule(&mut stage, key, None).unwrap().0;
    assert_eq!(
        ["gitlab", "github:token", "github:user:", "github:user:70", "github:user:7"].map(&mut name),
        ["all", "short", "long", "long", "one"]
    );
}

/// "What `override` does not list is the rule's, whatever the request says; a limit of another kind brings nothing."
#[test]
fn a_request_brings_only_what_it_may() {
    let mut stage = stage(&json!("1/s"));
    let stored = json!({"rate": "10/s", "max_reserved": 5});
    put(&mut stage, "some", "a", &stored, Overrides::NONE.with(Member::MaxReserved));
    put(&mut stage, "all", "b", &stored, Overrides::NONE.with(Member::Limit));
    let brought = read(&json!({"rate": "1000/s", "max_reserved": 50}));
    let bucket = read(&json!({"kind": "bucket", "rate": "1000/s", "burst": 5}));
    let mut decided_by = |key: &str, limit: Limit| rule(&mut stage, key, Some(limit)).unwrap().1;
    assert_eq!(decided_by("a", brought), read(&json!({"rate": "10/s", "max_reserved": 50})));
    assert_eq!(decided_by("a", bucket), read(&stored));
    assert_eq!(decided_by("b", bucket), bucket);
}
