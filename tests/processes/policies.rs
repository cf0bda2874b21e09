//! Stored rules under fire: changed while workers acquire and leaders die.

use super::cluster::{Cluster, patience};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

const WORKERS: usize = 1_000;
const KILLS: usize = 3;
const CHANGES_BETWEEN_KILLS: u64 = 10;

/// What a worker saw of one grant.
struct Seen {
    permit: u64,
    revision: u64,
    rate: String,
}

/// "Policies changed while 1,000 workers acquire and leaders are killed: every answer carries a revision that was in force in
/// log order."
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_a_revision_that_was_in_force() {
    let mut cluster = Cluster::start(3).await;
    let urls = cluster.urls();
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let changes = Arc::new(AtomicU64::new(0));
    let http = cluster.http.clone();
    put(&http, &urls, 1).await;

    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let (http, urls, stop, seen) = (http.clone(), urls.clone(), Arc::clone(&stop), Arc::clone(&seen));
        workers.spawn(async move {
            let mut number = worker;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                // The request brings a limit of its own, which the rule does not let through.
                let ask = json!({"key": format!("job:{}", worker % 7), "limit": "1/1d"});
                let url = format!("{}/acquire", urls[number % 3]);
                let Ok(answer) = http.post(url).json(&ask).send().await else { continue };
                let granted = answer.status() == 200;
                let Ok(body) = answer.json::<Value>().await else { continue };
                if granted {
                    seen.lock().unwrap().push(Seen {
                        permit: body["permit"].as_u64().expect("a number"),
                        revision: body["policy_revision"].as_u64().expect("every answer carries a revision"),
                        rate: body["limit"]["rate"].as_str().expect("and its limit").to_owned(),
                    });
                }
                // As a worker would work on something: a thousand of them are not a load test.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
    }
    let admin = {
        let (http, urls, stop, changes) = (http.clone(), urls.clone(), Arc::clone(&stop), Arc::clone(&changes));
        tokio::spawn(async move {
            let mut in_force = BTreeMap::new();
            let mut number = 1;
            while !stop.load(Ordering::Relaxed) {
                in_force.insert(put(&http, &urls, number).await, rate(number));
                changes.fetch_add(1, Ordering::Relaxed);
                number += 1;
            }
            in_force
        })
    };
    for _ in 0..KILLS {
        let (before, granted) = (changes.load(Ordering::Relaxed), seen.lock().unwrap().len());
        let mut tries = patience();
        while changes.load(Ordering::Relaxed) < before + CHANGES_BETWEEN_KILLS
            || seen.lock().unwrap().len() < granted + 100
        {
            assert!(tries.next().await, "nothing moves:\n{}", cluster.logs());
        }
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        cluster.node(leader).spawn();
        cluster.ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    let in_force = admin.await.unwrap();
    while workers.join_next().await.is_some() {}

    let mut seen = std::mem::take(&mut *seen.lock().unwrap());
    seen.sort_by_key(|one| one.permit);
    let revisions: std::collections::BTreeSet<_> = seen.iter().map(|one| one.revision).collect();
    println!("{} grants under {} of {} revisions, {KILLS} leaders killed", seen.len(), revisions.len(), in_force.len());
    assert!(revisions.len() > KILLS, "the rule really changed under load: {revisions:?}");
    for pair in seen.windows(2) {
        let (earlier, later) = (&pair[0], &pair[1]);
        assert!(earlier.permit < later.permit, "permits are never given twice: {}", later.permit);
        assert!(
            earlier.revision <= later.revision,
            "permit {} has revision {}, and permit {} after it {}",
            earlier.permit,
            earlier.revision,
            later.permit,
            later.revision
        );
    }
    for one in &seen {
        // A change whose answer was lost was made again, and then keeps the revision of the first time.
        if let Some(rate) = in_force.get(&one.revision) {
            assert_eq!(*rate, one.rate, "permit {} under revision {}", one.permit, one.revision);
        }
    }
    cluster.equal_digests().await;
}

/// Another rate each time, all of them high enough that hardly anybody is denied.
fn rate(number: u64) -> String {
    format!("{}/s", 5_000 + number)
}

/// Stores the rule until a node says under which revision.
async fn put(http: &reqwest::Client, urls: &[String], number: u64) -> u64 {
    let policy = json!({"match": "job:*", "limit": {"rate": rate(number), "max_reserved": 1_000}});
    let mut tries = patience();
    loop {
        for url in urls {
            let answer = http.put(format!("{url}/policies/jobs")).json(&policy).send().await;
            if let Ok(answer) = answer
                && answer.status() == 200
                && let Ok(body) = answer.json::<Value>().await
            {
                return body["revision"].as_u64().expect("a number");
            }
        }
        assert!(tries.next().await, "nobody stores the rule");
    }
}
