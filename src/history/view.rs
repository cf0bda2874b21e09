//! What the history answers with.

use super::event::Audit;
use super::record::Counts;
use crate::limiter::{Key, Time};

/// How far back a look at a key goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Most permits, and most denials.
    pub most: usize,
    /// Seconds of usage.
    pub seconds: u64,
    /// Minutes of usage.
    pub minutes: u64,
}

/// What is remembered of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHistory {
    /// Cluster time of the last entry that was recorded; the usage below counts back from it.
    pub until: Time,
    /// Newest first.
    pub permits: Vec<Permit>,
    /// Newest first.
    pub denied: Vec<Denied>,
    /// Seconds in which something happened, oldest first.
    pub seconds: Vec<Bucket>,
    /// Minutes in which something happened, oldest first.
    pub minutes: Vec<Bucket>,
}

/// One permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The fencing number.
    pub permit: u64,
    /// When it might start.
    pub slot: Time,
    /// When it was decided.
    pub at: Time,
    /// What it took.
    pub cost: u64,
    /// The stored rule that decided.
    pub policy: Option<String>,
    /// Who asked.
    pub worker: Option<String>,
    /// Whether it was given back.
    pub released: bool,
    /// This node's wall clock when it wrote this down.
    pub wall_ms: u64,
}

/// One denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// When it was decided.
    pub at: Time,
    /// What it would have taken.
    pub cost: u64,
    /// Which rule refused.
    pub reason: String,
    /// The stored rule that decided.
    pub policy: Option<String>,
    /// Who asked.
    pub worker: Option<String>,
    /// This node's wall clock when it wrote this down.
    pub wall_ms: u64,
}

/// What happened in one second or minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Where it begins.
    pub at: Time,
    /// What happened.
    pub counts: Counts,
}

/// Usage over the last hour of cluster time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Where the hour begins: with a whole minute.
    pub since: Time,
    /// Cluster time of the last entry that was recorded.
    pub until: Time,
    /// Everything, or all of the one policy that was asked for.
    pub total: Counts,
    /// The same by minutes in which something happened, oldest first.
    pub minutes: Vec<Bucket>,
    /// The busiest policies, busiest first.
    pub policies: Vec<(String, Counts)>,
    /// The busiest keys with the rule that decided last, busiest first.
    pub keys: Vec<(Key, Option<String>, Counts)>,
    /// Whether all records of the hour were looked at; if not, the oldest were left out.
    pub complete: bool,
}

/// A line of the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Its number on this node.
    pub number: u64,
    /// Cluster time and log index of its entry, if it stands in one.
    pub entry: Option<(Time, u64)>,
    /// This node's wall clock when it wrote this down.
    pub wall_ms: u64,
    /// What changed.
    pub event: Audit,
}
