//! What the rest of the program holds of a running node: cheap to clone, safe to share.

use super::forward::{Question, Reply, Report};
use super::proposer::Proposer;
use super::queue::Decided;
use super::reach::Reach;
use super::verdict::{Failure, Look, Refusal, Verdict};
use super::views::{ClusterView, DigestView, MemberView, Readiness};
use crate::clock::Deadline;
use crate::limiter::{Key, Span, Time};
use crate::limits::LEADER_WAIT_MS;
use crate::raft::{self, CallError, Consensus, ReadRefused, Status};
use crate::state::{Acquire, Outcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// A pause between two attempts, unless somebody else comes to lead first.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// When a refused client should come back: an election takes about as long.
const RETRY_AFTER: Span = Span::from_millis(500);

/// A running node, as the rest of the program holds it.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle of node {}", self.shared.me)
    }
}

/// What all handles share.
pub(super) struct Shared {
    pub(super) me: u64,
    pub(super) consensus: Arc<Consensus>,
    pub(super) proposer: Proposer,
    pub(super) reach: Arc<Reach>,
    pub(super) request_timeout: Duration,
    /// Set when the node begins to go down: it still serves, but should not get new traffic.
    pub(super) draining: AtomicBool,
    /// Set when it does not serve any more.
    pub(super) closed: AtomicBool,
}

/// How one attempt at the current leader ended.
enum Attempt<T> {
    Done(T),
    /// Certainly not applied; another attempt is safe.
    Again(Refusal, String),
    /// Certainly not applied; another attempt makes no sense now.
    GiveUp(Refusal, String),
    /// May or may not be applied.
    Unknown(String),
}

impl Handle {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Decides one request: here if this node leads, else at the leader.
    ///
    /// Elections and lost leaders are retried within the deadline where nothing can have been consumed. Where something
    /// may have been, a request with an id is retried too, because its permit is the same one; but then only a grant is an
    /// answer: a denial would say that nothing was consumed, and the first attempt may still be.
    pub async fn acquire(&self, acquire: Acquire) -> Result<Verdict, Failure> {
        let deadline = Deadline::after(self.shared.request_timeout);
        let mut search = self.search();
        let mut unknown = None;
        loop {
            match self.decide(&acquire, search.until, deadline).await {
                Attempt::Done(verdict) => {
                    let granted = matches!(verdict.outcome, Outcome::Granted(_));
                    return match unknown {
                        Some(detail) if !granted => Err(Failure::Unknown { detail }),
                        _ => Ok(verdict),
                    };
                }
                Attempt::Unknown(detail) if acquire.identity.is_none() => return Err(Failure::Unknown { detail }),
                Attempt::Unknown(detail) => unknown = Some(detail),
                Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
                Attempt::Again(refusal, detail) => search.failed(refusal, detail),
            }
            if let Err(failure) = search.again(deadline).await {
                return Err(unknown.map_or(failure, |detail| Failure::Unknown { detail }));
            }
        }
    }

    /// Looks at a key without consuming anything; linearizable.
    pub async fn look(&self, key: Key) -> Result<Look, Failure> {
        let deadline = Deadline::after(self.shared.request_timeout);
        let mut search = self.search();
        loop {
            match self.look_once(&key, deadline).await {
                Attempt::Done(look) => return Ok(look),
                Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
                Attempt::Again(refusal, detail) => search.failed(refusal, detail),
                // A look consumes nothing, so an unanswered one is safe to repeat.
                Attempt::Unknown(detail) => search.failed(Refusal::NoLeader, detail),
            }
            search.again(deadline).await?;
        }
    }

    fn search(&self) -> Search {
        Search {
            status: self.shared.consensus.status(),
            until: Deadline::after(Duration::from_millis(LEADER_WAIT_MS)),
            last: (Refusal::NoLeader, String::new()),
            over: false,
        }
    }

    async fn decide(&self, acquire: &Acquire, queued_until: Deadline, deadline: Deadline) -> Attempt<Verdict> {
        if self.shared.closed.load(Ordering::Acquire) {
            return Attempt::GiveUp(Refusal::ShuttingDown, "this node is going down".to_owned());
        }
        let within_ms = millis(deadline.remaining());
        let reply = match self.leader() {
            Leader::Me => self.shared.decide_here(acquire.clone(), queued_until, deadline).await,
            Leader::Other(node) => {
                let queued_ms = millis(queued_until.remaining());
                let question = Question::Decide { acquire: acquire.clone(), queued_ms, within_ms };
                match self.ask(node, &question, deadline).await {
                    Ok(reply) => reply,
                    Err(attempt) => return attempt,
                }
            }
            Leader::None(refusal, detail) => return Attempt::Again(refusal, detail),
        };
        match reply {
            Reply::Decided(verdict) => Attempt::Done(verdict),
            other => refused(other),
        }
    }

    async fn look_once(&self, key: &Key, deadline: Deadline) -> Attempt<Look> {
        let within_ms = millis(deadline.remaining());
        let reply = match self.leader() {
            Leader::Me => self.shared.look_here(key, deadline).await,
            Leader::Other(node) => {
                match self.ask(node, &Question::Look { key: key.clone(), within_ms }, deadline).await {
                    Ok(reply) => reply,
                    Err(attempt) => return attempt,
                }
            }
            Leader::None(refusal, detail) => return Attempt::Again(refusal, detail),
        };
        match reply {
            Reply::Looked(look) => Attempt::Done(look),
            other => refused(other),
        }
    }

    /// Asks the leader, over the connection between peers.
    async fn ask<T>(&self, leader: u64, question: &Question, deadline: Deadline) -> Result<Reply, Attempt<T>> {
        let mut status = self.shared.consensus.status();
        let answer = tokio::select! {
            answer = self.shared.consensus.forward(leader, raft::encode(question).into(), deadline.remaining()) => answer,
            // It may be frozen: whoever leads now is the one to ask, for those who may ask again.
            _ = status.wait_for(|now| now.leading.is_some() || now.leader.is_some_and(|known| known != leader)) => {
                Err(CallError::Lost("another node leads by now".to_owned()))
            }
        };
        match answer {
            Ok(bytes) => raft::decode(&bytes).map_err(|error| Attempt::Unknown(error.to_string())),
            Err(CallError::NotSent(why)) => Err(Attempt::Again(
                self.no_leader_kind(),
                format!("the leader, node {leader}, cannot be reached: {why}"),
            )),
            Err(error @ (CallError::Lost(_) | CallError::Failed(_))) => {
                Err(Attempt::Unknown(format!("the leader, node {leader}, did not answer: {error}")))
            }
        }
    }

    fn leader(&self) -> Leader {
        let status = self.shared.consensus.status();
        let status = status.borrow();
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

    /// The cluster as this node sees it.
    pub fn cluster(&self) -> ClusterView {
        let shared = &self.shared;
        let status = shared.consensus.status().borrow().clone();
        let progress = shared.consensus.progress();
        let nodes = progress.members.iter().map(|(id, peer)| {
            let report = shared.reach.report(*id);
            let mine = *id == shared.me;
            let role = report.as_ref().map(|report| report.role.clone());
            MemberView {
                id: *id,
                client: shared.consensus.client_of(*id),
                peer: peer.clone(),
                role: if mine { status.role.to_owned() } else { role.unwrap_or_else(|| "unknown".to_owned()) },
                last_log: if mine { progress.last_log } else { report.as_ref().and_then(|report| report.last_log) },
                applied: if mine { progress.applied } else { report.as_ref().and_then(|report| report.applied) },
                reachable: mine || report.is_some(),
            }
        });
        ClusterView {
            me: shared.me,
            leader: shared.live_leader(),
            term: status.term,
            clock: shared.proposer.time().unwrap_or_else(|| shared.consensus.applied_time()),
            cluster_id: shared.consensus.cluster_id().to_owned(),
            nodes: nodes.collect(),
        }
    }

    /// The digest of this node's own state: not linearizable, for comparing replicas at equal `applied`.
    pub async fn digest(&self) -> DigestView {
        let (applied, digest, keys) = self.shared.consensus.digest().await;
        let digest = digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            use std::fmt::Write;
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        DigestView { applied, digest, keys: keys as u64 }
    }

    /// The client address of the leader if that is another node.
    pub fn leader_elsewhere(&self) -> Option<String> {
        let leader = self.shared.consensus.status().borrow().leader?;
        if leader == self.shared.me { None } else { self.shared.consensus.client_of(leader) }
    }

    /// Whether this node should get traffic.
    pub fn readiness(&self) -> Readiness {
        let status = self.shared.consensus.status().borrow().clone();
        let leader = match self.shared.live_leader() {
            Some(_) => Ok(()),
            None => Err("no leader that reaches a majority is known".to_owned()),
        };
        let draining = self.shared.draining.load(Ordering::Acquire);
        let running = if draining { Err("this node is going down".to_owned()) } else { Ok(()) };
        let consensus = status.fatal.map_or(Ok(()), Err);
        Readiness { checks: vec![("consensus", consensus), ("leader", leader), ("running", running)] }
    }
}

/// Where a request should go.
enum Leader {
    Me,
    Other(u64),
    None(Refusal, String),
}

/// The patience of one request that looks for a leader.
struct Search {
    status: watch::Receiver<Status>,
    until: Deadline,
    last: (Refusal, String),
    over: bool,
}

impl Search {
    fn failed(&mut self, refusal: Refusal, detail: String) {
        self.last = (refusal, detail);
    }

    fn give_up(&mut self, refusal: Refusal, detail: String) {
        self.last = (refusal, detail);
        self.over = true;
    }

    /// Waits until another attempt makes sense, or says why there will be none.
    async fn again(&mut self, deadline: Deadline) -> Result<(), Failure> {
        if self.over || self.until.passed() || deadline.passed() {
            let (refusal, detail) = (self.last.0, std::mem::take(&mut self.last.1));
            return Err(Failure::Refused { refusal, detail, retry_after: RETRY_AFTER });
        }
        // Someone else may lead by then, or the same leader may have its quorum back.
        let _ = tokio::time::timeout(RETRY_PAUSE, self.status.changed()).await;
        Ok(())
    }
}

fn refused<T>(reply: Reply) -> Attempt<T> {
    match reply {
        Reply::NotLeading => Attempt::Again(Refusal::NoLeader, "leadership is changing hands".to_owned()),
        Reply::NoQuorum => Attempt::Again(Refusal::NoQuorum, "the leader does not reach a majority".to_owned()),
        Reply::Overloaded => Attempt::GiveUp(Refusal::Overloaded, "the leader's queue is full".to_owned()),
        Reply::Unknown(why) => Attempt::Unknown(why),
        Reply::Decided(_) | Reply::Looked(_) | Reply::Report(_) => {
            Attempt::Unknown("the leader answered another question".to_owned())
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    /// The leader, as long as it answers this node, or this node answers for itself with a majority behind it. The engine
    /// alone goes on naming a leader that has died until there is another one.
    pub(super) fn live_leader(&self) -> Option<u64> {
        let leader = self.consensus.status().borrow().leader?;
        let lives = if leader == self.me { self.reaches_majority() } else { self.reach.report(leader).is_some() };
        lives.then_some(leader)
    }

    fn reaches_majority(&self) -> bool {
        let members = self.consensus.progress().members;
        let reachable = members.keys().filter(|id| **id == self.me || self.reach.report(**id).is_some());
        reachable.count() * 2 > members.len()
    }

    /// Answers a question of another node, or of this one.
    pub(super) async fn answer(&self, question: Question) -> Reply {
        match question {
            Question::Decide { acquire, queued_ms, within_ms } => {
                let after = |ms| Deadline::after(Duration::from_millis(ms));
                self.decide_here(acquire, after(queued_ms), after(within_ms)).await
            }
            Question::Look { key, within_ms } => {
                self.look_here(&key, Deadline::after(Duration::from_millis(within_ms))).await
            }
            Question::Report => {
                let progress = self.consensus.progress();
                let role = self.consensus.status().borrow().role.to_owned();
                Reply::Report(Report { role, last_log: progress.last_log, applied: progress.applied })
            }
        }
    }

    async fn decide_here(&self, acquire: Acquire, queued_until: Deadline, deadline: Deadline) -> Reply {
        let Some(waiting) = self.proposer.submit(acquire) else { return Reply::Overloaded };
        match waiting.until(queued_until, deadline).await {
            Decided::Verdict(verdict) => Reply::Decided(verdict),
            Decided::NotLeading => Reply::NotLeading,
            Decided::NoQuorum => Reply::NoQuorum,
            Decided::Unknown(why) => Reply::Unknown(why),
        }
    }

    async fn look_here(&self, key: &Key, deadline: Deadline) -> Reply {
        let confirmed = tokio::time::timeout_at(deadline.instant(), self.consensus.read_index()).await;
        match confirmed {
            Ok(Ok(())) => {}
            Ok(Err(ReadRefused::NotLeading)) => return Reply::NotLeading,
            Ok(Err(ReadRefused::NoQuorum)) | Err(_) => return Reply::NoQuorum,
        }
        // Without a timeline of its own (leadership was just lost) the state's own time is a lower bound all the same.
        let (now, key) = self.consensus.view(key, self.proposer.time().unwrap_or(Time::ZERO));
        Reply::Looked(Look { now, key })
    }
}
