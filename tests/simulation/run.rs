//! One run: a cluster and its workers from one seed, first with faults, then without.

use crate::clocks::MachineClocks;
use crate::faults::{Counts, Faults, LATENCY_MAX};
use crate::invariants;
use crate::machine::Machine;
use crate::network::{Gates, WORKERS, host_name};
use crate::record::{Answer, Record, Said};
use crate::rng::Rng;
use crate::workers::{Crew, Phase};
use quorate::planted::{self, Bug};
use quorate::raft::{MemoryDisk, seed_engines};
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(5);

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) simulated: Duration,
    pub(crate) counts: Counts,
    pub(crate) answers: usize,
    pub(crate) grants: usize,
    pub(crate) starts: usize,
    pub(crate) entries: usize,
    pub(crate) leaders: usize,
    /// Snapshots that nodes started from, or got from a peer.
    pub(crate) snapshots: u64,
    pub(crate) healed_after: Option<Duration>,
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<Vec<u64>>,
}

impl Outcome {
    /// A short name of everything that happened.
    pub(crate) fn trace_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for word in self.trace.iter().flatten() {
            hasher.update(&word.to_le_bytes());
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    /// Panics with everything that is known if an invariant was broken.
    pub(crate) fn assert_good(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?} simulated, trace {}, healed after {:?}",
            self.seed,
            self.simulated,
            self.trace_hash(),
            self.healed_after
        )?;
        writeln!(
            f,
            "{} leaders, {} snapshots, {} entries, {} answers, {} grants, {} starts",
            self.leaders, self.snapshots, self.entries, self.answers, self.grants, self.starts
        )?;
        write!(f, "{:?}", self.counts)?;
        for what in self.violations.iter().take(10) {
            write!(f, "\n  {what}")?;
        }
        if !self.violations.is_empty() {
            let seed = self.seed;
            write!(
                f,
                "\n  {} in all; again: SEED={seed} cargo test --test simulation one_seed -- --nocapture",
                self.violations.len()
            )?;
        }
        Ok(())
    }
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A panic in a task of a node ends that task and nothing else: count them all.
fn notice_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(format!("a panic: {info}")));
            before(info);
        }));
    });
    PANICS.take();
}

/// Runs one seed with `safety` of faults.
pub(crate) fn run(seed: u64, safety: Duration, bug: Option<Bug>) -> Outcome {
    notice_panics();
    planted::plant(bug);
    let mut rng = Rng::new(seed);
    seed_engines(Some(rng.next()));
    let (gates, record, phase) = (Gates::default(), Record::default(), Phase::default());
    let mut sim = turmoil::Builder::new()
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(1_000_000))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(LATENCY_MAX)
        .tcp_capacity(4_096)
        .rng_seed(rng.next())
        .build();
    let machines: Vec<_> = (1..=3)
        .map(|id| Machine {
            id,
            clocks: MachineClocks::new(id),
            disk: MemoryDisk::new(rng.next()),
            gates: gates.clone(),
            record: record.clone(),
            phase: phase.clone(),
        })
        .collect();
    for machine in &machines {
        let machine = machine.clone();
        sim.host(host_name(machine.id), move || machine.clone().run());
    }
    let crew = Crew { gates, record: record.clone(), phase: phase.clone() };
    let served = Arc::new(Mutex::new(Vec::new()));
    let (worker_rng, probe_rng) = (rng.fork(), rng.fork());
    sim.client(host_name(WORKERS), {
        let served = Arc::clone(&served);
        async move {
            let probe = tokio::task::spawn_local(crew.clone().probe(probe_rng, served));
            crew.run(worker_rng).await?;
            probe.await?
        }
    });

    let mut faults = Faults::new(rng, machines);
    let step = |sim: &mut turmoil::Sim<'_>| sim.step().expect("no host fails as a whole");
    while sim.elapsed() < safety {
        faults.step(&mut sim);
        step(&mut sim);
    }
    faults.heal(&mut sim);
    phase.set(Phase::HEALED);
    let healed = sim.elapsed();
    while served.lock().expect("one thread").len() < 3 && sim.elapsed() < healed + 2 * invariants::heals::WITHIN {
        step(&mut sim);
    }
    let healed_after = served.lock().expect("one thread").get(2).map(|at| at.saturating_sub(healed));
    phase.set(Phase::QUIET);
    let quiet = sim.elapsed();
    while !record.events().settled() && sim.elapsed() < quiet + 2 * invariants::heals::WITHIN {
        step(&mut sim);
    }
    let settled_after = record.events().settled().then(|| sim.elapsed().saturating_sub(quiet));
    let simulated = sim.elapsed();
    drop(sim);
    seed_engines(None);
    planted::plant(None);

    let mut events = record.events();
    // Whoever still waits for an answer does not know what became of the request either.
    for (id, (worker, key, asked)) in std::mem::take(&mut events.open) {
        events.answers.push(Answer { worker, key, asked, answered: None, said: Said::Unknown { id } });
    }
    let mut violations = std::mem::take(&mut events.violations);
    violations.extend(PANICS.take());
    violations.extend(invariants::check(&events, violations.is_empty(), healed_after, settled_after));
    Outcome {
        seed,
        simulated,
        counts: faults.counts,
        answers: events.answers.len(),
        grants: events.answers.iter().filter(|answer| answer.said.is_granted()).count(),
        starts: events.starts.len(),
        entries: events.entries.len(),
        leaders: events.leaders.len(),
        snapshots: events.jumps,
        healed_after,
        violations,
        trace: std::mem::take(&mut events.trace),
    }
}
