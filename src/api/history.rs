//! `GET /keys/{key}/history`, `GET /history` and `GET /audit`: what the answering node remembers.
//!
//! Instants of cluster time end in `_ms`. `recorded` is the wall clock of the answering node, for people.

use super::millis::Millis;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the answering node remembers of a key. Its own memory: not linearizable, possibly behind, possibly with gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyHistoryResponse {
    /// The key.
    pub key: String,
    /// Cluster time of the last entry the node has recorded; usage counts back from it.
    pub until_ms: Millis,
    /// Recent permits, newest first.
    pub permits: Vec<PermitLine>,
    /// Recent denials, newest first. Not every one is kept; the usage counts all.
    pub denied: Vec<DenialLine>,
    /// Seconds in which something happened, oldest first.
    pub seconds: Vec<UsageBucket>,
    /// Minutes in which something happened, oldest first.
    pub minutes: Vec<UsageBucket>,
}

/// One permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermitLine {
    /// Its fencing number.
    pub permit: u64,
    /// Cluster time of its slot.
    pub slot_ms: Millis,
    /// Cluster time of the decision.
    pub at_ms: Millis,
    /// How many permits' worth it took.
    pub cost: u64,
    /// Who asked, if the request said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The policy that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What became of it.
    pub outcome: PermitOutcome,
    /// When the node wrote this down, by its wall clock.
    #[schema(example = "2026-11-16T04:59:37.123Z")]
    pub recorded: String,
}

/// What became of a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PermitOutcome {
    /// Granted, and not given back.
    Granted,
    /// Given back.
    Released,
}

/// One denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DenialLine {
    /// Cluster time of the decision.
    pub at_ms: Millis,
    /// How many permits' worth it would have taken.
    pub cost: u64,
    /// Which rule refused.
    #[schema(example = "would_wait_too_long")]
    pub reason: String,
    /// Who asked, if the request said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The policy that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// When the node wrote this down, by its wall clock.
    pub recorded: String,
}

/// What happened in one second or minute of cluster time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageBucket {
    /// Where it begins.
    pub at_ms: Millis,
    /// Permits granted.
    pub granted: u64,
    /// What they cost together.
    pub cost: u64,
    /// Requests denied.
    pub denied: u64,
}

/// Usage over the last hour of cluster time, as the answering node remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryResponse {
    /// Where the hour begins: with a whole minute.
    pub since_ms: Millis,
    /// Cluster time of the last entry the node has recorded.
    pub until_ms: Millis,
    /// Everything, or all of the policy that was asked for.
    pub total: UsageTotal,
    /// The same by minutes in which something happened, oldest first.
    pub minutes: Vec<UsageBucket>,
    /// The busiest policies, busiest first.
    pub policies: Vec<PolicyUsage>,
    /// The busiest keys, busiest first.
    pub keys: Vec<KeyUsage>,
    /// Whether the whole hour was looked at; if not, there was too much of it and its beginning is left out.
    pub complete: bool,
}

/// Sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageTotal {
    /// Permits granted.
    pub granted: u64,
    /// What they cost together.
    pub cost: u64,
    /// Requests denied.
    pub denied: u64,
}

/// Sums of one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyUsage {
    /// Its name.
    pub policy: String,
    /// Permits granted.
    pub granted: u64,
    /// What they cost together.
    pub cost: u64,
    /// Requests denied.
    pub denied: u64,
}

/// Sums of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyUsage {
    /// The key.
    pub key: String,
    /// The policy that decided last, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Permits granted.
    pub granted: u64,
    /// What they cost together.
    pub cost: u64,
    /// Requests denied.
    pub denied: u64,
}

/// The audit trail, as the answering node remembers it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditResponse {
    /// Newest first.
    pub events: Vec<AuditEvent>,
}

/// One line of the audit trail. Which members are there depends on `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditEvent {
    /// Its number on this node.
    pub number: u64,
    /// `policy_put`, `policy_deleted`, `key_reset`, `membership` or `leader`.
    #[schema(example = "policy_put")]
    pub kind: String,
    /// When the node wrote this down, by its wall clock.
    pub recorded: String,
    /// Cluster time of its log entry; a change of leader stands in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<Millis>,
    /// Index of its log entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// The policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Which version of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The policy in a few words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The key that was set back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Members that vote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voters: Option<Vec<u64>>,
    /// Members that only listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learners: Option<Vec<u64>>,
    /// The leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// The leader's term.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
}
