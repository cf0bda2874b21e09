//! How a request finds the leader, and how certain it is of what became of it there.

use super::forward::{Question, Reply};
use super::handle::Shared;
use super::membership::Change;
use super::verdict::{Failure, Refusal, Verdict};
use crate::clock::{Deadline, Stopwatch};
use crate::limiter::{Key, Span};
use crate::limits::LEADER_WAIT_MS;
use crate::planted::{self, Bug};
use crate::raft::{self, CallError, Status};
use crate::state::{Acquire, Command, Withdraw};
use crate::watch;
use std::sync::Arc;
use std::time::Duration;

/// A pause between two attempts, unless somebody else comes to lead first; each is twice as long as the one before. Thousands may
/// search at once, and a leader that they keep busy with attempts does not get its majority back.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(320);
/// When a refused client should come back: an election takes about as long.
const RETRY_AFTER: Span = Span::from_millis(500);

/// What is asked of the leader.
pub(super) enum Task<'a> {
    Decide(&'a Command),
    Ask(Inquiry<'a>),
}

/// What is asked beside decisions.
pub(super) enum Inquiry<'a> {
    /// Since when it waits, and until when; for ever if that is absent.
    Wait(&'a Acquire, Stopwatch, Option<Deadline>),
    Leave(&'a Withdraw),
    Look(&'a Key, Option<u128>),
    Rules(Option<&'a str>),
    Change(&'a Change),
}

impl Inquiry<'_> {
    fn question(&self, deadline: Deadline) -> Question {
        let within_ms = deadline.remaining_ms();
        match self {
            Self::Wait(acquire, since, until) => {
                let waited_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                let wait_ms = until.map(|until| until.remaining_ms());
                Question::Wait { acquire: (*acquire).clone(), waited_ms, wait_ms }
            }
            Self::Leave(withdraw) => Question::Leave { withdraw: (*withdraw).clone(), within_ms },
            Self::Look(key, waiter) => Question::Look { key: (*key).clone(), waiter: *waiter, within_ms },
            Self::Rules(name) => Question::Rules { name: name.map(str::to_owned), within_ms },
            Self::Change(change) => Question::Change { change: (*change).clone(), within_ms },
        }
    }
}

/// How one attempt at the current leader ended.
pub(super) enum Attempt {
    Done(Reply),
    /// Certainly not applied; another attempt is safe.
    Again(Refusal, String),
    /// Certainly not applied; another attempt makes no sense now.
    GiveUp(Refusal, String),
    /// May or may not be applied.
    Unknown(String),
}

/// Where a request should go.
enum Leader {
    Me,
    Other(u64),
    None(Refusal, String),
}

/// The patience of one request that looks for a leader.
pub(super) struct Search {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    until: Deadline,
    pause: Duration,
    last: (Refusal, String),
    over: bool,
}

impl Search {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            status: shared.consensus.status(),
            until: Deadline::after(Duration::from_millis(LEADER_WAIT_MS)),
            pause: RETRY_PAUSE_MIN,
            last: (Refusal::NoLeader, String::new()),
            over: false,
        }
    }

    pub(super) fn failed(&mut self, refusal: Refusal, detail: String) {
        self.last = (refusal, detail);
    }

    pub(super) fn give_up(&mut self, refusal: Refusal, detail: String) {
        self.last = (refusal, detail);
        self.over = true;
    }

    /// Patience begins anew.
    pub(super) fn renew(&mut self, patience: Duration) {
        self.until = Deadline::after(patience);
        self.pause = RETRY_PAUSE_MIN;
    }

    /// Waits until another attempt makes sense, or says why there will be none.
    pub(super) async fn again(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.over || self.until.passed() || deadline.passed() {
            let (refusal, detail) = (self.last.0, std::mem::take(&mut self.last.1));
            return Err(Failure::Refused { refusal, detail, retry_after: RETRY_AFTER });
        }
        // Someone else may lead by then, or the same leader may have its quorum back.
        if let Ok(Err(_)) = tokio::time::timeout(self.pause, self.status.changed()).await {
            // Consensus has stopped, and nobody will ever say who leads: without a pause this would go round and round.
            tokio::time::sleep(self.pause).await;
        }
        self.pause = (2 * self.pause).min(RETRY_PAUSE_MAX);
        Ok(())
    }

    /// Asks whoever leads now.
    pub(super) async fn attempt(&self, task: &Task<'_>, deadline: Deadline) -> Attempt {
        if self.shared.is_closed() {
            return Attempt::GiveUp(Refusal::ShuttingDown, "this node is going down".to_owned());
        }
        let reply = match (self.leader(), task) {
            (Leader::Other(_), task) if planted::is(Bug::FollowerDecides) => self.decide_alone(task),
            (Leader::Me, Task::Decide(command)) => {
                self.shared.decide_here((*command).clone(), self.until, deadline).await
            }
            // Rare and large: apart, so that a decision that waits is small.
            (Leader::Me, Task::Ask(inquiry)) => Box::pin(self.shared.answer(inquiry.question(deadline))).await,
            (Leader::Other(node), task) => match self.ask(node, task, deadline).await {
                Ok(reply) => reply,
                Err(attempt) => return attempt,
            },
            (Leader::None(refusal, detail), _) => return Attempt::Again(refusal, detail),
        };
        match reply {
            Reply::NotLeading => Attempt::Again(Refusal::NoLeader, "leadership is changing hands".to_owned()),
            Reply::NoQuorum => Attempt::Again(Refusal::NoQuorum, "the leader does not reach a majority".to_owned()),
            // It hands over to a node that has room, if there is one.
            Reply::DiskFull => {
                Attempt::Again(Refusal::DiskFull, "the disks of the leader or of most nodes are full".to_owned())
            }
            Reply::Overloaded => Attempt::GiveUp(Refusal::Overloaded, "the leader's queue is full".to_owned()),
            Reply::Unknown(why) => Attempt::Unknown(why),
            done => Attempt::Done(done),
        }
    }

    /// Asks the leader, over the connection between peers.
    async fn ask(&self, leader: u64, task: &Task<'_>, deadline: Deadline) -> Result<Reply, Attempt> {
        let mut status = self.shared.consensus.status();
        let answer = tokio::select! {
            biased;
            answer = self.forward(leader, task, deadline) => answer,
            // It may be frozen: whoever leads now is the one to ask, for those who may ask again.
            Ok(_) = status.wait_for(|now| now.leading.is_some() || now.leader.is_some_and(|known| known != leader)) => {
                Err(CallError::Lost("another node leads by now".to_owned()))
            }
        };
        match answer {
            Ok(reply) => Ok(reply),
            Err(CallError::NotSent(why)) => Err(Attempt::Again(
                self.no_leader_kind(),
                format!("the leader, node {leader}, cannot be reached: {why}"),
            )),
            Err(error @ (CallError::Lost(_) | CallError::Failed(_))) => {
                Err(Attempt::Unknown(format!("the leader, node {leader}, did not answer: {error}")))
            }
        }
    }

    async fn forward(&self, leader: u64, task: &Task<'_>, deadline: Deadline) -> Result<Reply, CallError> {
        match task {
            Task::Decide(command) => {
                self.shared.forwarder.decide(leader, (*command).clone(), (self.until, deadline)).await
            }
            Task::Ask(inquiry) => {
                let question = raft::encode(&inquiry.question(deadline)).into();
                let answer = self.shared.consensus.forward(leader, question, deadline.remaining()).await?;
                raft::decode(&answer).map_err(|error| CallError::Lost(error.to_string()))
            }
        }
    }

    /// What no node may do: see [`Bug::FollowerDecides`].
    fn decide_alone(&self, task: &Task<'_>) -> Reply {
        let Task::Decide(command) = task else { return Reply::NotLeading };
        let decided = self.shared.consensus.decide_alone(command);
        decided.map_or(Reply::NotLeading, |(outcome, at)| Reply::Decided(Verdict { outcome, at }))
    }

    fn leader(&self) -> Leader {
        let status = self.status.borrow();
        match (status.leading, status.leader) {
            (Some(_), _) => Leader::Me,
            (None, Some(node)) if node != self.shared.me => Leader::Other(node),
            _ => Leader::None(self.no_leader_kind(), "no leader is elected".to_owned()),
        }
    }

    /// Without a leader: is that because a majority is out of reach?
    fn no_leader_kind(&self) -> Refusal {
        if self.shared.reaches_majority() { Refusal::NoLeader } else { Refusal::NoQuorum }
    }
}
