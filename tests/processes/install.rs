//! Nodes that die at the worst places in the code, under load: each comes back, catches up, and nothing that was told is lost.

use super::cluster::{Cluster, get, patience};
use super::workers::{Grant, Workers, ask, check, micros};
use quorate::failpoint;
use serde_json::json;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

/// How a process ends that aborts.
const SIGABRT: i32 = 6;
/// A snapshot so much farther than a node that is away leaves nothing in the log for it: a hundred entries are kept behind one.
const FAR_ENTRIES: u64 = 400;
/// Permits that were told last when a node died, and are asked for again.
const ASKED_AGAIN: usize = 20;

/// What one stood through, from the load before to the last permits that were told.
struct Scene {
    cluster: Cluster,
    workers: Workers,
    told: Vec<Grant>,
}

impl Scene {
    async fn set() -> Self {
        let mut cluster = Cluster::prepare(3, &["--snapshot-every", "100", "--log-keep", "100", "--history", "false"]);
        cluster.nodes.iter_mut().for_each(super::cluster::Node::spawn);
        cluster.ready().await;
        let workers = Workers::start_on(&cluster.urls(), 16, 64);
        Self { cluster, workers, told: Vec::new() }
    }

    /// Waits until so many more permits were told.
    async fn load_flows(&self, permits: usize) {
        let (before, mut tries) = (self.workers.granted(), patience());
        while self.workers.granted() < before + permits {
            assert!(tries.next().await, "no load flows:\n{}", self.cluster.logs());
        }
    }

    /// Waits until a node that is away is too far behind for entries: all others have cut their logs behind it.
    async fn far_behind(&mut self, away: u64) {
        let mut tries = patience();
        let from = loop {
            let leader = self.cluster.leader().await;
            let url = format!("{}/cluster/digest", self.cluster.node(leader).url);
            if let Some(applied) = get(&self.cluster.http, &url).await.and_then(|view| view["applied"].as_u64()) {
                break applied;
            }
            assert!(tries.next().await, "nobody says how far it is:\n{}", self.cluster.logs());
        };
        for id in (1..=3).filter(|id| *id != away) {
            // Of the second snapshot it is certain that the log was cut after the first.
            while snapshots_from(&self.cluster.node(id).log(), from + FAR_ENTRIES) < 2 {
                assert!(tries.next().await, "nothing is applied:\n{}", self.cluster.logs());
            }
        }
    }

    /// A node has died: remembers what was told until then, and starts it again.
    async fn comes_back(&mut self, id: u64) {
        let grants = self.workers.history.grants.lock().unwrap().clone();
        self.told.extend(grants.into_iter().rev().take(ASKED_AGAIN));
        self.cluster.node(id).spawn();
        self.cluster.ready().await;
        self.load_flows(20).await;
    }

    /// "A grant that was answered is never forgotten or given twice", and all nodes are in the same state.
    async fn nothing_is_lost(self) {
        let Self { cluster, workers, told } = self;
        let history = workers.finish().await;
        let grants = history.grants.lock().unwrap().clone();
        check(&grants);
        assert!(!told.is_empty());
        for (number, grant) in told.iter().enumerate() {
            let url = &cluster.nodes[number % 3].url;
            let (status, body) = ask(&cluster.http, url, &grant.key, &grant.request_id).await.unwrap();
            assert_eq!((status, body["permit"].as_u64()), (200, Some(grant.permit)), "{body}");
            assert_eq!((micros(&body["slot_ms"]), &body["replayed"]), (grant.slot_us, &json!(true)), "{body}");
        }
        cluster.equal_digests().await;
        println!(
            "{} grants, {} of them asked for again; other answers {:?}",
            grants.len(),
            told.len(),
            history.others.lock().unwrap()
        );
    }
}

/// How many snapshots that reach this far a log tells of.
fn snapshots_from(log: &str, least: u64) -> usize {
    let reaches = log
        .lines()
        .filter_map(|line| line.split_once("snapshot written last=Some(")?.1.split_once(')')?.0.parse().ok());
    reaches.filter(|index: &u64| *index >= least).count()
}

/// Half of a snapshot: what is on its way in, or was when its node died.
fn half_a_snapshot(data: &Path) -> bool {
    let Ok(files) = std::fs::read_dir(data.join("snapshots")) else { return false };
    files.flatten().any(|file| file.path().extension().is_some_and(|extension| extension == "tmp"))
}

/// "Snapshot installed to a node far behind, killed midway": at a point in the code, and from outside while it is at it.
#[tokio::test(flavor = "multi_thread")]
async fn an_install_that_was_cut_short_begins_anew() {
    let mut scene = Scene::set().await;
    scene.load_flows(50).await;
    scene.cluster.node(3).kill();
    scene.far_behind(3).await;

    // It dies by itself, with the snapshot in hand.
    scene.cluster.node(3).spawn_with("FAILPOINTS", "install=return");
    let status = scene.cluster.node(3).ended().await;
    assert_eq!(status.signal(), Some(SIGABRT), "{}", scene.cluster.node(3).log());
    let data = scene.cluster.node(3).data.clone();
    assert!(half_a_snapshot(&data), "it died midway");

    // It stands still with the next one in hand, and is killed.
    scene.cluster.node(3).spawn_with("FAILPOINTS", "install=sleep(600000)");
    let installing = scene.cluster.count_in_logs("installing a snapshot");
    let mut tries = patience();
    while scene.cluster.count_in_logs("installing a snapshot") == installing {
        assert!(tries.next().await, "no snapshot arrives:\n{}", scene.cluster.logs());
    }
    assert!(half_a_snapshot(&data), "it is at it");
    scene.cluster.node(3).kill();

    // And then it may finish.
    scene.comes_back(3).await;
    let mut tries = patience();
    while half_a_snapshot(&data) {
        assert!(tries.next().await, "what was cut short is left behind");
    }
    scene.nothing_is_lost().await;
}

/// "Crash at append, fsync, vote save, snapshot, purge, apply", between stamp and proposal, between commit and answer: one node of
/// three dies there, each in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_die_at_every_point() {
    let mut scene = Scene::set().await;
    for (point, id) in failpoint::POINTS.into_iter().zip([1, 2, 3].into_iter().cycle()) {
        scene.load_flows(50).await;
        // The vote of another leader is saved by whoever led before.
        let id = if point == "vote" { scene.cluster.leader().await } else { id };
        scene.cluster.node(id).kill();
        match point {
            "install" => scene.far_behind(id).await,
            "vote" => assert_ne!(scene.cluster.leader().await, id),
            _ => {}
        }
        // Points that are passed all the time are met in the middle of things.
        let passed = if ["append", "sync", "apply"].contains(&point) { 20 } else { 0 };
        scene.cluster.node(id).spawn_with("FAILPOINTS", &format!("{point}={passed}*off->return"));
        let mut tries = patience();
        let status = loop {
            if let Some(status) = scene.cluster.node(id).has_ended() {
                break status;
            }
            if ["propose", "answer"].contains(&point) {
                // Only a leader passes here. It may have died of it before it could answer.
                let other = &scene.cluster.nodes.iter().find(|node| node.id != id).expect("three nodes").url;
                let asked = scene.cluster.http.post(format!("{other}/cluster/transfer")).json(&json!({"to": id}));
                let _ = asked.send().await;
            }
            assert!(tries.next().await, "node {id} does not die at {point}:\n{}", scene.cluster.logs());
        };
        assert_eq!(status.signal(), Some(SIGABRT), "{point}: {}", scene.cluster.node(id).log());
        scene.comes_back(id).await;
        println!("node {id} died at {point} and is back");
    }
    scene.nothing_is_lost().await;
}
