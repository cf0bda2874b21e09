//! What the rest of the program holds of a running node: cheap to clone, safe to share.

use super::forward::Reply;
use super::forwarder::Forwarder;
use super::held::{Held, Leaving};
use super::membership::{Change, Changed, Obstacle};
use super::proposer::Proposer;
use super::reach::Reach;
use super::search::{Attempt, Inquiry, Search, Task};
use super::verdict::{Failure, Look, Refusal, Rules, Verdict};
use super::views::{ClusterView, DigestView, MemberView, Readiness};
use super::waitroom::Waitroom;
use crate::clock::Deadline;
use crate::limiter::Key;
use crate::limits::{LEADER_WAIT_MS, MEMBERSHIP_TIMEOUT_MS};
use crate::raft::Consensus;
use crate::state::{Acquire, Command, Outcome};
use crate::watch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A running node, as the rest of the program holds it.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
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
    pub(super) proposer: Arc<Proposer>,
    pub(super) forwarder: Forwarder,
    pub(super) waitroom: Arc<Waitroom>,
    pub(super) reach: Arc<Reach>,
    pub(super) request_timeout: Duration,
    /// Held while members are being changed.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Set when the node begins to go down: it still serves, but should not get new traffic.
    pub(super) draining: watch::Sender<bool>,
    /// Set when it does not serve any more.
    pub(super) closed: AtomicBool,
}

impl Handle {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Decides one command: here if this node leads, else at the leader.
    ///
    /// Elections and lost leaders are retried within the deadline where nothing can have been consumed. Where something
    /// may have been, a command that takes effect at most once is retried too; but then only an answer that leaves no doubt is
    /// one: a denial would say that nothing was consumed, and the first attempt may still be.
    pub async fn decide(&self, command: Command) -> Result<Verdict, Failure> {
        let deadline = Deadline::after(self.shared.request_timeout);
        let mut search = Search::new(&self.shared);
        let mut doubt = None;
        loop {
            match search.attempt(&Task::Decide(&command), deadline).await {
                Attempt::Done(Reply::Decided(verdict)) => {
                    return match doubt {
                        Some(detail) if !leaves_no_doubt(&verdict.outcome) => Err(Failure::Unknown { detail }),
                        _ => Ok(verdict),
                    };
                }
                Attempt::Done(_) => doubt = Some("the leader answered another question".to_owned()),
                Attempt::Unknown(detail) if !may_be_repeated(&command) => return Err(Failure::Unknown { detail }),
                Attempt::Unknown(detail) => doubt = Some(detail),
                Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
                Attempt::Again(refusal, detail) => search.failed(refusal, detail),
            }
            if let Err(failure) = search.again(deadline).await {
                return Err(doubt.map_or(failure, |detail| Failure::Unknown { detail }));
            }
        }
    }

    /// Decides one request, waiting in line for a place if there is none, and answers when its slot has come. Dropped before
    /// that, it leaves the line or gives its permit back.
    ///
    /// The request has an identity and a claim of its own. Without `max_wait` it waits for as long as it takes.
    pub async fn acquire_held(&self, acquire: Acquire) -> Result<Verdict, Failure> {
        let leaving = Leaving::new(self, &acquire);
        Held { handle: self, acquire, leaving }.run().await
    }

    /// Looks at a key without consuming anything; linearizable. Says where in line the request `waiter` stands.
    pub async fn look(&self, key: Key, waiter: Option<u128>) -> Result<Look, Failure> {
        match self.read(&Task::Ask(Inquiry::Look(&key, waiter))).await? {
            Reply::Looked(look) => Ok(look),
            _ => Err(another_question()),
        }
    }

    /// Looks at all stored rules, or at one; linearizable.
    pub async fn rules(&self, name: Option<&str>) -> Result<Rules, Failure> {
        match self.read(&Task::Ask(Inquiry::Rules(name))).await? {
            Reply::Rules(rules) => Ok(rules),
            _ => Err(another_question()),
        }
    }

    /// Changes who belongs to the cluster, or who leads it. Asking again, also when the outcome is unknown, is safe.
    pub async fn change(&self, change: &Change) -> Result<Changed, Failure> {
        let deadline = Deadline::after(Duration::from_millis(MEMBERSHIP_TIMEOUT_MS));
        let mut search = Search::new(&self.shared);
        let mut doubt = None;
        let leader = || self.shared.consensus.status().borrow().leader;
        // Who was asked to hand over, and may have.
        let mut asked = None;
        loop {
            if let (Change::Transfer { to }, Some(asked), Some(leader)) = (change, asked, leader())
                && asked != leader
                && to.is_none_or(|to| to == leader)
            {
                // To ask again would hand it on to a third.
                return Ok(Changed::Leads { leader, term: self.shared.consensus.status().borrow().term });
            }
            let before = leader();
            match search.attempt(&Task::Ask(Inquiry::Change(change)), deadline).await {
                // It may be the first attempt that is under way.
                Attempt::Done(Reply::Changed(Changed::Refused(Obstacle::Conflict, detail))) if doubt.is_some() => {
                    search.failed(Refusal::NoLeader, detail);
                }
                Attempt::Done(Reply::Changed(changed)) => return Ok(changed),
                Attempt::Done(_) => return Err(another_question()),
                Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
                // It took the leader's place to get here, or cost it: the search for the next one begins now.
                Attempt::Again(refusal, detail) => search.failed(refusal, detail),
                Attempt::Unknown(detail) => {
                    search.renew(Duration::from_millis(LEADER_WAIT_MS));
                    asked = asked.or(before);
                    doubt = Some(detail);
                }
            }
            if let Err(failure) = search.again(deadline).await {
                return Err(doubt.map_or(failure, |detail| Failure::Unknown { detail }));
            }
        }
    }

    /// A question that changes nothing: an unanswered one is safe to repeat.
    async fn read(&self, task: &Task<'_>) -> Result<Reply, Failure> {
        let deadline = Deadline::after(self.shared.request_timeout);
        let mut search = Search::new(&self.shared);
        loop {
            match search.attempt(task, deadline).await {
                Attempt::Done(reply) => return Ok(reply),
                Attempt::GiveUp(refusal, detail) => search.give_up(refusal, detail),
                Attempt::Again(refusal, detail) => search.failed(refusal, detail),
                Attempt::Unknown(detail) => search.failed(Refusal::NoLeader, detail),
            }
            search.again(deadline).await?;
        }
    }

    /// The cluster as this node sees it.
    pub fn cluster(&self) -> ClusterView {
        let shared = &self.shared;
        let status = shared.consensus.status().borrow().clone();
        let progress = shared.consensus.progress();
        let voters = shared.consensus.membership().voters;
        let nodes = progress.members.iter().map(|(id, peer)| {
            let report = shared.reach.report(*id);
            let mine = *id == shared.me;
            let role = report.as_ref().map(|report| report.role.clone());
            MemberView {
                id: *id,
                client: shared.consensus.client_of(*id),
                peer: peer.clone(),
                role: if mine { status.role.to_owned() } else { role.unwrap_or_else(|| "unknown".to_owned()) },
                voter: voters.contains(id),
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
            cluster_id: shared.consensus.cluster_id(),
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
        let draining = *self.shared.draining.borrow();
        let running = if draining { Err("this node is going down".to_owned()) } else { Ok(()) };
        let consensus = status.fatal.map_or(Ok(()), Err);
        Readiness { checks: vec![("consensus", consensus), ("leader", leader), ("running", running)] }
    }
}

/// Whether a command may be put to the cluster again when nobody knows what became of it.
fn may_be_repeated(command: &Command) -> bool {
    match command {
        Command::Acquire(acquire) => acquire.identity.is_some(),
        Command::Several(several) => several.acquires.iter().all(|acquire| acquire.identity.is_some()),
        _ => true,
    }
}

/// Whether this answer is true whatever became of an earlier attempt.
fn leaves_no_doubt(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Granted(_)
        | Outcome::Released(true)
        | Outcome::Renewed { .. }
        | Outcome::Withdrawn(_)
        | Outcome::Reset(_)
        | Outcome::PolicyPut { .. }
        | Outcome::PolicyDeleted { .. } => true,
        Outcome::Several(all) => all.iter().all(leaves_no_doubt),
        _ => false,
    }
}

fn another_question() -> Failure {
    Failure::Unknown { detail: "the leader answered another question".to_owned() }
}

impl Shared {
    /// The leader, as long as it answers this node, or this node answers for itself with a majority behind it. The engine
    /// alone goes on naming a leader that has died until there is another one.
    pub(super) fn live_leader(&self) -> Option<u64> {
        let leader = self.consensus.status().borrow().leader?;
        let lives = if leader == self.me { self.reaches_majority() } else { self.reach.report(leader).is_some() };
        lives.then_some(leader)
    }

    pub(super) fn reaches_majority(&self) -> bool {
        let voters = self.consensus.membership().voters;
        let reachable = voters.iter().filter(|id| **id == self.me || self.reach.report(**id).is_some());
        reachable.count() * 2 > voters.len()
    }

    /// Whether this node has stopped serving.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
