//! `quorate agent`: what it does when it, the cluster or the demand goes away, and how it answers.

use super::cluster::{Cluster, get, patience};
use super::program::Program;
use super::sites::far;
use super::worker::{Record, millis};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const HELD: &str = "quorate_agent_slots_held";
pub(crate) const GIVEN_BACK: &str = r#"quorate_agent_slots_total{what="given_back"}"#;
const WASTED: &str = r#"quorate_agent_slots_total{what="wasted"}"#;

/// Two requests at once for a slow limit, until the agent holds a slot ahead: the second one came soon enough after the first. On a
/// machine that is busy it may not have; then the same with another key. The key, and how many are held.
pub(crate) async fn until_held(http: &reqwest::Client, agent: &Program, limit: &str) -> (String, f64) {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let acquire = format!("{}/acquire", agent.url);
    let mut tries = patience();
    loop {
        // Never a key that had another limit before.
        let key = format!("slow-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        let body = json!({"key": key, "limit": limit});
        let answers = tokio::join!(post(http, &acquire, &body), post(http, &acquire, &body));
        for (status, said) in [answers.0, answers.1] {
            assert_eq!(status, 200, "{said}");
        }
        // The gauge follows within a tick of the agent.
        for _ in 0..50 {
            let held = agent.metric(http, HELD).await;
            if held > 0.0 {
                return (key, held);
            }
            assert!(tries.next().await, "nothing is ever held");
        }
    }
}

pub(crate) async fn post(http: &reqwest::Client, url: &str, body: &Value) -> (u16, Value) {
    let answer = http.post(url).json(body).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

/// "Crash of an agent only ever wastes slots": the others go on, and nobody starts too close.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_killed() {
    let cluster = Cluster::start(3).await;
    let nodes = far(&cluster).await;
    let mut agents = [Program::agent(&nodes, &[]), Program::agent(&nodes, &[])];
    let limit = json!({"rate": "10/s", "start_window": "150ms", "max_reserved": 40});
    let record = Record::new();
    let mut workers = JoinSet::new();
    for agent in &agents {
        for _ in 0..2 {
            let urls = vec![agent.url.clone()];
            workers.spawn(Arc::clone(&record).work(cluster.http.clone(), urls, "k".to_owned(), limit.clone()));
        }
    }
    let mut tries = patience();
    while record.started() < 8 {
        assert!(tries.next().await, "nothing starts");
    }
    agents[0].kill();
    let (before, refused) = (record.started(), record.refused.load(Ordering::Relaxed));
    while record.started() < before + 8 {
        assert!(tries.next().await, "the other agent does not go on");
    }
    while record.refused.load(Ordering::Relaxed) == refused {
        assert!(tries.next().await, "the workers of the dead one do not notice");
    }
    record.stop.store(true, Ordering::Relaxed);
    workers.join_all().await;
    let closest = record.closest().expect("starts");
    println!("{} starts, one agent killed after {before}: closest {closest:?}", record.started());
    assert!(closest >= Duration::from_millis(100), "{closest:?}");
}

/// "With the cluster out of reach it serves what it holds, then refuses."
#[tokio::test(flavor = "multi_thread")]
async fn without_a_cluster_it_serves_what_it_holds() {
    let mut cluster = Cluster::start(3).await;
    let nodes = far(&cluster).await;
    let agent = Program::agent(&nodes, &["--timeout", "2s", "--max-age", "180s"]);
    let acquire = format!("{}/acquire", agent.url);
    let (key, held) = until_held(&cluster.http, &agent, "1/60s").await;
    let body = json!({"key": key, "limit": "1/60s"});
    for id in 1..=3 {
        cluster.node(id).kill();
    }
    let mut served = 0;
    let refusal = loop {
        let (status, body) = post(&cluster.http, &acquire, &body).await;
        match status {
            200 => served += 1,
            503 => break body,
            other => panic!("{other}: {body}"),
        }
    };
    println!("{held} held when the cluster was gone, {served} served, then: {refusal}");
    assert!((f64::from(served) - held).abs() < 0.1, "it served what it held");
    assert!(["no_quorum", "no_leader"].contains(&refusal["code"].as_str().expect("a code")), "{refusal}");
    let ready = cluster.http.get(format!("{}/readyz", agent.url)).send().await.expect("an answer");
    assert_eq!(ready.status(), 503);
    let alive = cluster.http.get(format!("{}/livez", agent.url)).send().await.expect("an answer");
    assert_eq!(alive.status(), 200);
}

/// "Unused slots are given back when demand falls or on shutdown, so busy sites take what idle ones leave."
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_needed_is_given_back() {
    let cluster = Cluster::start(3).await;
    let nodes = far(&cluster).await;
    let agent = Program::agent(&nodes, &["--max-age", "30s"]);
    // So slow that what is held when the worker stops still lies ahead when that shows.
    let limit = json!({"rate": "1/2s", "max_reserved": 100});
    let record = Record::new();
    let work = Arc::clone(&record).work(cluster.http.clone(), vec![agent.url.clone()], "busy".to_owned(), limit);
    let worker = tokio::spawn(work);
    agent.until(&cluster.http, HELD, 2.0).await;
    record.stop.store(true, Ordering::Relaxed);
    worker.await.expect("a worker");
    let back = agent.until(&cluster.http, GIVEN_BACK, 1.0).await;
    println!("demand fell: {back} given back, {} wasted", agent.metric(&cluster.http, WASTED).await);

    let mut agent = Program::agent(&nodes, &["--max-age", "180s"]);
    let (key, _) = until_held(&cluster.http, &agent, "1/60s").await;
    // An idle key is forgotten, and then nothing of it is reserved.
    let reserved = async || {
        let found = get(&cluster.http, &format!("{}/keys/{key}", cluster.nodes[0].url)).await;
        found.map_or(0, |found| found["reserved"].as_u64().expect("a number"))
    };
    assert_eq!(reserved().await, 2, "one handed out, one held");
    agent.signal("TERM");
    assert!(agent.ended().await.success());
    assert_eq!(reserved().await, 1, "what was handed out stays");
}

/// P5: "A retry with the same `request_id` gets the same permit", with the deadline where it was; and what is not leased is passed on.
#[tokio::test(flavor = "multi_thread")]
async fn it_answers_like_a_node() {
    let cluster = Cluster::start(1).await;
    let agent = Program::agent(&cluster.urls(), &[]);
    let (http, acquire) = (&cluster.http, format!("{}/acquire", agent.url));
    let limit = json!({"rate": "1/60s", "start_window": "1s", "max_reserved": 5});
    let ask =
        async |id: &str, key: &str| post(http, &acquire, &json!({"key": key, "limit": limit, "request_id": id})).await;
    let (_, first) = ask("a", "k").await;
    let (_, second) = ask("b", "k").await;
    let (status, again) = ask("b", "k").await;
    assert_eq!((status, &again["permit"], &again["replayed"]), (200, &second["permit"], &json!(true)), "{again}");
    assert_eq!(again["start_before_ms"], second["start_before_ms"], "the deadline counts from the first send");
    assert!(
        millis(&again["wait_ms"]) <= millis(&second["wait_ms"]) && millis(&second["wait_ms"]) > Duration::from_secs(30)
    );
    assert!(second["permit"].as_u64() > first["permit"].as_u64());
    let (status, reused) = ask("b", "other").await;
    assert_eq!((status, &reused["code"]), (422, &json!("request_id_reused")));

    // Given back, the slot is nobody's: not even the same id has it.
    let release = format!("{}/release", agent.url);
    let (status, released) = post(http, &release, &json!({"key": "k", "permit": second["permit"]})).await;
    assert_eq!((status, &released["released"]), (200, &json!(true)), "{released}");
    let (_, anew) = ask("b", "k").await;
    assert_ne!(anew["permit"], second["permit"]);

    let (status, denied) = post(http, &acquire, &json!({"key": "k", "limit": limit, "wait": "none"})).await;
    assert_eq!((status, &denied["reason"]), (429, &json!("not_free_now")), "{denied}");
    let (status, denied) = post(http, &acquire, &json!({"key": "k", "limit": limit, "max_wait_ms": 10})).await;
    assert_eq!((status, &denied["reason"]), (429, &json!("would_wait_too_long")), "{denied}");

    let before = agent.metric(http, "quorate_agent_passed_total").await;
    let several = json!({"all_of": [{"key": "x", "limit": "1/s"}, {"key": "y", "limit": "1/s"}]});
    let (status, both) = post(http, &acquire, &several).await;
    assert_eq!((status, both["permits"].as_array().map(Vec::len)), (200, Some(2)), "{both}");
    let in_flight = json!({"key": "z", "limit": {"kind": "concurrency", "max": 1}});
    let (status, lease) = post(http, &acquire, &in_flight).await;
    assert_eq!(status, 200, "{lease}");
    assert_eq!(post(http, &acquire, &in_flight).await.0, 429);
    let (status, _) = post(http, &release, &json!({"key": "z", "permit": lease["permit"]})).await;
    assert_eq!(status, 200);
    assert_eq!(post(http, &acquire, &in_flight).await.0, 200, "given back");
    assert!(agent.metric(http, "quorate_agent_passed_total").await >= before + 4.0);

    for (body, status, code) in [
        (json!({"limit": "1/s"}), 400, "bad_request"),
        (json!({"key": "q"}), 404, "no_limit"),
        (json!({"key": "q", "limit": "1/367d"}), 422, "never"),
        (json!({"key": "x".repeat(300), "limit": "1/s"}), 413, "too_large"),
    ] {
        let (found, said) = post(http, &acquire, &body).await;
        assert_eq!((found, &said["code"]), (status, &json!(code)), "{said}");
    }
}
