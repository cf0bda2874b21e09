//! Changing who belongs to the cluster, and who leads it: what the leader does when it is asked to.
//!
//! Every change may be asked for again, whatever became of the first attempt: it then finds its work done, or goes on.

use super::forward::{Question, Reply};
use super::handle::Shared;
use crate::clock::Deadline;
use crate::raft::{self, ChangeError, Membership};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A node that is to be added has to say who it is within this time.
const GREETING: Duration = Duration::from_secs(2);
/// A node that counts for a majority answers within this time.
const ANSWER: Duration = Duration::from_millis(500);
/// A learner that is this few entries behind gets its vote.
const CAUGHT_UP_ENTRIES: u64 = 128;
/// How often the leader looks how far a learner is.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// For an earlier change to be over.
const SETTLES: Duration = Duration::from_secs(4);
/// The longest wait for a learner, within the time of the request.
const CATCH_UP: Duration = Duration::from_secs(5);
/// For the next leader to take over.
const TAKE_OVER: Duration = Duration::from_secs(3);

/// What is to be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Add a node, or give a vote to one that has none.
    Add {
        /// Its id.
        id: u64,
        /// Where its peers reach it.
        peer: String,
        /// Whether it is to vote as soon as it has caught up.
        voter: bool,
    },
    /// Remove a node.
    Remove {
        /// Its id.
        id: u64,
    },
    /// Hand leadership over.
    Transfer {
        /// To this node, or to the one that is farthest.
        to: Option<u64>,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Changed {
    /// The node belongs to the cluster.
    Member {
        /// Whether it votes.
        voter: bool,
        /// Whether that is what it was before.
        already: bool,
        /// How many entries it is behind, while it is still catching up.
        behind: Option<u64>,
    },
    /// The node does not belong to the cluster.
    Removed {
        /// Whether it did before.
        was_member: bool,
    },
    /// Who leads now.
    Leads {
        /// The leader.
        leader: u64,
        /// Its term.
        term: u64,
    },
    /// Not done.
    Refused(Obstacle, String),
}

/// Why a change is refused. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// There is no such node.
    NoNode,
    /// It would cost the cluster its majority, or contradicts what is there, or another change is under way.
    Conflict,
    /// The node does not answer, or not as the one that was meant.
    Unreachable,
}

fn refused(obstacle: Obstacle, detail: impl Into<String>) -> Reply {
    Reply::Changed(Changed::Refused(obstacle, detail.into()))
}

impl Shared {
    /// Changes members as the leader.
    pub(super) async fn change_here(&self, change: Change, deadline: Deadline) -> Reply {
        if self.consensus.status().borrow().leading.is_none() {
            return Reply::NotLeading;
        }
        // One at a time: what is checked here must still be so when it is proposed.
        let turn = Deadline::after(deadline.remaining() / 2);
        let Ok(_one) = tokio::time::timeout_at(turn.instant(), self.changing.lock()).await else { return under_way() };
        let change = async {
            match change {
                Change::Add { id, peer, voter } => self.add(id, &peer, voter, deadline).await,
                Change::Remove { id } => self.remove(id, deadline).await,
                Change::Transfer { to } => self.transfer(to).await,
            }
        };
        match tokio::time::timeout_at(deadline.instant(), change).await {
            Ok(reply) => reply,
            Err(_) => Reply::Unknown("no majority confirmed the change in time".to_owned()),
        }
    }

    /// The members, once they are settled: no change is on its way, and a majority confirms that this node leads.
    async fn settled(&self, deadline: Deadline) -> Result<Membership, Reply> {
        if self.proposer.is_full() {
            return Err(Reply::DiskFull);
        }
        self.proposer.confirmed(deadline).await?;
        let until = Deadline::after(SETTLES.min(deadline.remaining()));
        loop {
            let members = self.consensus.membership();
            if members.settled {
                return Ok(members);
            }
            if until.passed() {
                return Err(under_way());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn add(&self, id: u64, peer: &str, voter: bool, deadline: Deadline) -> Reply {
        let members = match self.settled(deadline).await {
            Ok(members) => members,
            Err(reply) => return reply,
        };
        let known = members.addresses.get(&id);
        if let Some(address) = known.filter(|address| *address != peer) {
            let detail = format!("node {id} belongs to the cluster already, at {address}: remove it before it moves");
            return refused(Obstacle::Conflict, detail);
        }
        if let Some((other, _)) = members.addresses.iter().find(|(other, address)| **other != id && *address == peer) {
            return refused(Obstacle::Conflict, format!("{peer} is the address of node {other}"));
        }
        if members.voters.contains(&id) {
            return Reply::Changed(Changed::Member { voter: true, already: true, behind: None });
        }
        // One that nobody can reach would only count as missing.
        if let Err(why) = self.consensus.greets(id, peer, GREETING).await {
            return refused(Obstacle::Unreachable, format!("node {id} at {peer}: {why}"));
        }
        if known.is_none()
            && let Err(error) = self.consensus.add_learner(id, peer).await
        {
            return failed(error);
        }
        if !voter {
            return Reply::Changed(Changed::Member { voter: false, already: known.is_some(), behind: None });
        }
        if let Some(behind) = self.catches_up(id, deadline).await {
            return Reply::Changed(Changed::Member { voter: false, already: known.is_some(), behind: Some(behind) });
        }
        let mut voters = members.voters;
        voters.insert(id);
        if let Some(detail) = self.loses_majority(voters.into_iter()).await {
            return refused(Obstacle::Conflict, detail);
        }
        match self.consensus.promote(id).await {
            Ok(()) => Reply::Changed(Changed::Member { voter: true, already: false, behind: None }),
            Err(error) => failed(error),
        }
    }

    /// Waits until a learner has what there is; how far it is behind if that takes too long.
    async fn catches_up(&self, id: u64, deadline: Deadline) -> Option<u64> {
        let until = Deadline::after(CATCH_UP.min(deadline.remaining() / 2));
        loop {
            let progress = self.consensus.progress();
            let last = progress.last_log.unwrap_or(0);
            let behind = last - progress.matched.get(&id).copied().flatten().unwrap_or(0).min(last);
            if behind <= CAUGHT_UP_ENTRIES {
                return None;
            }
            if until.passed() {
                return Some(behind);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn remove(&self, id: u64, deadline: Deadline) -> Reply {
        let members = match self.settled(deadline).await {
            Ok(members) => members,
            Err(reply) => return reply,
        };
        if !members.addresses.contains_key(&id) {
            return Reply::Changed(Changed::Removed { was_member: false });
        }
        if members.voters.contains(&id) {
            if members.voters.len() == 1 {
                return refused(Obstacle::Conflict, format!("node {id} is the only one that votes"));
            }
            if let Some(detail) = self.loses_majority(members.voters.iter().copied().filter(|voter| *voter != id)).await
            {
                return refused(Obstacle::Conflict, detail);
            }
            if id == self.me {
                // The next leader does it: whoever asked looks for it.
                return if self.hand_over(None, TAKE_OVER).await { Reply::NotLeading } else { nobody_took_over() };
            }
        }
        match self.consensus.remove(id).await {
            Ok(()) => Reply::Changed(Changed::Removed { was_member: true }),
            Err(error) => failed(error),
        }
    }

    async fn transfer(&self, to: Option<u64>) -> Reply {
        let members = self.consensus.membership();
        if let Some(to) = to.filter(|to| !members.voters.contains(to)) {
            return refused(Obstacle::NoNode, format!("no voter has the id {to}"));
        }
        if to != Some(self.me) {
            if let Some(to) = to
                && !self.answers(to).await
            {
                return refused(Obstacle::Unreachable, format!("node {to} does not answer"));
            }
            if !self.hand_over(to, TAKE_OVER).await {
                return nobody_took_over();
            }
        }
        let status = self.consensus.status();
        let status = status.borrow();
        match status.leader {
            Some(leader) => Reply::Changed(Changed::Leads { leader, term: status.term }),
            None => nobody_took_over(),
        }
    }

    /// Says so if fewer than a majority of these answer. They are asked now: a change that no majority of the new voters confirms
    /// would never end, and nothing else would be decided meanwhile.
    async fn loses_majority(&self, voters: impl Iterator<Item = u64>) -> Option<String> {
        let voters: Vec<_> = voters.collect();
        let answers = futures::future::join_all(voters.iter().map(|id| self.answers(*id))).await;
        let answer = answers.into_iter().filter(|answers| *answers).count();
        (answer * 2 <= voters.len()).then(|| {
            format!("the cluster would have {} voters, and only {answer} of them answer: no majority", voters.len())
        })
    }

    /// Whether a node answers right now.
    async fn answers(&self, id: u64) -> bool {
        let question = raft::encode(&Question::Report).into();
        id == self.me || self.consensus.forward(id, question, ANSWER).await.is_ok()
    }

    /// Finishes what is in flight, lets queued requests wait, and asks another node to lead: `to`, or the one that is farthest.
    /// Whether another one leads then.
    pub(super) async fn hand_over(&self, to: Option<u64>, within: Duration) -> bool {
        let mut status = self.consensus.status();
        let Some(leading) = status.borrow_and_update().leading else { return true };
        let (progress, voters) = (self.consensus.progress(), self.consensus.membership().voters);
        let able = |id: &u64| {
            *id != self.me && voters.contains(id) && self.reach.report(*id).is_some_and(|report| !report.full)
        };
        let farthest = progress.matched.iter().filter(|(id, _)| able(id)).max_by_key(|(_, matched)| **matched);
        let Some(to) = to.or(farthest.map(|(id, _)| *id)) else { return false };
        tracing::info!(%leading, to, "handing leadership over");
        self.proposer.pause(Duration::from_secs(1)).await;
        self.consensus.transfer_leader(to).await;
        let taken = status.wait_for(|now| now.leading != Some(leading) && now.leader.is_some_and(|now| now != self.me));
        let taken = tokio::time::timeout(within, taken).await.is_ok_and(|taken| taken.is_ok());
        // Requests that wait here are for the new leader, or for this one if it stays.
        self.proposer.resume();
        taken
    }
}

fn under_way() -> Reply {
    refused(Obstacle::Conflict, "another change of members is under way: ask again")
}

fn nobody_took_over() -> Reply {
    refused(Obstacle::Conflict, "no other node took over in time; this one may still lead")
}

fn failed(error: ChangeError) -> Reply {
    match error {
        ChangeError::NotLeading => Reply::NotLeading,
        ChangeError::NoQuorum => Reply::NoQuorum,
        ChangeError::InProgress => under_way(),
        ChangeError::Refused(detail) => refused(Obstacle::Conflict, detail),
        ChangeError::Unknown(detail) => Reply::Unknown(detail),
    }
}
