//! A model of cluster time: random histories of elections, clocks, networks and workers around the real arithmetic.
//!
//! What is real: `clock::Timeline` (rebase and reading), `limiter` (decisions, registers, deadlines, expiry). What is modelled:
//! Raft's elections and replication, clocks as functions of real time, workers. Because the model sees real time, it can
//! check what no node can:
//!
//! > **P1 Spacing.** Two permits of one key are never closer than the limit allows, in cluster time, whoever the leader was.
//!
//! > **P2 Starts.** With a start window `W` on the limit, two workers that obey `start_after`/`start_before` never *start*
//! > closer than the interval in real time.
//!
//! > **Lemma.** For entries i before j in the log, stamped at real times `s_i`, `s_j`: `C_j - C_i <= (1 + r)(s_j - s_i)`,
//! > where r bounds only how *fast* a node's elapsed time may run.
//!
//! And the lemma once more for what a node reads when it answers, on which the proof of P2 rests. No check has a
//! tolerance: real time moves on a grid on which every clock stands at a whole nanosecond.
//!
//! The same harness then runs under rules that are each one mistake away from the sound one, and has to find the fault.
//!
//! `QUORATE_HISTORIES=1000000` runs more; `QUORATE_SEED=…` replays one history with its trace.

#![expect(unreachable_pub, reason = "the modules of a test are nobody else's business anyway")]

mod clocks;
mod cluster;
mod faults;
mod history;
mod log;
mod oracle;
mod rng;
mod rule;
mod stats;
mod workers;

use history::History;
use oracle::Promise;
use rng::Rng;
use rule::Rule;
use stats::{Count, Stats};
use std::ops::Range;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Histories of the sound rule unless told otherwise.
const HISTORIES: u64 = 100_000;
/// Histories within which a mistake has to show itself.
const HISTORIES_WRONG_MAX: u64 = 40_000;
/// Histories a thread takes at a time.
const CHUNK: u64 = 64;

/// The sum over many histories.
struct Verdict {
    stats: Stats,
    violations: [u64; Promise::COUNT],
    /// Histories that broke any promise.
    broken: u64,
    /// The first seed that broke each promise.
    seeds: [Option<u64>; Promise::COUNT],
}

impl Verdict {
    const fn new() -> Self {
        Self { stats: Stats::new(), violations: [0; Promise::COUNT], broken: 0, seeds: [None; Promise::COUNT] }
    }

    fn add(&mut self, seed: u64, history: &History) {
        self.stats.merge(&history.stats);
        for violation in history.violations() {
            self.violations[violation.promise as usize] += 1;
            self.seeds[violation.promise as usize].get_or_insert(seed);
        }
        self.broken += u64::from(!history.violations().is_empty());
    }

    fn merge(&mut self, other: &Self) {
        self.stats.merge(&other.stats);
        for promise in 0..Promise::COUNT {
            self.violations[promise] += other.violations[promise];
            self.seeds[promise] = self.seeds[promise].or(other.seeds[promise]);
        }
        self.broken += other.broken;
    }
}

/// Runs the histories of these numbers, each from its own seed, on all cores.
fn run(rule: Rule, numbers: &Range<u64>) -> Verdict {
    let taken = AtomicU64::new(numbers.start);
    let work = || {
        let mut verdict = Verdict::new();
        loop {
            let from = taken.fetch_add(CHUNK, Ordering::Relaxed);
            if from >= numbers.end {
                return verdict;
            }
            for number in from..numbers.end.min(from + CHUNK) {
                let seed = Rng::new(number).next();
                // A panic is not a broken promise but a broken model: say where, then fail.
                let history = catch_unwind(|| History::run(seed, rule, false)).unwrap_or_else(|panic| {
                    eprintln!("the model itself fails under {rule:?} with QUORATE_SEED={seed}");
                    resume_unwind(panic)
                });
                verdict.add(seed, &history);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut total = Verdict::new();
        for worker in workers {
            total.merge(&worker.join().expect("a history that runs to its end"));
        }
        total
    })
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// Replays the history of `QUORATE_SEED`, if there is one, with every event it is made of.
fn replayed(rule: Rule) -> bool {
    let Some(seed) = number_from_env("QUORATE_SEED") else { return false };
    let history = History::run(seed, rule, true);
    println!("{}\nseed {seed} under {rule:?}: {:#?}", history.trace(), history.violations());
    assert!(rule != Rule::Sound || history.violations().is_empty(), "seed {seed} breaks a promise");
    true
}

#[test]
fn the_promises_hold_on_random_histories() {
    if replayed(Rule::Sound) {
        return;
    }
    let histories = number_from_env("QUORATE_HISTORIES").unwrap_or(HISTORIES);
    let verdict = run(Rule::Sound, &(0..histories));
    println!("{}", verdict.stats);
    if let Some(seed) = verdict.seeds.into_iter().flatten().next() {
        let history = History::run(seed, Rule::Sound, true);
        panic!(
            "{} of {histories} histories break a promise; one of them:\n{}\n{:#?}\nreplay it with\n    \
             QUORATE_SEED={seed} cargo test --test clock_model the_promises_hold -- --nocapture",
            verdict.broken,
            history.trace(),
            history.violations()
        );
    }
    if histories >= 1_000 {
        assert_something_happened(&verdict.stats);
    }
}

/// Each kind of trouble has to have happened, in quantity: at least this many times in a hundred histories.
fn assert_something_happened(stats: &Stats) {
    let histories = stats.get(Count::Histories);
    for (count, per_hundred) in [
        (Count::Failovers, 300),
        (Count::SameTermFailovers, 40),
        (Count::Freezes, 50),
        (Count::Pauses, 50),
        (Count::Slews, 50),
        (Count::RateChanges, 50),
        (Count::Restarts, 50),
        (Count::Reboots, 50),
        (Count::LateDeliveries, 200),
        (Count::Truncations, 30),
        (Count::Snapshots, 100),
        (Count::Purges, 40),
        (Count::StaleEntries, 20),
        (Count::Stamps, 2_000),
        (Count::Grants, 500),
        (Count::Denials, 500),
        (Count::Retries, 1_000),
        (Count::RetriesAnswered, 200),
        (Count::AnswersLost, 100),
        (Count::AnswersExpired, 100),
        (Count::Discards, 100),
        (Count::Starts, 300),
    ] {
        let seen = stats.get(count);
        assert!(seen * 100 >= per_hundred * histories, "only {seen} {count:?} in {histories} histories");
    }
    // Workers went to the very edge of what they may: otherwise the checks above would check nothing.
    assert!(stats.closest_ns < 5_000_000, "no two starts came closer than {} ns to the interval", stats.closest_ns);
}

/// Runs a wrong rule until it has broken this promise so many times, which has to happen soon enough.
fn must_break(rule: Rule, promise: Promise, times: u64) {
    const ROUND: u64 = 1_000;
    if replayed(rule) {
        return;
    }
    let mut verdict = Verdict::new();
    while verdict.violations[promise as usize] < times && verdict.stats.get(Count::Histories) < HISTORIES_WRONG_MAX {
        let from = verdict.stats.get(Count::Histories);
        verdict.merge(&run(rule, &(from..from + ROUND)));
    }
    let [lemma, readings, spacing, starts] = verdict.violations;
    println!(
        "{rule:?}: {} of {} histories break a promise: lemma {lemma}, readings {readings}, spacing {spacing}, \
         starts {starts}; {promise:?} with QUORATE_SEED={}",
        verdict.broken,
        verdict.stats.get(Count::Histories),
        verdict.seeds[promise as usize].unwrap_or_default(),
    );
    assert!(verdict.violations[promise as usize] >= times, "the harness does not find out {rule:?}");
}

#[test]
fn the_latest_time_known_is_wrong() {
    must_break(Rule::LatestKnown, Promise::Starts, 200);
}

#[test]
fn the_latest_time_of_the_last_leader_is_wrong() {
    must_break(Rule::LatestOfLastLeader, Promise::Starts, 100);
}

#[test]
fn one_base_for_a_whole_reign_is_wrong() {
    must_break(Rule::OneBase, Promise::Starts, 3);
}

#[test]
fn applying_stale_entries_is_wrong() {
    must_break(Rule::NoLeaderCheck, Promise::Starts, 1);
}

#[test]
fn a_stale_entry_is_no_base() {
    must_break(Rule::StaleEntryAsBase, Promise::Starts, 1);
}

#[test]
fn a_retry_that_restarts_the_deadline_is_wrong() {
    must_break(Rule::DeadlineFromRetry, Promise::Starts, 200);
}

#[test]
fn an_observation_that_outlives_its_entry_is_wrong() {
    must_break(Rule::ObservationOutlivesEntry, Promise::Starts, 3);
}

#[test]
fn the_observation_of_a_snapshots_sender_is_wrong() {
    must_break(Rule::ObservationOfSender, Promise::Starts, 3);
}

#[test]
fn an_observation_off_other_clocks_is_wrong() {
    must_break(Rule::AnyClock, Promise::Starts, 3);
}

#[test]
fn the_slewed_clock_alone_is_wrong() {
    must_break(Rule::MonotonicOnly, Promise::Starts, 50);
}

#[test]
fn a_window_that_drift_does_not_shrink_is_wrong() {
    must_break(Rule::WholeWindow, Promise::Starts, 50);
}
