//! What the rest of the program holds of a running node: cheap to clone, safe to share.

use crate::limiter::{Key, Span, Time};
use crate::state::{Acquire, KeyView, Outcome};
use serde::{Deserialize, Serialize};

/// A decision, and what the node that led read from its clock when it answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What the state machine decided.
    pub outcome: Outcome,
    /// `S - T_r` for a grant: the worker starts no earlier than this long after it received the answer.
    pub wait: Span,
    /// The answer comes after the permit's start window: the slot is spent and of no use.
    pub expired: bool,
}

/// A linearizable look at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Cluster time of the look.
    pub now: Time,
    /// The key, or `None` if it is idle or was never used.
    pub key: Option<KeyView>,
}

/// Why there is no decision, and how certain that is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Certainly not applied: nothing was consumed, and asking again is safe.
    Refused {
        /// Which condition refused.
        refusal: Refusal,
        /// For a person.
        detail: String,
        /// When asking again makes sense.
        retry_after: Span,
    },
    /// May or may not be applied: only a retry with the same request id is safe.
    Unknown {
        /// For a person.
        detail: String,
    },
}

/// The conditions under which nothing is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A leader is known, but it does not reach a majority.
    NoQuorum,
    /// No leader is known.
    NoLeader,
    /// The queue in front of the proposer is full.
    Overloaded,
    /// The node is on its way down.
    ShuttingDown,
}

/// The cluster as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterView {
    /// The node that answers.
    pub me: u64,
    /// The current leader, if one is known.
    pub leader: Option<u64>,
    /// The current term.
    pub term: u64,
    /// Cluster time as this node knows it: a lower bound.
    pub clock: Time,
    /// Name of the cluster in the handshake, as hexadecimal digits.
    pub cluster_id: String,
    /// All members.
    pub nodes: Vec<MemberView>,
}

/// One member of the cluster as one node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberView {
    /// Its id.
    pub id: u64,
    /// Where its clients connect, once it has said so.
    pub client: Option<String>,
    /// Where its peers connect.
    pub peer: String,
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: &'static str,
    /// The last log index known to be on it.
    pub last_log: Option<u64>,
    /// The last log index it has applied.
    pub applied: Option<u64>,
    /// Whether it answered lately.
    pub reachable: bool,
}

/// The replicated state in one line, for comparing nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestView {
    /// The last applied log index.
    pub applied: u64,
    /// The digest of the state there, as hexadecimal digits.
    pub digest: String,
    /// Keys held.
    pub keys: u64,
}

/// Whether a node should get traffic, and the reason for each part of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Name and state of each check: `Ok` or what is wrong.
    pub checks: Vec<(&'static str, Result<(), String>)>,
}

impl Readiness {
    /// Whether every check passed.
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|(_, check)| check.is_ok())
    }
}

/// A running node.
#[derive(Debug, Clone)]
pub struct Handle {}

impl Handle {
    /// Decides one request: here if this node leads, else at the leader.
    pub async fn acquire(&self, acquire: Acquire) -> Result<Verdict, Failure> {
        let _ = acquire;
        std::future::pending().await
    }

    /// Looks at a key without consuming anything; linearizable.
    pub async fn look(&self, key: Key) -> Result<Look, Failure> {
        let _ = key;
        std::future::pending().await
    }

    /// The cluster as this node sees it.
    pub fn cluster(&self) -> ClusterView {
        ClusterView { me: 0, leader: None, term: 0, clock: Time::ZERO, cluster_id: String::new(), nodes: Vec::new() }
    }

    /// The digest of this node's own state: not linearizable, for comparing replicas at equal `applied`.
    pub async fn digest(&self) -> DigestView {
        std::future::pending().await
    }

    /// The client address of the leader if that is another node.
    pub fn leader_elsewhere(&self) -> Option<String> {
        None
    }

    /// Whether this node should get traffic.
    pub fn readiness(&self) -> Readiness {
        Readiness { checks: Vec::new() }
    }
}
