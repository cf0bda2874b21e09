//! The names of all metrics, what each means, and the recorder that renders them.
//!
//! Invariants
//! - A name is written here once; dashboards rely on it.
//! - No label ever carries a key, a request id or a worker: labels are few and known beforehand.
//!
//! Not here: the numbers. Who owns an event counts it.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Acquires by `outcome`: `granted`, `denied`, `replayed` or `error`.
pub const ACQUIRES_TOTAL: &str = "quorate_acquires_total";
/// From the last byte of a request to its answer.
pub const ACQUIRE_DURATION_SECONDS: &str = "quorate_acquire_duration_seconds";
/// Whether this node knows a leader.
pub const HAS_LEADER: &str = "quorate_has_leader";
/// Whether this node leads.
pub const IS_LEADER: &str = "quorate_is_leader";
/// Changes of leader that this node saw.
pub const LEADER_CHANGES_TOTAL: &str = "quorate_leader_changes_total";
/// Keys held.
pub const KEYS: &str = "quorate_keys";
/// Requests that wait for the proposer or are in flight.
pub const PROPOSALS_PENDING: &str = "quorate_proposals_pending";
/// Requests that wait for a place at this leader.
pub const WAITING: &str = "quorate_waiting";
/// Answers that this node holds until their slot has come.
pub const HELD: &str = "quorate_held";
/// Commands per log entry.
pub const BATCH_SIZE: &str = "quorate_batch_size";
/// Syncs of the log to disk.
pub const LOG_SYNC_DURATION_SECONDS: &str = "quorate_log_sync_duration_seconds";
/// Stamps that ran ahead of this node's clock faster than drift allows.
pub const CLOCK_ALARMS_TOTAL: &str = "quorate_clock_alarms_total";
/// Entries rejected because leadership changed between stamping and appending.
pub const STALE_STAMPS_TOTAL: &str = "quorate_stale_stamps_total";
/// Request ids remembered.
pub const REQUEST_IDS: &str = "quorate_request_ids";
/// Events written to history.
pub const HISTORY_EVENTS_TOTAL: &str = "quorate_history_events_total";
/// Events that history lost: its queue was full, or it was not to be had.
pub const HISTORY_DROPPED_TOTAL: &str = "quorate_history_dropped_total";
/// Times that history was moved aside and begun afresh.
pub const HISTORY_RESETS_TOTAL: &str = "quorate_history_resets_total";
/// Size of the files of history.
pub const HISTORY_BYTES: &str = "quorate_history_bytes";
/// Free space on the disk of the data directory.
pub const DISK_FREE_BYTES: &str = "quorate_disk_free_bytes";
/// Whether this node takes no more because that is too little.
pub const DISK_FULL: &str = "quorate_disk_full";
/// Always 1; the labels say what runs.
pub const BUILD_INFO: &str = "quorate_build_info";
/// Answers by `route` and `status`.
pub const HTTP_REQUESTS_TOTAL: &str = "quorate_http_requests_total";
/// Client connections now open.
pub const HTTP_CONNECTIONS: &str = "quorate_http_connections";
/// Client connections turned away because too many were open.
pub const HTTP_CONNECTIONS_REJECTED_TOTAL: &str = "quorate_http_connections_rejected_total";
/// Requests that came to a proxy, by `outcome`.
pub const PROXY_REQUESTS_TOTAL: &str = "quorate_proxy_requests_total";
/// Requests that a proxy holds until their permits.
pub const PROXY_WAITING: &str = "quorate_proxy_waiting";
/// How long a proxy held requests that it then passed on.
pub const PROXY_HELD_SECONDS: &str = "quorate_proxy_held_seconds";
/// What of that the permit did not ask for: the proxy's own overhead, with its way to the cluster.
pub const PROXY_OVERHEAD_SECONDS: &str = "quorate_proxy_overhead_seconds";
/// Acquires that an agent answered, by `outcome`.
pub const AGENT_ACQUIRES_TOTAL: &str = "quorate_agent_acquires_total";
/// From the last byte of an acquire to the agent's answer.
pub const AGENT_ACQUIRE_DURATION_SECONDS: &str = "quorate_agent_acquire_duration_seconds";
/// Requests that an agent put to the cluster one to one.
pub const AGENT_PASSED_TOTAL: &str = "quorate_agent_passed_total";
/// Slots by what became of them: `reserved`, `handed_out`, `given_back` or `wasted`.
pub const AGENT_SLOTS_TOTAL: &str = "quorate_agent_slots_total";
/// Blocks that an agent asked for, by `outcome`: `granted`, `denied`, `unavailable` or `unknown`.
pub const AGENT_BLOCKS_TOTAL: &str = "quorate_agent_blocks_total";
/// Slots that an agent holds and has not handed out.
pub const AGENT_SLOTS_HELD: &str = "quorate_agent_slots_held";
/// Keys that an agent knows.
pub const AGENT_KEYS: &str = "quorate_agent_keys";
/// Workers that wait at an agent for a block.
pub const AGENT_WAITING: &str = "quorate_agent_waiting";

/// Upper bounds for every histogram of seconds: a decision takes a fraction of a millisecond in memory, some
/// milliseconds with a disk, seconds when the cluster looks for a leader.
const SECONDS_BUCKETS: [f64; 22] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_35, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.003, 0.004, 0.005, 0.007_5, 0.01,
    0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

/// Upper bounds for how long a proxy holds requests: a limit may ask for minutes.
const HELD_BUCKETS: [f64; 18] =
    [0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0];

/// Upper bounds for the number of commands in a log entry.
const BATCH_BUCKETS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0];

/// A recorder with our buckets, not yet installed.
pub fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(PROXY_HELD_SECONDS.to_owned()), &HELD_BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(BATCH_SIZE.to_owned()), &BATCH_BUCKETS)
}

/// Installs the recorder of this process and describes every metric. Has to come before anything takes a metric in
/// hand: a counter created earlier counts into nothing.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = builder()?.install_recorder()?;
    describe();
    Ok(handle)
}

/// Says what each metric means, and which build this is.
pub fn describe() {
    describe_counter!(ACQUIRES_TOTAL, "Acquires by outcome");
    describe_histogram!(ACQUIRE_DURATION_SECONDS, Unit::Seconds, "From the last byte of an acquire to its answer");
    describe_gauge!(HAS_LEADER, "1 if this node knows a leader");
    describe_gauge!(IS_LEADER, "1 if this node leads");
    describe_counter!(LEADER_CHANGES_TOTAL, "Changes of leader that this node saw");
    describe_gauge!(KEYS, "Keys held");
    describe_gauge!(PROPOSALS_PENDING, "Requests that wait for the proposer or are in flight");
    describe_gauge!(WAITING, "Requests that wait for a place at this leader");
    describe_gauge!(HELD, "Answers that this node holds until their slot has come");
    describe_histogram!(BATCH_SIZE, Unit::Count, "Commands per log entry");
    describe_histogram!(LOG_SYNC_DURATION_SECONDS, Unit::Seconds, "Syncs of the log to disk");
    describe_counter!(CLOCK_ALARMS_TOTAL, "Stamps that ran ahead of this node's clock faster than drift allows");
    describe_counter!(STALE_STAMPS_TOTAL, "Entries rejected because leadership changed between stamping and appending");
    describe_gauge!(REQUEST_IDS, "Request ids remembered");
    describe_counter!(HISTORY_EVENTS_TOTAL, "Events written to history");
    describe_counter!(HISTORY_DROPPED_TOTAL, "Events that history lost: its queue was full, or it was not to be had");
    describe_counter!(HISTORY_RESETS_TOTAL, "Times that history was moved aside and begun afresh");
    describe_gauge!(DISK_FREE_BYTES, Unit::Bytes, "Free space on the disk of the data directory");
    describe_gauge!(DISK_FULL, "1 while this node takes no more because its disk is full");
    describe_gauge!(HISTORY_BYTES, Unit::Bytes, "Size of the files of history");
    describe_gauge!(BUILD_INFO, "Always 1; the labels say what runs");
    describe_counter!(HTTP_REQUESTS_TOTAL, "Answers by route and status");
    describe_gauge!(HTTP_CONNECTIONS, "Client connections now open");
    describe_counter!(HTTP_CONNECTIONS_REJECTED_TOTAL, "Client connections turned away because too many were open");
    describe_counter!(PROXY_REQUESTS_TOTAL, "Requests that came to the proxy, by outcome");
    describe_gauge!(PROXY_WAITING, "Requests that the proxy holds until their permits");
    describe_histogram!(PROXY_HELD_SECONDS, Unit::Seconds, "How long the proxy held requests that it passed on");
    describe_histogram!(PROXY_OVERHEAD_SECONDS, Unit::Seconds, "What of that the permit did not ask for");
    describe_counter!(AGENT_ACQUIRES_TOTAL, "Acquires that the agent answered, by outcome");
    describe_histogram!(
        AGENT_ACQUIRE_DURATION_SECONDS,
        Unit::Seconds,
        "From the last byte of an acquire to the agent's answer"
    );
    describe_counter!(AGENT_PASSED_TOTAL, "Requests that the agent put to the cluster one to one");
    describe_counter!(AGENT_SLOTS_TOTAL, "Slots by what became of them");
    describe_counter!(AGENT_BLOCKS_TOTAL, "Blocks that the agent asked for, by outcome");
    describe_gauge!(AGENT_SLOTS_HELD, "Slots that the agent holds and has not handed out");
    describe_gauge!(AGENT_KEYS, "Keys that the agent knows");
    describe_gauge!(AGENT_WAITING, "Workers that wait at the agent for a block");
    metrics_process::Collector::default().describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// A count as a gauge takes it; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "no count here gets near 2^53")]
pub fn gauge_value(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_histograms_with_fine_steps_below_five_milliseconds() {
        let recorder = builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            metrics::histogram!(ACQUIRE_DURATION_SECONDS).record(0.000_04);
            metrics::histogram!(BATCH_SIZE).record(3.0);
        });
        let text = handle.render();
        for line in [
            "quorate_acquire_duration_seconds_bucket{le=\"0.00005\"} 1",
            "quorate_batch_size_bucket{le=\"4\"} 1",
            concat!("quorate_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(SECONDS_BUCKETS.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(SECONDS_BUCKETS.iter().filter(|bound| **bound < 0.005).count() >= 8);
    }
}
