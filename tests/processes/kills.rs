//! kill -9, again and again, under load.

use super::cluster::{Cluster, patience};
use super::workers::{Workers, ask, check, micros};
use std::time::Duration;

/// Kills in one history; `LEADER_KILLS=100` for more.
fn leader_kills() -> usize {
    std::env::var("LEADER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12)
}

/// P1 spacing, P4 nothing lost, P5 at most once, under "crash, kill": the leader dies twelve times in one history.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_killed_again_and_again() {
    let mut cluster = Cluster::start(3).await;
    let urls = cluster.urls();
    let workers = Workers::start(&urls, 12);
    let mut failovers = Vec::new();
    let kills = leader_kills();
    for _ in 0..kills {
        // Load really flows before each kill.
        let before = workers.granted();
        let mut tries = patience();
        while workers.granted() < before + 50 {
            assert!(tries.next().await, "no load flows:\n{}", cluster.logs());
        }
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        let killed_at = workers.began.elapsed();
        // A grant that was asked for after the kill: the others have a leader again.
        let mut tries = patience();
        let first = loop {
            if let Some(first) = workers.first_asked_after(killed_at) {
                break first;
            }
            assert!(tries.next().await, "no grant after the kill:\n{}", cluster.logs());
        };
        failovers.push(first.saturating_sub(killed_at));
        cluster.node(leader).spawn();
        cluster.ready().await;
    }
    let history = workers.finish().await;
    let grants = history.grants.lock().unwrap().clone();
    failovers.sort();
    println!(
        "{} grants over {kills} leader kills; kill to first grant: median {:?}, p99 {:?}, longest {:?}; other answers {:?}",
        grants.len(),
        failovers[failovers.len() / 2],
        failovers[(failovers.len() - 1) * 99 / 100],
        failovers[failovers.len() - 1],
        history.others.lock().unwrap()
    );

    // P5: "A retry with the same request_id gets the same permit, from any node, also after a failover."
    for (number, grant) in grants.iter().rev().take(60).enumerate() {
        let (status, body) = ask(&cluster.http, &urls[number % 3], &grant.key, &grant.request_id).await.unwrap();
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["permit"].as_u64(), Some(grant.permit), "{body}");
        assert_eq!(micros(&body["slot_ms"]), grant.slot_us);
        assert_eq!(body["replayed"], true);
    }
    check(&grants);
    cluster.equal_digests().await;
}

/// P4: "A grant that was answered is never forgotten or given twice", with "all nodes losing power at once" for processes.
#[tokio::test(flavor = "multi_thread")]
async fn all_three_are_killed_at_once() {
    let mut cluster = Cluster::start(3).await;
    let urls = cluster.urls();
    let workers = Workers::start(&urls, 8);
    for _ in 0..3 {
        let before = workers.granted();
        let mut tries = patience();
        while workers.granted() < before + 100 {
            assert!(tries.next().await, "no load flows:\n{}", cluster.logs());
        }
        for node in &mut cluster.nodes {
            node.kill();
        }
        for node in &mut cluster.nodes {
            node.spawn();
        }
        cluster.ready().await;
    }
    let history = workers.finish().await;
    let grants = history.grants.lock().unwrap().clone();
    println!("{} grants over 3 kills of everything; other answers {:?}", grants.len(), history.others.lock().unwrap());
    check(&grants);
    for (number, grant) in grants.iter().rev().take(30).enumerate() {
        let (status, body) = ask(&cluster.http, &urls[number % 3], &grant.key, &grant.request_id).await.unwrap();
        assert_eq!((status, body["permit"].as_u64()), (200, Some(grant.permit)), "{body}");
    }
    cluster.equal_digests().await;
}

/// "Two requests with one `request_id` get one permit, whichever nodes they hit", also at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn one_id_is_one_permit() {
    let cluster = Cluster::start(3).await;
    for round in 0..30 {
        let id = format!("same-{round}");
        let asked = cluster.nodes.iter().map(|node| ask(&cluster.http, &node.url, "once", &id));
        let answers = futures::future::join_all(asked).await;
        let permits: Vec<_> =
            answers.iter().map(|answer| answer.as_ref().unwrap().1["permit"].as_u64().unwrap()).collect();
        assert!(permits.iter().all(|permit| *permit == permits[0]), "{answers:?}");
        let fresh = answers.iter().filter(|answer| answer.as_ref().unwrap().1["replayed"] == false).count();
        assert_eq!(fresh, 1, "{answers:?}");
    }
    // The same id for another key is another request.
    let (status, body) = ask(&cluster.http, &cluster.nodes[1].url, "twice", "same-0").await.unwrap();
    assert_eq!((status, body["code"].as_str()), (422, Some("request_id_reused")), "{body}");
    tokio::time::timeout(Duration::from_secs(60), cluster.equal_digests()).await.expect("digests");
}
