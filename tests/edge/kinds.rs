//! `quorate agent` with limits of every kind that has slots, with a real client, and with other sites.

use super::agent::{GIVEN_BACK, post, until_held};
use super::cluster::{Cluster, patience};
use super::program::{Program, sample};
use super::sites::far;
use super::slow::way;
use super::worker::{Record, millis};
use quorate::client::{Ask, Client, Lead, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// A real client says how far ahead its slots have to lie (`lead_ms`). Every slot that is reserved for it is used by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_lead() {
    const TURNS: u32 = 6;
    let cluster = Cluster::start(3).await;
    let nodes = far(&cluster).await;
    let agent = Program::agent(&nodes, &["--max-block", "0"]);
    let lead = Lead::Fixed(Duration::from_millis(150));
    let client = Client::with(&Options { lead, timeout: Duration::from_secs(30), ..Options::new([&agent.url]) })
        .expect("a client");
    let kinds = [
        ("spacing", json!("10/s")),
        ("windowed", json!({"rate": "10/s", "start_window": "800ms"})),
        ("bucket", json!({"kind": "bucket", "rate": "10/s", "burst": 3, "max_reserved": 10})),
        ("ramp", json!({"rate": "10/s", "ramp": {"from": "5/s", "over": "1s"}})),
        ("stored", Value::Null),
    ];
    let stored = json!({"match": "stored", "limit": {"rate": "10/s", "max_reserved": 20}});
    let put = cluster.http.put(format!("{}/policies/stored", cluster.nodes[0].url)).json(&stored).send().await;
    assert!(put.expect("an answer").status().is_success());
    let mut before = 0.0;
    for (key, limit) in kinds {
        for turn in 0..TURNS {
            let mut ask = Ask::new(key);
            if !limit.is_null() {
                ask = ask.limit(serde_json::from_value::<quorate::api::Limit>(limit.clone()).expect("a limit"));
            }
            let pass = client.acquire(&ask).await;
            assert!(pass.is_ok(), "{key}, turn {turn}: {pass:?}");
        }
        let page = agent.metrics(&cluster.http).await;
        let reserved = sample(&page, r#"quorate_agent_slots_total{what="reserved"}"#);
        println!("{key}: {} slots reserved for {TURNS} starts", reserved - before);
        // A machine that stands still may lose one now and then; slots that are never good enough would cost several each.
        assert!(reserved - before < 2.0 * f64::from(TURNS), "{page}");
        before = reserved;
    }
}

/// "So busy sites take what idle ones leave": the slot that one agent held and gave back goes to a worker of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_site_takes_what_an_idle_one_gave_back() {
    let cluster = Cluster::start(3).await;
    let nodes = far(&cluster).await;
    let (mut idle, busy) = (Program::agent(&nodes, &["--max-age", "180s"]), Program::agent(&nodes, &[]));
    let (key, _) = until_held(&cluster.http, &idle, "1/60s").await;
    idle.signal("TERM");
    assert!(idle.ended().await.success());
    let body = json!({"key": key, "limit": "1/60s"});
    let (status, said) = post(&cluster.http, &format!("{}/acquire", busy.url), &body).await;
    assert_eq!(status, 200, "{said}");
    // Two were handed out, the second for a minute ahead; the third was held. Had it stayed so, this one would be the fourth.
    let wait = millis(&said["wait_ms"]);
    assert!(wait <= Duration::from_secs(120), "{wait:?}");

    // The same without an end: an agent that nobody asks gives back by itself.
    let idle = Program::agent(&nodes, &["--max-age", "180s"]);
    let (key, _) = until_held(&cluster.http, &idle, "1/5s").await;
    idle.until(&cluster.http, GIVEN_BACK, 1.0).await;
    let body = json!({"key": key, "limit": "1/5s"});
    let (status, said) = post(&cluster.http, &format!("{}/acquire", busy.url), &body).await;
    assert_eq!(status, 200, "{said}");
    assert!(millis(&said["wait_ms"]) <= Duration::from_secs(5), "{said}");
}

/// Workers behind a way that is longer than the window: their permits are dead when they come. They know it by the two instants,
/// discard them, and nobody starts too close to the workers that are near.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_always_late_never_starts() {
    let cluster = Cluster::start(1).await;
    let agent = Program::agent(&cluster.urls(), &[]);
    let late = way(&agent.url, Duration::from_millis(250)).await;
    let limit = json!({"rate": "10/s", "start_window": "400ms", "max_reserved": 40});
    let (near, far) = (Record::new(), Record::new());
    let mut workers = JoinSet::new();
    for (record, url) in [(&near, &agent.url), (&far, &late)] {
        let urls = vec![url.clone()];
        workers.spawn(Arc::clone(record).work(cluster.http.clone(), urls, "k".to_owned(), limit.clone()));
    }
    let mut tries = patience();
    while near.started() < 8 || far.discarded.load(Ordering::Relaxed) < 3 {
        assert!(tries.next().await, "{} starts, {} discarded", near.started(), far.discarded.load(Ordering::Relaxed));
    }
    near.stop.store(true, Ordering::Relaxed);
    far.stop.store(true, Ordering::Relaxed);
    workers.join_all().await;
    let closest = near.closest().expect("starts");
    let discarded = far.discarded.load(Ordering::Relaxed);
    println!("{} starts, closest {closest:?}; of the late worker {discarded} discarded", near.started());
    assert!(closest >= Duration::from_millis(100), "{closest:?}");
    assert_eq!(far.started(), 0, "500 ms on the way, and 400 ms to start in");
}
