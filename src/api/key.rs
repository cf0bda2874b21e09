//! `GET /keys/{key}`: one key as it stands.

use super::limit::Limit;
use super::millis::Millis;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A linearizable look at a key that consumes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyResponse {
    /// The key.
    pub key: String,
    /// The limit in force, in its shortest form: a stored policy's, or that of the last grant.
    pub limit: Limit,
    /// The stored policy it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<u64>,
    /// Cluster time of the look.
    pub now_ms: Millis,
    /// Cluster time of the slot that an acquire of cost 1 would get.
    pub next_ms: Millis,
    /// Permits that lie in the future.
    pub reserved: u64,
    /// How many acquires of cost 1 would be granted one after the other now, reservations included.
    pub remaining: u64,
    /// Leases that have not ended; 0 for limits without leases.
    pub in_flight: u64,
    /// Requests that wait for a place with `wait: "server"`.
    #[serde(default)]
    pub waiting: u64,
    /// The place in that line, from 1, of the request that `request_id` asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The fencing number of the last grant; 0 if the key is idle.
    pub permit: u64,
    /// How long an acquire of cost 1 would be told to stay away; 0 if it would be granted. Rounded up.
    pub retry_after_ms: Millis,
}
