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
    /// The limit that the last grant was decided by, in its shortest form.
    pub limit: Limit,
    /// Cluster time of the look.
    pub now_ms: Millis,
    /// Cluster time of the first instant the next permit may take.
    pub next_ms: Millis,
    /// Permits that lie in the future.
    pub reserved: u64,
    /// How many more could be reserved.
    pub remaining: u64,
    /// Leases that have not ended; 0 for limits without leases.
    pub in_flight: u64,
    /// The fencing number of the last grant.
    pub permit: u64,
    /// How long an acquire of cost 1 would be told to stay away; 0 if it would be granted. Rounded up.
    pub retry_after_ms: Millis,
}
