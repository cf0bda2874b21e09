//! What happened in one run, as seen from outside: the invariants read it, and its hash is the trace of the run.

use quorate::limiter::Time;
use quorate::node::Observer;
use quorate::state::{Acquire, Applied, Batch, Command, LeaderId, Outcome, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Clones are the same record.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Events>>);

/// Everything, in the order it happened.
#[derive(Default)]
pub(crate) struct Events {
    /// Committed entries with commands or ticks, by index: the first node to apply one enters it.
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// When a stamp was read, in true time: first and last, because a frozen clock gives the same one again.
    pub(crate) stamped: BTreeMap<(LeaderId, Time), (Duration, Duration)>,
    /// State digests that nodes gave, by applied index.
    pub(crate) digests: BTreeMap<u64, String>,
    pub(crate) answers: Vec<Answer>,
    /// Requests that are on their way, by id: who asks for which key since when.
    pub(crate) open: BTreeMap<u128, (u64, String, Duration)>,
    pub(crate) starts: Vec<Start>,
    /// The latest leader that anybody named: its term and the node.
    pub(crate) leader: Option<(u64, u64)>,
    /// Who led in each term, as far as anybody knew.
    pub(crate) leaders: BTreeSet<(u64, u64)>,
    /// What each node last said of its state.
    pub(crate) last_digests: BTreeMap<u64, (u64, String)>,
    /// How far each node has applied, and how often it went on from beyond that: only a snapshot does so.
    pub(crate) applied: BTreeMap<u64, u64>,
    pub(crate) jumps: u64,
    /// What is wrong already.
    pub(crate) violations: Vec<String>,
    /// Everything that happened, in a few numbers each.
    pub(crate) trace: Vec<Vec<u64>>,
}

/// One committed entry and what came of it.
pub(crate) struct Entry {
    pub(crate) hash: blake3::Hash,
    pub(crate) stamp: Stamp,
    /// What each request in it got, in order; those in line are entered one by one.
    pub(crate) decided: Vec<(Acquire, Outcome)>,
    pub(crate) withdrawn: Vec<u64>,
    pub(crate) by: u64,
}

/// One question of a worker and its answer.
pub(crate) struct Answer {
    pub(crate) worker: u64,
    pub(crate) key: String,
    pub(crate) asked: Duration,
    /// `None` if the worker gave up without knowing.
    pub(crate) answered: Option<Duration>,
    pub(crate) said: Said,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Granted {
        id: u128,
        number: u64,
        slot: Time,
        stamp: Time,
    },
    Denied,
    /// Certainly nothing happened.
    Refused,
    /// A look: the number of the last permit, if the key is known, and cluster time.
    Looked {
        permit: Option<u64>,
        now: Time,
    },
    Unknown {
        id: u128,
    },
}

impl Said {
    pub(crate) const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted { .. })
    }
}

/// A worker began its work.
pub(crate) struct Start {
    pub(crate) key: String,
    pub(crate) at: Duration,
    pub(crate) number: u64,
}

impl Record {
    pub(crate) fn events(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn violation(&self, what: String) {
        let mut events = self.events();
        events.note(&[0xbad]);
        events.violations.push(what);
    }
}

impl Events {
    /// Extends the trace.
    pub(crate) fn note(&mut self, what: &[u64]) {
        // Faults come from outside of any host, between two steps.
        let now = if turmoil::in_simulation() { turmoil::sim_elapsed() } else { None };
        let mut note = vec![now.map_or(0, nanos)];
        note.extend(what);
        self.trace.push(note);
    }

    pub(crate) fn digest(&mut self, node: u64, applied: u64, digest: String) {
        self.note(&[5, node, applied, head(digest.as_bytes())]);
        if let Some(other) = self.digests.get(&applied).filter(|other| **other != digest) {
            let what = format!("E: at entry {applied} node {node} has the state {digest}, another had {other}");
            self.violations.push(what);
        }
        self.digests.insert(applied, digest.clone());
        self.last_digests.insert(node, (applied, digest));
    }

    /// Whether all three nodes have last been seen in the same state.
    pub(crate) fn settled(&self) -> bool {
        let mut last = self.last_digests.values();
        let first = last.next();
        self.last_digests.len() == 3 && last.all(|other| Some(other) == first)
    }

    pub(crate) fn answer(&mut self, answer: Answer) {
        let said = match &answer.said {
            Said::Granted { number, slot, .. } => [1, *number, slot.0],
            Said::Denied => [2, 0, 0],
            Said::Refused => [3, 0, 0],
            Said::Looked { permit, now } => [4, permit.unwrap_or(0), now.0],
            Said::Unknown { .. } => [5, 0, 0],
        };
        self.note(&[1, answer.worker, nanos(answer.asked), answer.answered.map_or(0, nanos)]);
        self.note(&said);
        if let Said::Granted { id, .. } | Said::Unknown { id } = answer.said {
            self.open.remove(&id);
        }
        self.answers.push(answer);
    }

    pub(crate) fn start(&mut self, start: Start) {
        self.note(&[2, start.number, nanos(start.at)]);
        self.starts.push(start);
    }
}

/// The first eight bytes, as a number.
fn head(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a simulation of less than 500 years")
}

/// The eyes of the record in one node.
pub(crate) struct Eyes {
    pub(crate) node: u64,
    pub(crate) record: Record,
}

impl Observer for Eyes {
    fn applied(&self, index: u64, batch: &Batch, applied: &Applied) {
        let bytes = postcard::to_stdvec(&(batch, applied)).expect("what was replicated can be encoded");
        let hash = blake3::hash(&bytes);
        let mut events = self.record.events();
        events.note(&[3, self.node, index, head(hash.as_bytes())]);
        let before = events.applied.insert(self.node, index).unwrap_or(0);
        // Blank entries and changes of membership are not seen here: a leader's first entry is one.
        events.jumps += u64::from(index > before + 6);
        if let Some(known) = events.entries.get(&index) {
            if known.hash != hash {
                let what = format!(
                    "E: entry {index} was {:?} with {} requests on node {} and is {:?} with {} on node {}",
                    known.stamp,
                    known.decided.len(),
                    known.by,
                    batch.stamp,
                    batch.commands.len(),
                    self.node
                );
                events.violations.push(what);
            }
            return;
        }
        let (mut decided, mut withdrawn) = (Vec::new(), Vec::new());
        if let Applied::Decided { outcomes, .. } = applied {
            for (command, outcome) in batch.commands.iter().zip(outcomes) {
                match (command, outcome) {
                    (Command::Acquire(acquire), outcome) => decided.push((acquire.clone(), outcome.clone())),
                    (Command::Several(several), Outcome::Several(all)) => {
                        decided.extend(several.acquires.iter().cloned().zip(all.iter().cloned()));
                    }
                    (_, Outcome::Withdrawn(permits)) => withdrawn.extend(permits.iter().flatten()),
                    _ => {}
                }
            }
        }
        let entry = Entry { hash, stamp: batch.stamp, decided, withdrawn, by: self.node };
        events.entries.insert(index, entry);
    }

    fn membership(&self, index: u64, _at: Time, _voters: Vec<u64>, _learners: Vec<u64>) {
        self.record.events().note(&[4, self.node, index]);
    }

    fn leader(&self, node: u64, term: u64) {
        let mut events = self.record.events();
        events.note(&[6, self.node, node, term]);
        if events.leader.is_none_or(|(known, _)| known <= term) {
            events.leader = Some((term, node));
        }
        events.leaders.insert((term, node));
    }

    fn stamped(&self, stamp: &Stamp) {
        let now = turmoil::sim_elapsed().expect("stamps are read on a simulated host");
        let mut events = self.record.events();
        events.note(&[7, stamp.leader.node, stamp.time.0]);
        events.stamped.entry((stamp.leader, stamp.time)).or_insert((now, now)).1 = now;
    }
}
