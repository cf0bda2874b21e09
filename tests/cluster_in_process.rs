//! Three nodes in one process: real consensus, real disks, real connections, no HTTP.

use quorate::clock::SystemClocks;
use quorate::limiter::{Key, Limit, Spacing, Span, Terms};
use quorate::node::{Handle, Node, Options, start};
use quorate::raft::LogStore;
use quorate::state::{Acquire, Command, Grant, Identity, Outcome};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Only bounds failures.
const PATIENCE: Duration = Duration::from_secs(60);

fn acquire(key: &str, rate: &str, id: Option<&str>) -> Acquire {
    let key = Key::new(key).unwrap();
    let limit = Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, 10_000).unwrap());
    let mut acquire = Acquire::one(key, Some(limit), 1, Terms::default());
    acquire.identity = id.map(|id| Identity::of(id, acquire.wanted()));
    acquire
}

fn clocks() -> Arc<SystemClocks> {
    Arc::new(SystemClocks::new().unwrap())
}

struct Cluster {
    options: Vec<Options>,
    nodes: Vec<Option<Node>>,
}

impl Cluster {
    async fn start(dir: &Path, count: u64, snapshot_every_entries: u64) -> Self {
        let mut listeners = Vec::new();
        let mut members = BTreeMap::new();
        for id in 1..=count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            members.insert(id, listener.local_addr().unwrap().to_string());
            listeners.push(listener);
        }
        let options = (1..=count).map(|id| Options {
            id,
            data: dir.join(format!("node{id}")),
            members: members.clone(),
            join: false,
            cluster: "test".to_owned(),
            advertise: format!("http://node{id}"),
            keys_max: 1_000,
            heartbeat_ms: 100,
            election_ms_min: 200,
            election_ms_max: 350,
            request_timeout_ms: 10_000,
            snapshot_every_entries,
            log_keep_entries: snapshot_every_entries / 2,
            disk_reserve_bytes: 0,
        });
        let mut cluster = Self { options: options.collect(), nodes: Vec::new() };
        for (options, listener) in cluster.options.iter().zip(listeners) {
            cluster.nodes.push(Some(start(options, listener, None).await.unwrap()));
        }
        cluster
    }

    fn handle(&self, index: usize) -> Handle {
        self.nodes[index].as_ref().expect("a running node").handle()
    }

    async fn stop(&mut self, index: usize) {
        self.nodes[index].take().expect("a running node").shutdown(Duration::from_secs(5)).await;
    }

    async fn restart(&mut self, index: usize) {
        let options = &self.options[index];
        let listener = TcpListener::bind(&options.members[&options.id]).await.unwrap();
        // The tasks of the stopped one let go of its directory when the runtime gets round to them.
        while LogStore::open(&options.data.join("log"), clocks()).is_err() {
            tokio::task::yield_now().await;
        }
        self.nodes[index] = Some(start(options, listener, None).await.unwrap());
    }

    async fn grant(&self, index: usize, acquire: Acquire) -> Grant {
        let verdict = self.handle(index).decide(Command::Acquire(acquire)).await.unwrap();
        let Outcome::Granted(grant) = verdict.outcome else { panic!("{verdict:?}") };
        grant
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_are_spaced_whichever_node_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path(), 3, 1_000).await;
    let mut grants = Vec::new();
    for round in 0..60 {
        grants.push(cluster.grant(round % 3, acquire("k", "10/s", None)).await);
    }
    for pair in grants.windows(2) {
        assert!(pair[1].first.number > pair[0].first.number, "permits grow: {pair:?}");
        assert!(pair[1].slot.since(pair[0].slot) >= Span::from_millis(100), "slots are spaced: {pair:?}");
    }
    let first = cluster.grant(0, acquire("once", "10/s", Some("id"))).await;
    let again = cluster.grant(1, acquire("once", "10/s", Some("id"))).await;
    assert_eq!((first.first.number, first.slot), (again.first.number, again.slot));
    assert!(again.replayed && !first.replayed);
    for index in 0..3 {
        let look = cluster.handle(index).look(Key::new("k").unwrap(), None).await.unwrap();
        assert_eq!(look.key.unwrap().permit, 60);
    }
    for index in 0..3 {
        cluster.stop(index).await;
    }
}

/// A node that was away for longer than the log reaches back gets a snapshot, also while the others go on, and restarts from it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_far_behind_gets_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path(), 3, 200).await;
    cluster.grant(2, acquire("k", "1000/s", None)).await;
    cluster.stop(2).await;
    // Two snapshots lie more entries apart than are kept behind one, so the second purges what the node has seen; a third one
    // says that this has been done.
    for index in 0..2 {
        let current = dir.path().join(format!("node{}/snapshots/current.snapshot", index + 1));
        for _ in 0..3 {
            another_file(&cluster, index, &current).await;
        }
    }
    cluster.restart(2).await;
    let mut last = cluster.grant(0, acquire("k", "1000/s", None)).await;
    for round in 0..300 {
        last = cluster.grant(round % 3, acquire("k", "1000/s", None)).await;
    }
    tokio::time::timeout(PATIENCE, settled(&cluster, last.first.number)).await.expect("equal digests");
    assert!(dir.path().join("node3/snapshots/current.snapshot").exists(), "node 3 got a snapshot");

    for index in 0..3 {
        cluster.stop(index).await;
    }
    for index in 0..3 {
        cluster.restart(index).await;
    }
    let after = cluster.grant(2, acquire("k", "1000/s", None)).await;
    assert_eq!(after.first.number, last.first.number + 1, "nothing is forgotten");
    assert!(after.slot >= last.slot, "and time goes on");
    tokio::time::timeout(PATIENCE, settled(&cluster, after.first.number)).await.expect("equal digests");
}

/// Grants until another file than now has this name. One entry each, because each waits for the one before.
async fn another_file(cluster: &Cluster, index: usize, path: &Path) {
    let file = || std::fs::metadata(path).ok().map(|file| (file.ino(), file.mtime(), file.mtime_nsec()));
    let before = file();
    for round in 0.. {
        if file().is_some_and(|now| Some(now) != before) {
            return;
        }
        cluster.grant(index, acquire(&format!("k{}", round % 50), "1000/s", None)).await;
    }
}

/// Waits until all nodes have applied the same entries and compares their digests there.
async fn settled(cluster: &Cluster, permit: u64) {
    loop {
        let mut digests = Vec::new();
        for index in 0..3 {
            digests.push(cluster.handle(index).digest().await);
        }
        if digests.iter().all(|digest| digest.applied == digests[0].applied) {
            assert!(digests.iter().all(|digest| digest.digest == digests[0].digest), "{permit}: {digests:?}");
            return;
        }
        tokio::task::yield_now().await;
    }
}
