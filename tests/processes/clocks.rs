//! Wall clocks that lie. Needs libfaketime.

use super::cluster::{Cluster, skip};
use super::workers::{ask, micros};
use std::path::PathBuf;

fn libfaketime() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    libraries.map(|dir| dir.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// "No wall clock takes part in any decision": one node's is stepped by hours, forwards and backwards, and nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_stepped_wall_clock_changes_nothing() {
    let Some(library) = libfaketime() else {
        return skip("a_stepped_wall_clock_changes_nothing", "libfaketime is not installed (package faketime)");
    };
    let mut cluster = Cluster::prepare(3, &[]);
    let offset = cluster.dir.path().join("offset");
    std::fs::write(&offset, "+0").unwrap();
    for node in &mut cluster.nodes {
        // Every node reads the same file, so whoever leads is among those whose clock is stepped.
        node.env("LD_PRELOAD", &library.display().to_string());
        node.env("FAKETIME_TIMESTAMP_FILE", &offset.display().to_string());
        node.env("FAKETIME_NO_CACHE", "1");
        node.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        node.spawn();
    }
    cluster.ready().await;
    let leader = cluster.leader().await;
    let url = cluster.node(leader).url.clone();
    let mut dates = Vec::new();
    let mut slots = Vec::new();
    for (round, step) in ["+0", "+5h", "-7h", "+300d", "+0"].into_iter().enumerate() {
        std::fs::write(&offset, step).unwrap();
        for number in 0..5 {
            let (status, body) = ask(&cluster.http, &url, "k", &format!("step-{round}-{number}")).await.unwrap();
            assert_eq!(status, 200, "{body}");
            slots.push(micros(&body["slot_ms"]));
        }
        let answer = cluster.http.get(format!("{url}/livez")).send().await.unwrap();
        dates.push(answer.headers()["date"].to_str().unwrap().to_owned());
    }
    println!("wall clock of the leader: {dates:?}");
    // The server only ever moves its `date` forwards, so a step back does not show there.
    assert!(dates.iter().collect::<std::collections::BTreeSet<_>>().len() >= 3, "it was stepped: {dates:?}");
    assert!(slots.windows(2).all(|pair| pair[1] > pair[0]), "time never goes back: {slots:?}");
    let passed = slots[slots.len() - 1] - slots[0];
    assert!(passed < 3_600_000_000, "no hour has passed in cluster time: {passed} µs");
    assert_eq!(cluster.leader().await, leader, "and nobody lost a leader over it");
    cluster.equal_digests().await;
}
