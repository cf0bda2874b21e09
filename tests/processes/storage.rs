//! Directories that cannot be trusted are refused, and the message says what to do.

use super::cluster::Cluster;
use super::workers::ask;

#[tokio::test(flavor = "multi_thread")]
async fn another_nodes_directory_is_refused() {
    let mut cluster = Cluster::start(3).await;
    let (first, second) = (cluster.nodes[0].data.clone(), cluster.nodes[1].data.clone());
    cluster.node(1).kill();
    cluster.node(2).kill();
    std::fs::rename(&first, first.with_extension("aside")).unwrap();
    std::fs::rename(&second, &first).unwrap();
    cluster.node(1).spawn();
    let status = cluster.node(1).ended().await;
    assert_eq!(status.code(), Some(1));
    let log = cluster.node(1).log();
    assert!(log.contains("belongs to node 2") && log.contains("--id 2"), "{log}");
    // Put back in its place, everything goes on.
    std::fs::rename(&first, &second).unwrap();
    std::fs::rename(first.with_extension("aside"), &first).unwrap();
    cluster.node(1).spawn();
    cluster.node(2).spawn();
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// A log on a volume that is not mounted: the marker is there, and what it stands for is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_refused() {
    let mut cluster = Cluster::start(3).await;
    let (status, body) = ask(&cluster.http, &cluster.nodes[0].url, "k", "a").await.unwrap();
    assert_eq!(status, 200, "{body}");
    let log = cluster.nodes[1].data.join("log");
    cluster.node(2).kill();
    std::fs::rename(&log, log.with_extension("aside")).unwrap();
    cluster.node(2).spawn();
    assert_eq!(cluster.node(2).ended().await.code(), Some(1));
    let said = cluster.node(2).log();
    assert!(said.contains("is gone") && said.contains("new id"), "{said}");
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(log.with_extension("aside"), &log).unwrap();
    cluster.node(2).spawn();
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// "A wiped node never rejoins under its old id."
#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_directory_under_a_known_id_is_refused() {
    let mut cluster = Cluster::start(3).await;
    let (status, body) = ask(&cluster.http, &cluster.nodes[0].url, "k", "a").await.unwrap();
    assert_eq!(status, 200, "{body}");
    let data = cluster.nodes[2].data.clone();
    cluster.node(3).kill();
    std::fs::remove_dir_all(&data).unwrap();
    cluster.node(3).spawn();
    let status = cluster.node(3).ended().await;
    assert_eq!(status.code(), Some(1));
    let log = cluster.node(3).log();
    assert!(log.contains("replace the node by one with a new id"), "{log}");
    // The others serve on.
    let (status, body) = ask(&cluster.http, &cluster.nodes[1].url, "k", "b").await.unwrap();
    assert_eq!(status, 200, "{body}");
}
