//! A cluster of one node in this process.

use quorate::node::{Node, Options, start};
use std::collections::BTreeMap;
use std::path::Path;
use tokio::net::TcpListener;

pub(crate) async fn one_node(data: &Path, advertise: &str) -> Node {
    let peers = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Options {
        id: 1,
        data: data.to_owned(),
        members: BTreeMap::from([(1, peers.local_addr().unwrap().to_string())]),
        join: false,
        cluster: "fuzz".to_owned(),
        advertise: advertise.to_owned(),
        keys_max: 1_000,
        heartbeat_ms: 100,
        election_ms_min: 200,
        election_ms_max: 350,
        request_timeout_ms: 10_000,
        snapshot_every_entries: 100_000,
        log_keep_entries: 1_000,
        disk_reserve_bytes: 0,
    };
    start(&options, peers, None).await.unwrap()
}
