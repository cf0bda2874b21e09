//! What a machine did with a log: the material that properties are stated on.

use crate::script::{Entry, Log};
use quorate::limiter::Time;
use quorate::state::{Acquire, Applied, Batch, Command, Machine, Outcome};

/// One command, when it was decided, and how.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    /// Which entry of the log, and which command of it.
    pub(crate) place: (usize, usize),
    pub(crate) now: Time,
    pub(crate) acquire: Acquire,
    pub(crate) outcome: Outcome,
}

/// Runs a log through a fresh machine.
pub(crate) fn run(log: &Log) -> (Machine, Vec<Decided>) {
    let mut machine = Machine::default();
    let decided = log.0.iter().enumerate().flat_map(|(at, entry)| apply(&mut machine, at, entry)).collect();
    (machine, decided)
}

/// Runs one entry.
pub(crate) fn apply(machine: &mut Machine, at: usize, entry: &Entry) -> Vec<Decided> {
    let Applied::Decided { now, outcomes } = machine.apply(entry.leader, &entry.batch) else { return Vec::new() };
    assert_eq!(outcomes.len(), entry.batch.commands.len(), "one outcome a command");
    let commands = entry.batch.commands.iter().enumerate().zip(outcomes);
    commands
        .map(|((index, Command::Acquire(acquire)), outcome)| Decided {
            place: (at, index),
            now,
            acquire: acquire.clone(),
            outcome,
        })
        .collect()
}

/// A copy of a machine, by way of its bytes.
pub(crate) fn fork(machine: &Machine) -> Machine {
    Machine::read(&mut bytes(machine).as_slice()).expect("a machine reads what it wrote")
}

/// The snapshot of a machine.
pub(crate) fn bytes(machine: &Machine) -> Vec<u8> {
    let mut bytes = Vec::new();
    machine.freeze().write(&mut bytes).expect("a vector takes every byte");
    bytes
}

/// The entry without commands at the same instant.
pub(crate) fn tick(batch: &Batch) -> Batch {
    Batch { commands: Vec::new(), ..batch.clone() }
}
