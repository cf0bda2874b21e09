//! The simulation would notice: each planted bug breaks an invariant within a few seeds.

use crate::run::run;
use quorate::planted::{self, Bug};
use std::time::Duration;

/// Runs seeds with the bug until one of these invariants breaks.
fn is_noticed(bug: Bug, within_seeds: u64, by: &[&str]) {
    if !planted::plant(None) {
        println!("SKIPPED {bug:?}: bugs can be planted only with debug assertions");
        assert!(std::env::var_os("NO_SKIP").is_none(), "{bug:?} must not be skipped");
        return;
    }
    for seed in 1..=within_seeds {
        let outcome = run(seed, Duration::from_secs(60), Some(bug));
        let found = outcome.violations.iter().find(|what| by.iter().any(|letter| what.starts_with(letter)));
        if let Some(what) = found {
            println!("{bug:?} was noticed after {seed} seeds: {what}");
            return;
        }
    }
    panic!("{bug:?} was not noticed within {within_seeds} seeds");
}

#[test]
fn an_append_acknowledged_before_it_is_durable() {
    is_noticed(Bug::AckBeforeDurable, 40, &["E", "U", "L", "a panic", "node"]);
}

#[test]
fn a_decision_from_a_followers_own_state() {
    is_noticed(Bug::FollowerDecides, 20, &["U", "L", "G"]);
}

#[test]
fn the_latest_time_known_as_the_new_leaders_time() {
    is_noticed(Bug::MaximumObservation, 40, &["M", "G"]);
}

#[test]
fn a_retry_decided_anew() {
    is_noticed(Bug::NoDedup, 20, &["U"]);
}

#[test]
fn a_stamp_taken_at_apply() {
    is_noticed(Bug::StampAtApply, 20, &["E", "U"]);
}

#[test]
fn a_stamp_that_counts_whoever_leads() {
    is_noticed(Bug::NoLeaderIdCheck, 100, &["M", "G"]);
}

#[test]
fn a_deadline_counted_from_the_retry() {
    is_noticed(Bug::RetryRestartsDeadline, 100, &["G"]);
}
