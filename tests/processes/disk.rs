//! A disk that errs stops the node. Needs strace.

use super::cluster::{Cluster, patience, skip};
use super::workers::ask;
use std::process::Command;

/// "An fsync error poisons the node: it stops", and says why, and what it had acknowledged is still there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn an_fsync_error_stops_the_node() {
    if !Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success()) {
        return skip("an_fsync_error_stops_the_node", "strace is not installed or may not trace");
    }
    let mut cluster = Cluster::prepare(1, &[]);
    // The first syncs are those of a normal start; then the disk is broken for good.
    let inject = "inject=fsync,fdatasync:error=EIO:when=60+";
    cluster.node(1).run_under(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject]);
    cluster.node(1).spawn();
    cluster.ready().await;
    let url = cluster.nodes[0].url.clone();
    let mut granted = Vec::new();
    let mut tries = patience();
    for number in 0.. {
        match ask(&cluster.http, &url, "k", &format!("id-{number}")).await {
            Ok((200, body)) => granted.push((number, body["permit"].as_u64().unwrap())),
            _ => break,
        }
        assert!(number < 10_000 && tries.next().await, "the disk never failed");
    }
    let status = cluster.node(1).ended().await;
    let log = cluster.node(1).log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("the disk cannot be trusted any more"), "{log}");
    assert!(granted.len() > 10, "load flowed before: {granted:?}");

    cluster.node(1).run_under(&[]);
    cluster.node(1).spawn();
    cluster.ready().await;
    for (number, permit) in granted {
        let (status, body) = ask(&cluster.http, &url, "k", &format!("id-{number}")).await.unwrap();
        assert_eq!((status, body["permit"].as_u64()), (200, Some(permit)), "{body}");
    }
}
