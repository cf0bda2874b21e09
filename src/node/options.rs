//! What a node is started with.

use crate::raft::Settings;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of one node. Every field is a key of the configuration, documented in `cluster/node1.toml`.
#[derive(Debug, Clone)]
pub struct Options {
    /// This node: never reused by another directory.
    pub id: u64,
    /// Its directory.
    pub data: PathBuf,
    /// Peer address of every member at the first start; ignored once there is data.
    pub members: BTreeMap<u64, String>,
    /// Belongs to whichever cluster adds it, if the directory is empty.
    pub join: bool,
    /// Name of the cluster.
    pub cluster: String,
    /// Client URL that is announced to the peers.
    pub advertise: String,
    /// Keys held at once, while this node leads.
    pub keys_max: u64,
    /// Time between two heartbeats.
    pub heartbeat_ms: u64,
    /// Shortest time without a leader before an election.
    pub election_ms_min: u64,
    /// Longest such time.
    pub election_ms_max: u64,
    /// How long the node works on one request.
    pub request_timeout_ms: u64,
    /// Log entries between two snapshots.
    pub snapshot_every_entries: u64,
    /// Log entries kept behind a snapshot for followers that paused.
    pub log_keep_entries: u64,
    /// Disk space below which nothing more is taken; zero turns that off.
    pub disk_reserve_bytes: u64,
}

impl Options {
    pub(super) fn consensus(&self) -> Settings {
        Settings {
            id: self.id,
            data: self.data.clone(),
            members: self.members.clone(),
            join: self.join,
            cluster: self.cluster.clone(),
            advertise: self.advertise.clone(),
            heartbeat_ms: self.heartbeat_ms,
            election_ms_min: self.election_ms_min,
            election_ms_max: self.election_ms_max,
            snapshot_every_entries: self.snapshot_every_entries,
            log_keep_entries: self.log_keep_entries,
            disk_reserve_bytes: self.disk_reserve_bytes,
        }
    }

    pub(super) const fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}
