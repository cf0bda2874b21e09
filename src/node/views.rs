//! What a node shows of itself and its cluster.

use crate::limiter::Time;

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
    /// `leader`, `follower`, `candidate`, `learner`, or `unknown` while it is out of reach.
    pub role: String,
    /// Whether it has a vote.
    pub voter: bool,
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
