//! SIGTERM: a leader that leaves in order takes nobody down with it.

use super::cluster::{Cluster, patience};
use super::workers::{Workers, check};

/// "Graceful leader stop under load: no worker sees an error other than a retried one inside the node": the workers may have to
/// find another node, because theirs is gone, but nobody ever answers that it failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_stopped_hands_over() {
    let mut cluster = Cluster::start(3).await;
    let workers = Workers::start(&cluster.urls(), 12);
    for _ in 0..4 {
        let before = workers.granted();
        let mut tries = patience();
        while workers.granted() < before + 100 {
            assert!(tries.next().await, "no load flows:\n{}", cluster.logs());
        }
        let leader = cluster.leader().await;
        cluster.node(leader).signal("TERM");
        let status = cluster.node(leader).ended().await;
        assert_eq!(status.code(), Some(0), "node {leader}:\n{}", cluster.node(leader).log());
        let successor = cluster.leader().await;
        assert_ne!(successor, leader);
        cluster.node(leader).spawn();
        cluster.ready().await;
    }
    let history = workers.finish().await;
    let others = history.others.lock().unwrap().clone();
    let grants = history.grants.lock().unwrap().clone();
    println!("{} grants over 4 graceful stops; other answers {others:?}", grants.len());
    // A connection that closes is how a worker learns that its node has gone; an answer that says so is not.
    assert!(others.keys().all(|kind| ["connect", "lost"].contains(&kind.as_str())), "workers saw errors: {others:?}");
    check(&grants);
    cluster.equal_digests().await;
}
