//! Every bound that a client, an operator or a peer can meet, in one place, with its unit as the last word of its name. What only
//! one file knows of (how much it buffers, how often it looks) stays in that file.
//!
//! A bound that is part of a replicated decision (marked *replicated*) must be the same on all nodes of a cluster:
//! changing one is a change of the log format. The others only protect one node.

/// Longest key, in bytes of UTF-8. *Replicated.*
pub const KEY_BYTES_MAX: usize = 256;
/// Longest `request_id`, in bytes of UTF-8.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Longest `worker` label, in bytes of UTF-8.
pub const WORKER_BYTES_MAX: usize = 64;
/// Longest text of a rate or a duration, in bytes.
pub const RATE_TEXT_BYTES_MAX: usize = 64;

/// Largest `cost` of one acquire. *Replicated.*
pub const COST_MAX: u64 = 1_000_000;
/// Largest count in a rate: the `N` of `N/T`.
pub const RATE_COUNT_MAX: u64 = 1_000_000_000;
/// Shortest interval between two permits: 1 µs.
pub const INTERVAL_NS_MIN: u64 = 1_000;
/// Longest interval between two permits, and longest duration in any text: 366 days.
pub const INTERVAL_NS_MAX: u64 = 366 * 86_400 * 1_000_000_000;
/// Most reservations a limit may allow ahead of now: a key's past is looked through, and sometimes copied, with every request.
/// *Replicated.*
pub const MAX_RESERVED_MAX: u32 = 10_000;
/// `max_reserved` of a spacing limit that does not say.
pub const MAX_RESERVED_DEFAULT: u32 = 10;
/// Most permits of one key that may lie ahead in all, those that another limit of the same request pushed there included.
/// *Replicated.*
pub const AHEAD_MAX: u64 = 20_000;
/// Largest `burst` of a bucket. *Replicated.*
pub const BURST_MAX: u64 = 1_000_000;
/// Holes that released permits may leave in one key. *Replicated.*
pub const HOLES_MAX: usize = 4_096;
/// Holes that one request tries before it goes to the end. *Replicated.*
pub const HOLES_TRIED_MAX: usize = 256;
/// Sub-intervals of a sliding window. *Replicated.*
pub const WINDOW_CELLS_MAX: u64 = 128;
/// Largest `max` of a concurrency limit. *Replicated.*
pub const IN_FLIGHT_MAX: u64 = 10_000;
/// Longest lease: one day. *Replicated.*
pub const LEASE_NS_MAX: u64 = 86_400 * 1_000_000_000;
/// `lease` of a concurrency limit that does not say: thirty seconds.
pub const LEASE_NS_DEFAULT: u64 = 30 * 1_000_000_000;
/// Most limits in one `all_of`. *Replicated.*
pub const ALL_OF_MAX: usize = 16;
/// Farthest slot from now that is ever granted, and the most capacity one permit may take: ten years.
pub const HORIZON_NS_MAX: u64 = 10 * 366 * 86_400 * 1_000_000_000;
/// Longest `max_wait_ms`: 366 days.
pub const WAIT_NS_MAX: u64 = 366 * 86_400 * 1_000_000_000;
/// Longest `lead_ms`: one minute.
pub const LEAD_NS_MAX: u64 = 60 * 1_000_000_000;

/// How much faster than real time any clock of the system is assumed to run at most, in parts per million.
pub const DRIFT_PPM: u64 = 500;

/// Keys held at once unless configured otherwise; the leader's figure travels in every log entry.
pub const KEYS_DEFAULT: u64 = 1_000_000;
/// Largest configurable number of keys.
pub const KEYS_MAX: u64 = 100_000_000;
/// Places of the index of idle keys looked at per log entry: one key each, as a rule. *Replicated.*
pub const KEYS_EXPIRED_PER_ENTRY_MAX: usize = 1_024;
/// Request ids remembered at once. *Replicated.*
pub const REQUEST_IDS_MAX: usize = 4_194_304;
/// How long a request id is remembered, in cluster time: two minutes. *Replicated.*
pub const REQUEST_ID_RETENTION_NS: u64 = 120 * 1_000_000_000;
/// Forgotten request ids per log entry. *Replicated.*
pub const REQUEST_IDS_EXPIRED_PER_ENTRY_MAX: usize = 8_192;

/// Stored policies. *Replicated.*
pub const POLICIES_MAX: usize = 10_000;
/// Longest name of a policy, in bytes.
pub const POLICY_NAME_BYTES_MAX: usize = 64;

/// Requests in one `POST /acquire/batch`.
pub const BATCH_REQUESTS_MAX: usize = 1_000;
/// Keys in one `POST /acquire/batch`, with those of every `all_of`.
pub const BATCH_KEYS_MAX: usize = 4_096;
/// Largest body of `POST /acquire/batch`, in bytes.
pub const BATCH_BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Requests that may wait at the leader for a place, over all keys; past it `overloaded`.
pub const WAITERS_MAX: usize = 65_536;

/// Most commands in one log entry.
pub const BATCH_COMMANDS_MAX: usize = 1_024;
/// Keys asked for in one log entry, over all its commands; a single command may have more.
pub const BATCH_WEIGHT_MAX: usize = 2_048;
/// Log entries a leader keeps in flight at once.
pub const BATCHES_IN_FLIGHT_MAX: u32 = 8;
/// Requests that may wait for the proposer; past it `overloaded`.
pub const PROPOSALS_QUEUED_MAX: usize = 16_384;

/// Largest frame between peers, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Snapshot bytes per frame.
pub const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;
/// Largest snapshot a node accepts from a peer, in bytes.
pub const SNAPSHOT_BYTES_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// Peer connections accepted at once.
pub const PEER_CONNECTIONS_MAX: usize = 256;

/// Largest HTTP request body, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Largest block of HTTP headers, in bytes.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Deepest nesting of a JSON body.
pub const JSON_DEPTH_MAX: usize = 32;
/// Client connections accepted at once unless configured otherwise.
pub const CONNECTIONS_DEFAULT: usize = 16_384;
/// Time to send all headers of a request, in milliseconds.
pub const HEADER_TIMEOUT_MS: u64 = 10_000;
/// Time to send the body of a request, in milliseconds.
pub const BODY_TIMEOUT_MS: u64 = 10_000;
/// Largest id of a node.
pub const NODE_ID_MAX: u64 = 65_535;
/// Longest address of a node: a host name of 253 bytes, a colon and a port.
pub const ADDRESS_BYTES_MAX: usize = 259;
/// Time a node works on one request before it answers that it could not, in milliseconds.
pub const REQUEST_TIMEOUT_MS: u64 = 2_000;
/// The same for a change of members, which takes two entries and a node that catches up.
pub const MEMBERSHIP_TIMEOUT_MS: u64 = 10_000;
/// How long a node looks for a leader or a quorum before it answers 503, in milliseconds.
pub const LEADER_WAIT_MS: u64 = 1_500;
/// The same for those who wait in line anyway: the time within which a cluster heals.
pub const LEADER_WAIT_IN_LINE_MS: u64 = 10_000;
/// Disk space for the history unless configured otherwise: 256 MiB.
pub const HISTORY_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// Least disk space for the history: 16 MiB.
pub const HISTORY_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Most disk space for the history: 1 TiB.
pub const HISTORY_BYTES_MAX: u64 = 1024 * 1024 * 1024 * 1024;

/// Threads of one node.
pub const THREADS_MAX: u64 = 1_024;
/// How long the history goes back unless configured otherwise, in milliseconds: seven days.
pub const HISTORY_AGE_MS_DEFAULT: u64 = 7 * 86_400_000;
/// How long opening the history may take before it counts as damaged, in milliseconds.
pub const HISTORY_OPEN_MS_MAX: u64 = 10_000;
/// Disk space below which a node takes no more entries unless configured otherwise: 64 MiB.
pub const DISK_RESERVE_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Largest such space: 1 TiB.
pub const DISK_RESERVE_BYTES_MAX: u64 = 1024 * 1024 * 1024 * 1024;
/// Nodes in one cluster.
pub const MEMBERS_MAX: usize = 9;
