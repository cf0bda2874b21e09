//! `GET /cluster`, `GET /cluster/digest` and the probes: the cluster as one node sees it.

use super::millis::Millis;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The cluster as the answering node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterResponse {
    /// The current leader; `null` if none is known.
    pub leader: Option<u64>,
    /// The current term.
    pub term: u64,
    /// Cluster time as this node knows it: a lower bound. It has no relation to any wall clock.
    pub clock_ms: Millis,
    /// The node that answers.
    pub me: u64,
    /// The name of the cluster, as hexadecimal digits.
    pub cluster_id: String,
    /// All members.
    pub nodes: Vec<MemberResponse>,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberResponse {
    /// Its id.
    pub id: u64,
    /// Where its clients connect; `null` until it has said so.
    pub client: Option<String>,
    /// Where its peers connect.
    pub peer: String,
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: String,
    /// The last log index known to be on it.
    pub last_log: Option<u64>,
    /// The last log index it has applied.
    pub applied: Option<u64>,
    /// Whether it answered lately.
    pub reachable: bool,
}

/// One node's replicated state in one line, for comparing nodes at equal `applied`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DigestResponse {
    /// The last applied log index.
    pub applied: u64,
    /// The digest of the state there, as hexadecimal digits.
    pub digest: String,
    /// Keys held.
    pub keys: u64,
}

/// A probe, for programs; people and load balancers get text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether every check passed.
    pub ok: bool,
    /// Each check.
    pub checks: Vec<Check>,
}

/// One check of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
