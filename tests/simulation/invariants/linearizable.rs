//! **L**: every grant, denial and look at a key is one point in a single order, found by a checker that knows nothing of the
//! log's order.
//!
//! The model of a key: the number of its last permit and the first instant the next may take. A request whose worker never
//! learned what became of it may have taken effect at any time after it was sent, or never: if it is in the log it counts
//! with what the log says it got and no end; if not, it never happened.

use crate::record::{Events, Said, nanos};
use crate::workers::{INTERVAL, WINDOW};
use porcupine_rs::{CheckResult, Model, Operation, check_operations_timeout};
use quorate::limiter::Time;
use quorate::state::Outcome;
use std::collections::BTreeMap;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
struct Register;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    permit: u64,
    next_ns: u64,
}

#[derive(Debug, Clone)]
enum Op {
    Granted { number: u64, slot: Time },
    Denied,
    Looked { permit: Option<u64>, now: Time },
}

impl Model for Register {
    type State = State;
    type Op = Op;
    type Metadata = ();

    fn init() -> State {
        State { permit: 0, next_ns: 0 }
    }

    fn step(state: &State, op: &Op) -> (bool, State) {
        match op {
            Op::Granted { number, slot } => {
                let unit = nanos(INTERVAL + WINDOW);
                let fits = *number > state.permit && slot.0 >= state.next_ns;
                (fits, State { permit: *number, next_ns: slot.0 + unit })
            }
            // Nobody is denied on a key that nobody has used.
            Op::Denied => (state.permit > 0, *state),
            // An idle key is forgotten, and then nothing is known of it.
            Op::Looked { permit: None, now } => (state.next_ns <= now.0, *state),
            Op::Looked { permit: Some(permit), .. } => (*permit == state.permit, *state),
        }
    }
}

pub(crate) fn check(events: &Events) -> Vec<String> {
    let mut violations = Vec::new();
    for (key, history) in histories(events) {
        match check_operations_timeout::<Register>(&history, PATIENCE) {
            CheckResult::Ok => {}
            CheckResult::Illegal => {
                violations.push(format!("L: the history of {key} ({} operations) is not linearizable", history.len()));
                show(&history);
            }
            CheckResult::Unknown => {
                violations.push(format!("L: the history of {key} could not be checked within {PATIENCE:?}"));
            }
        }
    }
    violations
}

/// For whoever has to find out why.
fn show(history: &[Operation<Register>]) {
    let mut history = history.to_vec();
    history.sort_by_key(|operation| operation.call_time);
    for Operation { client_id, call_time, return_time, op, .. } in history {
        println!("{:>14} .. {:>20} worker {:?}: {op:?}", call_time / 1_000, return_time / 1_000, client_id);
    }
}

/// The history of every key whose permits are never given back.
fn histories(events: &Events) -> BTreeMap<&str, Vec<Operation<Register>>> {
    let mut in_log = BTreeMap::new();
    for (acquire, outcome) in events.entries.values().flat_map(|entry| &entry.decided) {
        if let (Some(identity), Outcome::Granted(grant)) = (acquire.identity, outcome) {
            in_log.insert(identity.id, Op::Granted { number: grant.first.number, slot: grant.slot });
        }
    }
    let mut histories: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for answer in events.answers.iter().filter(|answer| answer.key != "line") {
        let op = match &answer.said {
            Said::Granted { number, slot, .. } => Op::Granted { number: *number, slot: *slot },
            Said::Denied => Op::Denied,
            Said::Looked { permit, now } => Op::Looked { permit: *permit, now: *now },
            Said::Refused => continue,
            Said::Unknown { id } => match in_log.get(id) {
                Some(op) => op.clone(),
                None => continue,
            },
        };
        let time = |at: Duration| i64::try_from(at.as_nanos()).expect("a short run");
        histories.entry(&answer.key).or_default().push(Operation {
            client_id: u32::try_from(answer.worker).ok(),
            call_time: time(answer.asked),
            return_time: answer.answered.map_or(i64::MAX, time),
            op,
            metadata: None,
        });
    }
    histories
}
