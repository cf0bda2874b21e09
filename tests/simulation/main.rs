//! The whole cluster in one thread: real nodes on a simulated network, simulated clocks and simulated disks, with faults.
//!
//! One seed decides a run: faults, delays, election timeouts, what a crash leaves of a disk, what workers ask. A run that
//! breaks an invariant prints the command that repeats it. `docs/SIMULATION.md` says what is simulated and what is not.
//!
//! Not decided by the seed, and not in the trace: the random instance number in each node's marker, of fixed length, which
//! peers only compare for equality.

mod clocks;
mod faults;
mod invariants;
mod machine;
mod network;
mod planted_bugs;
mod record;
mod rng;
mod run;
mod totals;
mod workers;

use quorate::clock::Stopwatch;
use run::run;
use std::time::Duration;
use totals::Totals;

/// Seeds of a run in CI; each is a simulated minute and its healing.
const SEEDS: u64 = 180;

/// Seeds that once broke something, or that reach what others rarely do: replayed for ever.
const KEPT: &str = include_str!("seeds.txt");

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number: {value}")))
}

/// How long faults go on in one run.
fn safety() -> Duration {
    Duration::from_secs(60 * env("SIM_MINUTES").unwrap_or(1))
}

/// One seed, with everything that is known of it: `SEED=7 cargo test --test simulation one_seed -- --nocapture`.
#[test]
fn one_seed() {
    let watch = Stopwatch::start();
    let outcome = run(env("SEED").unwrap_or(1), safety(), None);
    println!("{outcome}\nin {:?}", watch.elapsed());
    outcome.assert_good();
}

/// `SEEDS=12000 cargo test --test simulation many_seeds -- --nocapture` is the long run; `FIRST_SEED` goes on from there.
#[test]
fn many_seeds_break_nothing() {
    let (first, seeds) = (env("FIRST_SEED").unwrap_or(1_000), env("SEEDS").unwrap_or(SEEDS));
    let watch = Stopwatch::start();
    let mut totals = Totals::default();
    let mut broken = Vec::new();
    for seed in first..first + seeds {
        let outcome = run(seed, safety(), None);
        totals.add(&outcome);
        if !outcome.violations.is_empty() {
            println!("{outcome}");
            broken.push(seed);
        }
    }
    println!("{totals}in {:?}", watch.elapsed());
    assert!(broken.is_empty(), "{} of {seeds} seeds broke something: {broken:?}", broken.len());
    if seeds >= SEEDS {
        totals.assert_enough(seeds);
    }
}

#[test]
fn kept_seeds_break_nothing() {
    let lines = KEPT.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    for line in lines.filter(|line| !line.is_empty()) {
        let seed = line.parse().expect("a seed a line, and a word after #");
        run(seed, Duration::from_secs(60), None).assert_good();
    }
}

/// The same seed is the same run, down to every answer, every applied entry and every stamp.
#[test]
fn a_seed_is_a_run() {
    for seed in [1, 2, 3] {
        let [one, other] = [0, 1].map(|_| run(seed, Duration::from_secs(40), None));
        let differs = one.trace.iter().zip(&other.trace).position(|(one, other)| one != other);
        if let Some(at) = differs {
            let from = at.saturating_sub(20);
            println!("{:?}\n{:?}\n{:?}", &one.trace[from..at], &one.trace[at..][..6], &other.trace[at..][..6]);
        }
        assert_eq!(one.trace_hash(), other.trace_hash(), "seed {seed} was two runs, from note {differs:?} on");
    }
    let [one, other] = [1, 4].map(|seed| run(seed, Duration::from_secs(10), None));
    assert_ne!(one.trace_hash(), other.trace_hash(), "two seeds were one run");
}
