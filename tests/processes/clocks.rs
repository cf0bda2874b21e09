//! Wall clocks that lie, and monotonic ones with another zero. Needs libfaketime, and the right to time namespaces.

use super::cluster::{Cluster, get, patience, skip};
use super::workers::{Workers, ask, check, micros};
use quorate::clock::Stopwatch;
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

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

/// The words that run a program in a time namespace of its own, up to the offset.
fn unshare() -> Result<Vec<&'static str>, String> {
    let mut why = String::new();
    for words in [vec!["unshare", "-T"], vec!["unshare", "-UrT"]] {
        let mut command = Command::new(words[0]);
        let output = command.args(&words[1..]).args(["--monotonic=1", "--boottime=1", "true"]).output();
        match output {
            Ok(output) if output.status.success() => return Ok(words),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().clone_into(&mut why),
            Err(error) => return Err(format!("unshare is not installed (package util-linux): {error}")),
        }
    }
    Err(why)
}

/// Cluster time as a linearizable look told it, and the true instants before and after; all in microseconds.
#[derive(Debug, Clone, Copy)]
struct Seen {
    before: u64,
    now: u64,
    after: u64,
}

async fn look(cluster: &mut Cluster, began: Stopwatch) -> Seen {
    let us = || u64::try_from(began.elapsed().as_micros()).expect("not that long");
    let mut tries = patience();
    loop {
        let leader = cluster.leader().await;
        let url = format!("{}/keys/watched", cluster.node(leader).url);
        let before = us();
        if let Some(view) = get(&cluster.http, &url).await {
            return Seen { before, now: micros(&view["now_ms"]), after: us() };
        }
        assert!(tries.next().await, "nobody looks:\n{}", cluster.logs());
    }
}

/// "Restart in another time namespace": a leader's next process has a monotonic clock with another zero, ten days ahead or hours
/// behind, and what the last one observed is worth nothing to it. Cluster time never runs ahead of real time over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_another_time_namespace_moves_no_slot() {
    let test = "a_restart_in_another_time_namespace_moves_no_slot";
    let words = match unshare() {
        Ok(words) => words,
        Err(why) if why.contains("installed") => return skip(test, &why),
        // A right cannot be installed.
        Err(why) => {
            println!("SKIPPED {test}: {why}");
            return eprintln!("SKIPPED {test}: {why}");
        }
    };
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let behind: u64 = uptime.split('.').next().unwrap().parse::<u64>().unwrap() / 2;
    let (ahead, behind) = ("864000".to_owned(), format!("-{behind}"));
    let enter = |cluster: &mut Cluster, id: u64, offset: Option<&String>| {
        let shift = offset.map(|by| [format!("--monotonic={by}"), format!("--boottime={by}")]);
        let shift = shift.iter().flatten().map(String::as_str);
        let wrapper: Vec<&str> =
            if offset.is_some() { words.iter().copied().chain(shift).collect() } else { Vec::new() };
        cluster.node(id).run_under(&wrapper);
        cluster.node(id).spawn();
    };

    let mut cluster = Cluster::start(3).await;
    // Idle keys are forgotten, and nobody can look at them: this one is taken for longer than the test lasts.
    let (watched, mut tries) = (json!({"key": "watched", "limit": "1/1h", "request_id": "watched"}), patience());
    let url = format!("{}/acquire", cluster.nodes[0].url);
    while !cluster.http.post(&url).json(&watched).send().await.is_ok_and(|answer| answer.status() == 200) {
        assert!(tries.next().await, "nobody grants:\n{}", cluster.logs());
    }
    let workers = Workers::start(&cluster.urls(), 6);
    let began = Stopwatch::start();
    let mut seen = Vec::new();
    let mut led = Vec::new();
    for offset in [Some(&ahead), None, Some(&behind), None] {
        let leader = cluster.leader().await;
        seen.push(look(&mut cluster, began).await);
        cluster.node(leader).kill();
        seen.push(look(&mut cluster, began).await);
        enter(&mut cluster, leader, offset);
        cluster.ready().await;
        let offsets = cluster.node(leader).proc_file("timens_offsets");
        let shifted = offset.map_or("0", |offset| offset.as_str());
        assert!(offsets.split_whitespace().nth(1) == Some(shifted), "it is in another namespace: {offsets}");
        // It leads again, on its new clock, and grants.
        let mut tries = patience();
        while cluster.leader().await != leader {
            let other = cluster.nodes.iter().find(|node| node.id != leader).expect("three nodes").url.clone();
            let _ = cluster.http.post(format!("{other}/cluster/transfer")).json(&json!({"to": leader})).send().await;
            assert!(tries.next().await, "node {leader} does not lead again:\n{}", cluster.logs());
        }
        seen.push(look(&mut cluster, began).await);
        let (before, mut tries) = (workers.granted(), patience());
        while workers.granted() < before + 50 {
            assert!(tries.next().await, "no load flows:\n{}", cluster.logs());
        }
        seen.push(look(&mut cluster, began).await);
        led.push((leader, shifted.to_owned()));
    }
    // All of them at once, each elsewhere: nobody is left who has seen time pass.
    cluster.nodes.iter_mut().for_each(super::cluster::Node::kill);
    for (id, offset) in [(1, &ahead), (2, &behind), (3, &ahead)] {
        enter(&mut cluster, id, Some(offset));
    }
    cluster.ready().await;
    seen.push(look(&mut cluster, began).await);
    let (before, mut tries) = (workers.granted(), patience());
    while workers.granted() < before + 50 {
        assert!(tries.next().await, "no load flows:\n{}", cluster.logs());
    }
    seen.push(look(&mut cluster, began).await);

    let history = workers.finish().await;
    let grants = history.grants.lock().unwrap().clone();
    check(&grants);
    for (at, earlier) in seen.iter().enumerate() {
        for later in &seen[at + 1..] {
            // Clocks may be 500 ppm fast, and answers are rounded up to a microsecond. Lost time is safe: what the last leader had
            // read and stamped nowhere, the next one does not know, so looks (unlike stamps) may go back.
            let passed = later.after - earlier.before;
            let most = passed + passed / 2_000 + 2;
            assert!(later.now <= earlier.now + most, "time ran ahead: {earlier:?} {later:?}");
        }
    }
    println!("{} grants, {} looks; who led, and where: {led:?}", grants.len(), seen.len());
    cluster.equal_digests().await;
}
