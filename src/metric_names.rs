//! Names of all metrics.

/// Time from handing an append to the log until it is synced.
pub const LOG_SYNC_DURATION: &str = "quorate_log_sync_duration_seconds";
/// Stamps that ran ahead of this node's clock faster than drift allows.
pub const CLOCK_ALARMS: &str = "quorate_clock_alarms_total";
/// Entries rejected because leadership changed between stamping and appending.
pub const STALE_STAMPS: &str = "quorate_stale_stamps_total";
/// Keys held.
pub const KEYS: &str = "quorate_keys";
/// Request ids remembered.
pub const REQUEST_IDS: &str = "quorate_request_ids";

/// Commands per log entry.
pub const BATCH_SIZE: &str = "quorate_batch_size";
/// Requests that wait for the proposer or are in flight.
pub const PROPOSALS_PENDING: &str = "quorate_proposals_pending";
/// Times this node saw the leader change.
pub const LEADER_CHANGES: &str = "quorate_leader_changes_total";
/// 1 while a leader is known.
pub const HAS_LEADER: &str = "quorate_has_leader";
/// 1 while this node leads.
pub const IS_LEADER: &str = "quorate_is_leader";

/// A count as a gauge takes it; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "no count here gets near 2^53")]
pub fn gauge_value(count: u64) -> f64 {
    count as f64
}
