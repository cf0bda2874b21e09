//! A flood of keys: memory is bounded, whoever was there first goes on, and afterwards memory comes back.

use super::cluster::{Cluster, get, patience};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Distinct keys, how many of them the cluster may hold, and how long they take to be idle.
/// `FLOOD_KEYS=5000000 FLOOD_KEYS_MAX=1000000 FLOOD_IDLE_SECS=600` for the real thing.
fn size(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// The bound that docs/GUARANTEES.md states for one node: so much for each key, and so much for everything else that a flood
/// fills on its way (the log's cache, requests in flight, what the allocator keeps).
const BYTES_PER_KEY_MAX: u64 = 1_024;
const BYTES_BESIDE_MAX: u64 = 128 * 1024 * 1024;

/// "A key flood […]: memory stays under a documented bound, existing keys keep working, new ones get `too_many_keys`, and after
/// they idle out memory comes back."
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_keys_is_bounded_and_passes() {
    let (keys, keys_max) = (size("FLOOD_KEYS", 60_000), size("FLOOD_KEYS_MAX", 20_000));
    let mut cluster = Cluster::prepare(3, &["--keys-max", &keys_max.to_string(), "--history", "false"]);
    for node in &mut cluster.nodes {
        node.spawn();
    }
    cluster.ready().await;
    let leader = cluster.leader().await;
    let url = cluster.node(leader).url.clone();
    let memory = |cluster: &Cluster| cluster.nodes.iter().map(super::cluster::Node::memory_bytes).max().unwrap_or(0);
    let before = memory(&cluster);

    // Long enough that none of the first ones is idle before the last ones come.
    let limit = json!({"rate": format!("1/{}s", size("FLOOD_IDLE_SECS", 20)), "max_reserved": 100});
    let mut codes: BTreeMap<String, u64> = BTreeMap::new();
    let mut peak = before;
    for start in (0..keys).step_by(1_000) {
        let requests: Vec<_> = (start..start + 1_000)
            .map(|number| json!({"key": format!("flood/{number:015}"), "limit": limit}))
            .collect();
        let body = json!({"requests": requests});
        let mut tries = patience();
        let answer: Value = loop {
            if let Ok(answer) = cluster.http.post(format!("{url}/acquire/batch")).json(&body).send().await
                && answer.status() == 200
            {
                break answer.json().await.expect("JSON");
            }
            assert!(tries.next().await, "the leader does not take the flood:\n{}", cluster.logs());
        };
        for result in answer["results"].as_array().expect("results") {
            let code = result["code"].as_str().unwrap_or("granted");
            *codes.entry(code.to_owned()).or_default() += 1;
        }
        peak = peak.max(memory(&cluster));
    }
    let per_key = peak.saturating_sub(before) / keys_max;
    println!("{keys} keys, room for {keys_max}: {codes:?}; {before} bytes before, {peak} at most: {per_key} a key");
    assert_eq!(codes.keys().map(String::as_str).collect::<Vec<_>>(), ["granted", "too_many_keys"], "{codes:?}");
    assert!(codes["granted"] <= keys_max + 1_000 && codes["granted"] >= keys_max, "{codes:?}");
    let taken = peak.saturating_sub(before);
    assert!(taken < BYTES_BESIDE_MAX + keys_max * BYTES_PER_KEY_MAX, "{taken} bytes");

    // Whoever was there goes on as if nothing had happened.
    let known = json!({"key": "flood/000000000000000", "limit": limit});
    for node in &cluster.nodes {
        let answer = cluster.http.post(format!("{}/acquire", node.url)).json(&known).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    }
    let new = json!({"key": "one more", "limit": limit});
    let answer = cluster.http.post(format!("{url}/acquire")).json(&new).send().await.unwrap();
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await.unwrap()["code"], json!("too_many_keys"));

    // After a while they are idle, and leave by themselves.
    let mut tries = super::cluster::patience_of(std::time::Duration::from_secs(1_200));
    loop {
        let digest = get(&cluster.http, &format!("{url}/cluster/digest")).await;
        if digest.is_some_and(|digest| digest["keys"].as_u64() <= Some(1)) {
            break;
        }
        assert!(tries.next().await, "idle keys stay:\n{}", cluster.logs());
    }
    let answer = cluster.http.post(format!("{url}/acquire")).json(&new).send().await.unwrap();
    assert_eq!(answer.status(), 200, "there is room again");
    let after = memory(&cluster);
    println!("{after} bytes after they have left: {} % of what the flood took is back", {
        100 * peak.saturating_sub(after) / taken.max(1)
    });
    cluster.equal_digests().await;
}
