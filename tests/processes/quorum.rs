//! Without a majority nobody is granted anything.

use super::cluster::{Cluster, patience};
use super::workers::ask;
use quorate::clock::Stopwatch;
use serde_json::{Value, json};

/// P6: "Without a quorum nobody is granted anything; the answer says so, quickly."
#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_refuses_and_two_serve_again_by_themselves() {
    let mut cluster = Cluster::start(3).await;
    let (status, first) = ask(&cluster.http, &cluster.nodes[0].url, "k", "before").await.unwrap();
    assert_eq!(status, 200, "{first}");
    for survivor in [0, 1] {
        for (index, node) in cluster.nodes.iter_mut().enumerate() {
            if index != survivor {
                node.kill();
            }
        }
        let url = cluster.nodes[survivor].url.clone();
        // What was asked right after the kill may still be unknown; soon the node is certain that nothing happens.
        let mut tries = patience();
        let mut asked = 0;
        loop {
            asked += 1;
            let watch = Stopwatch::start();
            let (status, body) = ask(&cluster.http, &url, "k", &format!("alone-{survivor}-{asked}")).await.unwrap();
            println!("survivor {}: {status} {} after {:?}", survivor + 1, body["code"], watch.elapsed());
            assert_ne!(status, 200, "granted without a majority: {body}");
            if status == 503 {
                assert!(["no_quorum", "no_leader"].contains(&body["code"].as_str().unwrap()), "{body}");
                assert!(body["retry_after_ms"].as_f64().unwrap() > 0.0, "{body}");
                break;
            }
            assert_eq!(status, 504, "{body}");
            assert!(tries.next().await);
        }
        let mut tries = patience();
        while cluster.http.get(format!("{url}/readyz")).send().await.unwrap().status() != 503 {
            assert!(tries.next().await, "alone and still ready");
        }
        assert_eq!(cluster.http.get(format!("{url}/livez")).send().await.unwrap().status(), 200, "alive, if not ready");
        for (index, node) in cluster.nodes.iter_mut().enumerate() {
            if index != survivor {
                node.spawn();
            }
        }
        let mut tries = patience();
        loop {
            if let Ok((200, body)) = ask(&cluster.http, &url, "k", &format!("after-{survivor}")).await {
                assert!(body["permit"].as_u64() > first["permit"].as_u64());
                break;
            }
            assert!(tries.next().await, "it does not serve again:\n{}", cluster.logs());
        }
        cluster.ready().await;
    }
    cluster.equal_digests().await;
}

/// "Nodes that share the same `members` in their first config form the cluster by themselves, in any start order."
#[tokio::test(flavor = "multi_thread")]
async fn any_start_order_forms_one_cluster() {
    let mut cluster = Cluster::prepare(3, &[]);
    cluster.node(3).spawn();
    let mut tries = patience();
    while cluster.http.get(format!("{}/livez", cluster.nodes[2].url)).send().await.is_err() {
        assert!(tries.next().await, "node 3 does not start:\n{}", cluster.logs());
    }
    let ready = cluster.http.get(format!("{}/readyz", cluster.nodes[2].url)).send().await.unwrap();
    assert_eq!(ready.status(), 503, "one of three is not ready");
    cluster.node(1).spawn();
    cluster.ready().await;
    let (status, body) = ask(&cluster.http, &cluster.nodes[2].url, "k", "two").await.unwrap();
    assert_eq!(status, 200, "two of three serve: {body}");
    cluster.node(2).spawn();
    cluster.ready().await;
    let (status, body) = ask(&cluster.http, &cluster.nodes[1].url, "k", "two").await.unwrap();
    assert_eq!((status, &body["replayed"]), (200, &serde_json::Value::Bool(true)), "{body}");
    cluster.equal_digests().await;
}

/// P3, P6: who waits on the server is not told that there is no place by a leader that could not ask anybody.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_in_line_is_denied_without_a_majority() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let url = cluster.node(leader).url.clone();
    let followers: Vec<u64> = cluster.nodes.iter().map(|node| node.id).filter(|id| *id != leader).collect();
    for id in &followers {
        cluster.node(*id).signal("STOP");
    }
    let mut tries = patience();
    for number in 0.. {
        let body = json!({
            "key": format!("fresh-{number}"), "limit": "1/s", "wait": "server", "max_wait_ms": 300, "request_id": format!("w{number}"),
        });
        let answer = cluster.http.post(format!("{url}/acquire")).json(&body).send().await.unwrap();
        let status = answer.status().as_u16();
        let said: Value = answer.json().await.unwrap();
        println!("{status} {}", said["code"]);
        assert!([503, 504].contains(&status), "{status} {said}");
        // The cluster may have been asked for the first ones; then it is certain that it was not.
        if status == 503 {
            break;
        }
        assert!(tries.next().await, "never certain:\n{}", cluster.logs());
    }
    for id in &followers {
        cluster.node(*id).signal("CONT");
    }
    cluster.ready().await;
    cluster.equal_digests().await;
}
