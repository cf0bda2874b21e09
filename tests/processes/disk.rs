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

/// "Slow fsync: clean refusal, recovers": syncs that take seconds are waited for or refused, and nobody restarts anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_stalls_recovers_by_itself() {
    if !Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success()) {
        return skip("a_disk_that_stalls_recovers_by_itself", "strace is not installed or may not trace");
    }
    let mut cluster = Cluster::prepare(1, &[]);
    // Five syncs of three seconds each: longer than a request waits.
    let inject = "inject=fsync,fdatasync:delay_enter=3000000:when=60..64";
    cluster.node(1).run_under(&["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e", inject]);
    cluster.node(1).spawn();
    cluster.ready().await;
    let url = cluster.nodes[0].url.clone();
    let (mut refused, mut granted_after) = (0, 0);
    let mut tries = patience();
    for number in 0.. {
        match ask(&cluster.http, &url, "k", &format!("id-{number}")).await {
            Ok((200, _)) if refused > 0 => granted_after += 1,
            Ok((200, _)) => {}
            Ok((status, body)) => {
                assert!([503, 504].contains(&status), "{status} {body}");
                refused += 1;
            }
            Err(how) => panic!("the node closed a connection: {how}\n{}", cluster.logs()),
        }
        if granted_after >= 20 {
            break;
        }
        assert!(tries.next().await, "{refused} refused, {granted_after} granted after that:\n{}", cluster.logs());
    }
    println!("{refused} refused while syncs took seconds, then granted again");
}
