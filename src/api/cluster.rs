//! `/cluster…` and the probes: the cluster as one node sees it, and changing who belongs to it.

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
    /// Whether it has a vote.
    #[serde(default = "yes")]
    pub voter: bool,
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

/// A node that is to belong to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNodeRequest {
    /// Its id: never one that another directory had.
    #[schema(example = 4)]
    pub id: u64,
    /// Where the other nodes reach it: host:port.
    #[schema(example = "10.0.0.4:7101")]
    pub peer: String,
    /// Whether it votes as soon as it has caught up.
    #[serde(default = "yes")]
    pub voter: bool,
}

const fn yes() -> bool {
    true
}

/// A node that belongs to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddNodeResponse {
    /// Its id.
    pub id: u64,
    /// Where the other nodes reach it.
    pub peer: String,
    /// `voter` or `learner`.
    pub role: String,
    /// Whether this request changed anything.
    pub changed: bool,
    /// With 202: how many log entries it is behind. Ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
}

/// A node that does not belong to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemoveNodeResponse {
    /// Its id.
    pub id: u64,
    /// Whether it did before.
    pub removed: bool,
}

/// Who is to lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferRequest {
    /// A node that votes; the one that is farthest if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransferResponse {
    /// The leader.
    pub leader: u64,
    /// Its term.
    pub term: u64,
}
