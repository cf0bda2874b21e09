//! What a follower passes on to the leader: everything that has queued up goes in one message, and its answers come back in one.
//!
//! Invariants
//! - A request leaves at once: it rides with those that are there in the same moment, and waits for nobody.
//! - How certain an outcome is, is told to each as if it had travelled alone: what was not sent took no effect, what has no
//!   answer may have.
//!
//! Not here: who leads, and what to do about an answer (`search.rs`).

use super::forward::{Asked, Question, Reply};
use crate::clock::Deadline;
use crate::limits::{BATCH_COMMANDS_MAX, BATCH_WEIGHT_MAX, PROPOSALS_QUEUED_MAX};
use crate::raft::{self, CallError, Consensus};
use crate::state::Command;
use std::sync::{Arc, Weak};
use tokio::sync::{mpsc, oneshot};

/// Turns of the runtime that are left to connections whose requests are being read, so that they ride along.
const GATHER_TURNS: usize = 2;

/// The queue to the leader.
#[derive(Debug)]
pub(super) struct Forwarder {
    parcels: mpsc::Sender<Parcel>,
}

/// One request on its way.
#[derive(Debug)]
struct Parcel {
    to: u64,
    command: Command,
    queued_until: Deadline,
    deadline: Deadline,
    answer: oneshot::Sender<Result<Reply, CallError>>,
}

impl Forwarder {
    /// Starts the task that sends. It ends when the last handle, or consensus, is gone.
    pub(super) fn start(consensus: &Arc<Consensus>) -> Self {
        let (parcels, queue) = mpsc::channel(PROPOSALS_QUEUED_MAX);
        tokio::spawn(run(Arc::downgrade(consensus), queue));
        Self { parcels }
    }

    /// Has `command` decided by the node `to`.
    pub(super) async fn decide(
        &self,
        to: u64,
        command: Command,
        (queued_until, deadline): (Deadline, Deadline),
    ) -> Result<Reply, CallError> {
        let (answer, answered) = oneshot::channel();
        let parcel = Parcel { to, command, queued_until, deadline, answer };
        if self.parcels.try_send(parcel).is_err() {
            return Ok(Reply::Overloaded);
        }
        match tokio::time::timeout_at(deadline.instant(), answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::Lost("this node stopped before the leader answered".to_owned())),
            Err(_) => Err(CallError::Lost("no answer in time".to_owned())),
        }
    }
}

async fn run(consensus: Weak<Consensus>, mut queue: mpsc::Receiver<Parcel>) {
    let mut parcels = Vec::new();
    while queue.recv_many(&mut parcels, BATCH_COMMANDS_MAX).await > 0 {
        for _ in 0..GATHER_TURNS {
            tokio::task::yield_now().await;
        }
        while parcels.len() < BATCH_COMMANDS_MAX
            && let Ok(parcel) = queue.try_recv()
        {
            parcels.push(parcel);
        }
        let Some(consensus) = consensus.upgrade() else { return };
        // Whoever has gone away meanwhile does not want it decided.
        parcels.retain(|parcel| !parcel.answer.is_closed());
        while !parcels.is_empty() {
            let together = together(&mut parcels);
            tokio::spawn(send(Arc::clone(&consensus), together));
        }
    }
}

/// The first parcels that go to one node and fit into one message: one command may be a thousand requests.
fn together(parcels: &mut Vec<Parcel>) -> Vec<Parcel> {
    let to = parcels.first().map(|parcel| parcel.to);
    let mut weight = 0;
    let fitting = parcels.iter().take_while(|parcel| {
        weight += parcel.command.weight();
        Some(parcel.to) == to && weight <= BATCH_WEIGHT_MAX
    });
    let count = fitting.count().max(1).min(parcels.len());
    parcels.drain(..count).collect()
}

/// Sends parcels of one node and hands out what comes back.
async fn send(consensus: Arc<Consensus>, parcels: Vec<Parcel>) {
    let Some(to) = parcels.first().map(|parcel| parcel.to) else { return };
    let latest = parcels.iter().map(|parcel| parcel.deadline).max();
    let within = latest.map(|deadline| deadline.remaining()).unwrap_or_default();
    let (asked, answers): (Vec<_>, Vec<_>) = parcels
        .into_iter()
        .map(|Parcel { command, queued_until, deadline, answer, .. }| {
            (Asked { command, queued_ms: queued_until.remaining_ms(), within_ms: deadline.remaining_ms() }, answer)
        })
        .unzip();
    let question = Question::Decide(asked);
    let answered = consensus.forward(to, raft::encode(&question).into(), within).await;
    let replies = answered.and_then(|bytes| match raft::decode(&bytes) {
        Ok(Reply::Several(replies)) if replies.len() == answers.len() => Ok(replies),
        Ok(Reply::NotLeading) => Ok(vec![Reply::NotLeading; answers.len()]),
        Ok(_) => Err(CallError::Lost("the leader answered another question".to_owned())),
        Err(error) => Err(CallError::Lost(error.to_string())),
    });
    match replies {
        Ok(replies) => {
            for (answer, reply) in answers.into_iter().zip(replies) {
                // One that stopped waiting does not want it.
                let _ = answer.send(Ok(reply));
            }
        }
        Err(error) => {
            for answer in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Key;
    use crate::limiter::Terms;
    use crate::state::{Acquire, Several, SeveralRule};
    use std::time::Duration;

    fn parcel(to: u64, weight: usize) -> Parcel {
        let one = Acquire::one(Key::new("k").unwrap(), None, 1, Terms::default());
        let command = Command::Several(Several { acquires: vec![one; weight], rule: SeveralRule::Each });
        let deadline = Deadline::after(Duration::from_secs(1));
        Parcel { to, command, queued_until: deadline, deadline, answer: oneshot::channel().0 }
    }

    #[test]
    fn a_message_goes_to_one_node_and_has_a_bound() {
        let sizes = |parcels: &[(u64, usize)]| {
            let mut parcels: Vec<_> = parcels.iter().map(|(to, weight)| parcel(*to, *weight)).collect();
            let mut sizes = Vec::new();
            while !parcels.is_empty() {
                sizes.push(together(&mut parcels).len());
            }
            sizes
        };
        assert_eq!(sizes(&[(1, 1), (1, 1), (2, 1), (1, 1)]), [2, 1, 1], "in the order in which they came");
        assert_eq!(sizes(&[(1, BATCH_WEIGHT_MAX), (1, 1), (1, 1)]), [1, 2]);
        assert_eq!(sizes(&[(1, BATCH_WEIGHT_MAX + 1), (1, 1)]), [1, 1], "a single one may be larger");
    }
}
