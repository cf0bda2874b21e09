//! Who belongs to the cluster: adding, promoting and removing members.
//!
//! A change of voters goes through a joint configuration, so at every moment any two majorities overlap. An id belongs to one
//! data directory for ever: a removed node may come back with it, a new directory may not.

use super::consensus::{Consensus, Proposed, not_leading};
use super::state_store::StateStore;
use super::types::TypeConfig;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers, Raft, ServerState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A change of voters that has not moved for this long is half done.
const HALF_DONE: Duration = Duration::from_secs(3);

/// The members as this node knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// Those who vote. While voters change, both sets.
    pub voters: BTreeSet<u64>,
    /// Peer address of every member, learners included.
    pub addresses: BTreeMap<u64, String>,
    /// No change is on its way: this is committed and applied here, and no change of voters is half done.
    pub settled: bool,
}

/// Why a change of members did not happen, or may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeError {
    /// Certainly not applied: this node does not lead.
    NotLeading,
    /// Certainly not applied: no majority has confirmed this leader of late.
    NoQuorum,
    /// Certainly not applied: an earlier change is still on its way.
    InProgress,
    /// Certainly not applied, and asking again would not help.
    Refused(String),
    /// May or may not get applied.
    Unknown(String),
}

impl Consensus {
    /// The members as this node knows them.
    pub fn membership(&self) -> Membership {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        Membership {
            voters: membership.voter_ids().collect(),
            addresses: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
            settled: membership.get_joint_config().len() == 1
                && *metrics.membership_config.log_id() <= metrics.last_applied,
        }
    }

    /// Whether the node at `address` answers as `id` of this cluster. The error is for a person.
    pub async fn greets(&self, id: u64, address: &str, within: Duration) -> Result<(), String> {
        match tokio::time::timeout(within, self.network().peer(id, address).greeted()).await {
            Ok(greeted) => greeted.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no greeting within {within:?}")),
        }
    }

    /// Adds a member that gets the log and has no vote.
    pub async fn add_learner(&self, id: u64, address: &str) -> Result<(), ChangeError> {
        self.change(ChangeMembers::AddNodes(BTreeMap::from([(id, BasicNode::new(address))]))).await
    }

    /// Gives a learner a vote.
    pub async fn promote(&self, id: u64) -> Result<(), ChangeError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::from([id]))).await
    }

    /// Removes a member, voter or learner.
    pub async fn remove(&self, id: u64) -> Result<(), ChangeError> {
        let ids = BTreeSet::from([id]);
        let votes = self.membership().voters.contains(&id);
        self.change(if votes { ChangeMembers::RemoveVoters(ids) } else { ChangeMembers::RemoveNodes(ids) }).await
    }

    async fn change(&self, change: ChangeMembers<u64, BasicNode>) -> Result<(), ChangeError> {
        match self.raft().change_membership(change, false).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(error)) => Err(refused(&error)),
            Err(RaftError::Fatal(fatal)) => Err(ChangeError::Unknown(fatal.to_string())),
        }
    }
}

fn refused(error: &ClientWriteError<TypeConfig>) -> ChangeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => match not_leading(forward) {
            Proposed::NoQuorum => ChangeError::NoQuorum,
            _ => ChangeError::NotLeading,
        },
        ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        ) => ChangeError::InProgress,
        ClientWriteError::ChangeMembershipError(error) => ChangeError::Refused(error.to_string()),
        // The first of two steps may be in the log.
        error => ChangeError::Unknown(error.to_string()),
    }
}

/// On a leader: ends a change of voters whose own leader died between its two steps. Until then both sets have to agree on
/// everything.
pub(super) async fn finish_changes(raft: Raft<TypeConfig, StateStore>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(HALF_DONE).await;
        let half_done = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            let membership = &metrics.membership_config;
            let joint = metrics.state == ServerState::Leader && membership.membership().get_joint_config().len() > 1;
            joint.then(|| *membership.log_id())
        };
        if half_done.is_some() && half_done == seen {
            tracing::info!("finishing a change of members that was left half done");
            // Whatever refuses it now is looked at again.
            let _ = raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::new()), false).await;
        }
        seen = half_done;
    }
}
