//! Snapshots and purges without end, under load, with followers that fall behind them: what openraft's issue 2116 is about, where an
//! engine panics when a purge overtakes what is being applied. A node that stops for that is started again, as a supervisor would.
//!
//! `SOAK_SECS=1200 cargo test --test processes soak -- --nocapture` for the long one.

use super::cluster::{Cluster, get, patience};
use super::workers::{Workers, check};
use quorate::clock::Deadline;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_of_snapshots_and_purges() {
    let seconds = std::env::var("SOAK_SECS").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let mut cluster = Cluster::prepare(3, &["--snapshot-every", "100", "--log-keep", "100", "--history", "false"]);
    cluster.nodes.iter_mut().for_each(super::cluster::Node::spawn);
    cluster.ready().await;
    let workers = Workers::start_on(&cluster.urls(), 64, 1_000);
    let until = Deadline::after(Duration::from_secs(seconds));
    let (mut pauses, mut restarts, mut round) = (0_u64, 0_u64, 0_usize);
    let mut applied_before = 0;
    while !until.passed() {
        // A follower stands still until the others have snapshotted and purged past it.
        let leader = cluster.leader().await;
        let followers: Vec<u64> = cluster.nodes.iter().map(|node| node.id).filter(|id| *id != leader).collect();
        let lagging = followers[round % followers.len()];
        round += 1;
        let url = cluster.node(leader).url.clone();
        let applied = async |http: &reqwest::Client| {
            get(http, &format!("{url}/cluster/digest")).await.and_then(|view| view["applied"].as_u64())
        };
        let from = applied(&cluster.http).await.unwrap_or(applied_before);
        let written_before = cluster.node(leader).count_in_log("snapshot written");
        cluster.node(lagging).signal("STOP");
        let mut tries = patience();
        // The leader may have changed: then the next round is the one that counts. Two of its snapshots lie more entries apart than
        // are kept behind one, so the second purges what the follower would need next; a third says that this has been done.
        while let Some(now) = applied(&cluster.http).await {
            let written = cluster.node(leader).count_in_log("snapshot written");
            let purged = now >= from + 400 && written >= written_before + 3;
            if purged || cluster.leader().await != leader {
                break;
            }
            assert!(tries.next().await, "nothing is applied:\n{}", cluster.logs());
        }
        cluster.node(lagging).signal("CONT");
        pauses += 1;
        applied_before = from;
        // It catches up, by entries or by a snapshot, before the next one stands still.
        let lagging_url = cluster.node(lagging).url.clone();
        let mut tries = patience();
        loop {
            restarts += cluster.restart_the_dead();
            let there = get(&cluster.http, &format!("{lagging_url}/cluster/digest")).await;
            if there.and_then(|view| view["applied"].as_u64()) >= Some(from + 300) {
                break;
            }
            assert!(tries.next().await, "node {lagging} does not catch up:\n{}", cluster.logs());
        }
    }
    let history = workers.finish().await;
    let grants = history.grants.lock().unwrap().clone();
    check(&grants);
    let snapshots = cluster.count_in_logs("installing a snapshot");
    println!(
        "{seconds} s: {} grants, {pauses} followers stood still, {snapshots} snapshots were installed, {restarts} nodes \
         stopped and were started again",
        grants.len()
    );
    assert!(snapshots > 0, "followers fell behind the log:\n{}", cluster.logs());
    cluster.ready().await;
    cluster.equal_digests().await;
}
