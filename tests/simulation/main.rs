//! The whole cluster in one thread: real nodes on a simulated network, simulated clocks and simulated disks, with faults.
//!
//! `docs/SIMULATION.md` says how to run and replay it, and what is not simulated.

mod clocks;
mod faults;
mod invariants;
mod machine;
mod network;
mod record;
mod rng;
mod run;
mod workers;

use std::time::Duration;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn one_seed() {
    let seed = env("SEED").unwrap_or(1);
    let watch = quorate::clock::Stopwatch::start();
    let outcome = run::run(seed, Duration::from_secs(60 * env("SIM_MINUTES").unwrap_or(1)), None);
    println!(
        "seed {}: {:?} simulated in {:?}, {} leaders, {} entries, {} answers, {} grants, {} starts, healed after {:?}, trace {:016x}\n{:?}",
        outcome.seed,
        outcome.simulated,
        watch.elapsed(),
        outcome.leaders,
        outcome.entries,
        outcome.answers,
        outcome.grants,
        outcome.starts,
        outcome.healed_after,
        outcome.trace,
        outcome.counts
    );
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}
