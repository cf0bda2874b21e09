//! What a machine did with a log: the material that properties are stated on.

use crate::script::{Entry, Log};
use quorate::limiter::Time;
use quorate::state::{Acquire, Applied, Batch, Command, Grant, LeaderId, Machine, Outcome, Stamp};

/// The leader of entries that no script has.
pub(crate) const LEADER: LeaderId = LeaderId { term: u64::MAX, node: 1 };

/// One command, when it was decided, and how. Those of a `Several` stand here one by one.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    /// Which entry of the log, and which command of it.
    pub(crate) place: (usize, usize),
    pub(crate) now: Time,
    pub(crate) command: Command,
    pub(crate) outcome: Outcome,
    /// One of several in its command.
    pub(crate) of_several: bool,
}

impl Decided {
    /// The request and what it got, if it got anything new.
    pub(crate) fn granted(&self) -> Option<(&Acquire, &Grant)> {
        match (&self.command, &self.outcome) {
            (Command::Acquire(acquire), Outcome::Granted(grant)) if !grant.replayed => Some((acquire, grant)),
            _ => None,
        }
    }
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
    let mut decided = Vec::new();
    for ((index, command), outcome) in entry.batch.commands.iter().enumerate().zip(outcomes) {
        let place = (at, index);
        match (command, outcome) {
            (Command::Several(several), Outcome::Several(outcomes)) => {
                assert_eq!(outcomes.len(), several.acquires.len(), "one outcome a request");
                let one = |(acquire, outcome): (&Acquire, Outcome)| {
                    let command = Command::Acquire(acquire.clone());
                    Decided { place, now, command, outcome, of_several: true }
                };
                decided.extend(several.acquires.iter().zip(outcomes).map(one));
            }
            (command, outcome) => {
                decided.push(Decided { place, now, command: command.clone(), outcome, of_several: false });
            }
        }
    }
    decided
}

/// Decides commands that no script has, with room for any key.
pub(crate) fn decide(machine: &mut Machine, time: Time, commands: Vec<Command>) -> Vec<Outcome> {
    let batch = Batch { stamp: Stamp { leader: LEADER, time }, keys_max: u64::MAX, commands };
    match machine.apply(LEADER, &batch) {
        Applied::Decided { outcomes, .. } => outcomes,
        other => panic!("this leader's own stamp: {other:?}"),
    }
}

/// Decides one command.
pub(crate) fn one(machine: &mut Machine, time: Time, command: Command) -> Outcome {
    decide(machine, time, vec![command]).remove(0)
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
