//! Bodies, paths and headers of requests, put to a real node: every one gets a precise answer, and the node goes on serving.

use super::bytes::{cases, harm, harmed};
use super::json::{changed, changes};
use super::memory::peak;
use super::one_node::one_node;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quorate::http;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::TcpListener;

/// Method, path and a good body of everything that takes one. Nothing here changes who belongs to the cluster.
fn requests() -> [(reqwest::Method, &'static str, Value); 8] {
    use reqwest::Method;
    let limit = json!({"kind": "bucket", "rate": "10/s", "burst": 5});
    [
        (
            Method::POST,
            "/acquire",
            json!({"key": "a", "limit": "1/6s", "cost": 2, "request_id": "r", "wait": "none", "lead_ms": 1.5}),
        ),
        (
            Method::POST,
            "/acquire",
            json!({"all_of": [{"key": "a", "limit": limit}, {"key": "b", "limit": "1/s"}], "worker": "w"}),
        ),
        (
            Method::POST,
            "/acquire/batch",
            json!({"requests": [{"key": "a", "limit": "5/s"}, {"key": "b", "limit": limit}], "atomic": true}),
        ),
        (Method::POST, "/release", json!({"key": "a", "permit": 1})),
        (Method::POST, "/renew", json!({"key": "a", "permit": 1})),
        (Method::PUT, "/policies/p", json!({"match": "a:*", "limit": limit, "override": ["cost"]})),
        (Method::POST, "/cluster/transfer", json!({"to": 1})),
        (Method::POST, "/cluster/nodes", json!({"id": 1, "peer": "127.0.0.1:1"})),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_body_is_too_strange() {
    let data = tempfile::tempdir().unwrap();
    let clients = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", clients.local_addr().unwrap());
    let node = one_node(data.path(), &url).await;
    let serving =
        tokio::spawn(http::serve(clients, node.handle(), http::Options::default(), std::future::pending::<()>()));
    let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
    let sane = json!({"key": "sane", "limit": {"rate": "1000/s", "max_reserved": 1000}, "max_wait_ms": 10_000});
    let serves = async || {
        for _ in 0..600 {
            let answer = client.post(format!("{url}/acquire")).json(&sane).send().await.unwrap();
            if answer.status() == 200 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the node does not serve");
    };
    serves().await;
    let before = peak();
    let requests = requests();
    let config = cases(2_500);
    let (count, mut runner) = (config.cases, TestRunner::new(config));
    let strategy = (prop::sample::select((0..requests.len()).collect::<Vec<_>>()), harm(), changes(), 0_u8..8);
    let mut statuses: BTreeMap<u16, u64> = BTreeMap::new();
    for _ in 0..count {
        let (which, harms, changes, manner) = strategy.new_tree(&mut runner).unwrap().current();
        let (method, path, good) = &requests[which];
        let mut body = changed(good, &changes).to_string().into_bytes();
        if manner == 0 {
            body = harmed(&body, &harms);
        }
        let path = if manner == 1 && path.starts_with("/policies") {
            format!(
                "/policies/{}",
                percent_encoding::percent_encode(&body[..body.len().min(3_000)], percent_encoding::NON_ALPHANUMERIC)
            )
        } else {
            (*path).to_owned()
        };
        let answer = client.request(method.clone(), format!("{url}{path}")).body(body.clone()).send().await.unwrap();
        let status = answer.status().as_u16();
        *statuses.entry(status).or_default() += 1;
        let text = answer.text().await.unwrap();
        assert!(status != 500, "{method} {path} {:?}: {text}", String::from_utf8_lossy(&body));
        // A head over its bound gets a bare answer of the HTTP library.
        if matches!(status, 414 | 431) {
            continue;
        }
        let answer: Value = serde_json::from_str(&text).expect("every answer is JSON");
        assert!(status < 400 || answer["code"].is_string(), "{status} {text}");
    }
    println!("{count} bodies: {statuses:?}");
    assert!(statuses[&200] > 100 && statuses[&400] > 100, "{statuses:?}");
    serves().await;
    let grown = peak().saturating_sub(before);
    assert!(grown < 512 * 1024 * 1024, "memory grew by {grown} bytes");
    serving.abort();
    node.shutdown(Duration::from_secs(1)).await;
}
