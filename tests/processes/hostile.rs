//! Bad input: a precise answer, nothing consumed, the node serves on.

use super::cluster::{Cluster, patience};
use super::workers::ask;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// What is sent, the expected status and code, and a word the detail must have.
fn bad_bodies() -> Vec<(String, u16, &'static str, &'static str)> {
    let body = |text: &str| text.to_owned();
    vec![
        (body("not json"), 400, "bad_request", "line 1"),
        (body(""), 400, "bad_request", ""),
        (body("[]"), 400, "bad_request", ""),
        (body(r#"{"key":"h","limit":"1/s"} trailing"#), 400, "bad_request", ""),
        (body(r#"{"key":"h","limit":"1/s","colour":"red"}"#), 400, "bad_request", "colour"),
        (body(r#"{"key":"h","limit":{"rate":"1/s","burst":3}}"#), 400, "bad_request", "burst"),
        (body(r#"{"limit":"1/s"}"#), 400, "bad_request", "key"),
        (body(r#"{"key":"","limit":"1/s"}"#), 400, "bad_request", "key"),
        (body(r#"{"key":7,"limit":"1/s"}"#), 400, "bad_request", "key"),
        (format!(r#"{{"key":"{}","limit":"1/s"}}"#, "k".repeat(10_000)), 413, "too_large", "256"),
        (body(r#"{"key":"h","limit":"1/s","cost":0}"#), 400, "bad_request", "cost"),
        (body(r#"{"key":"h","limit":"1/s","cost":-1}"#), 400, "bad_request", "cost"),
        (body(r#"{"key":"h","limit":"1/s","cost":9223372036854775808}"#), 422, "never", "cost"),
        (body(r#"{"key":"h","limit":"-1/s"}"#), 400, "bad_request", "limit"),
        (body(r#"{"key":"h","limit":"0/s"}"#), 422, "never", "never grants"),
        (body(r#"{"key":"h","limit":"1/0s"}"#), 422, "never", ""),
        (body(r#"{"key":"h","limit":"999999999999999999999/s"}"#), 422, "never", ""),
        (body(r#"{"key":"h","limit":"1/99999999d"}"#), 422, "never", ""),
        (body(r#"{"key":"h","limit":"NaN/s"}"#), 400, "bad_request", "limit"),
        (body(r#"{"key":"h","limit":"1/s","max_wait_ms":NaN}"#), 400, "bad_request", ""),
        (body(r#"{"key":"h","limit":"1/s","max_wait_ms":-5}"#), 400, "bad_request", "max_wait_ms"),
        (body(r#"{"key":"h","limit":"1/s","max_wait_ms":1e300}"#), 400, "bad_request", "max_wait_ms"),
        (format!(r#"{{"key":"h","limit":{}1{}}}"#, "[".repeat(20_000), "]".repeat(20_000)), 400, "bad_request", ""),
        (
            format!(r#"{{"key":"h","limit":{}"x"{}}}"#, r#"{"rate":"#.repeat(500), "}".repeat(500)),
            400,
            "bad_request",
            "",
        ),
        (body(r#"{"key":"h"}"#), 404, "no_limit", "h"),
    ]
}

/// P7: "everything has a limit and a clear error past it", for "hostile clients".
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_gets_a_precise_answer_and_consumes_nothing() {
    let mut cluster = Cluster::prepare(3, &["--header-timeout", "300ms", "--body-timeout", "300ms"]);
    for node in &mut cluster.nodes {
        node.spawn();
    }
    cluster.ready().await;
    let mut permits = Vec::new();
    for node in &cluster.nodes {
        let (status, before) = ask(&cluster.http, &node.url, "h", &format!("before-{}", node.id)).await.unwrap();
        assert_eq!(status, 200, "{before}");
        for (body, status, code, word) in bad_bodies() {
            let shown: String = body.chars().take(80).collect();
            let answer = cluster.http.post(format!("{}/acquire", node.url)).body(body).send().await.unwrap();
            assert_eq!(answer.headers()["content-type"], "application/problem+json", "{shown}");
            let got = answer.status().as_u16();
            let problem: Value = answer.json().await.unwrap();
            assert_eq!((got, problem["code"].as_str()), (status, Some(code)), "{shown}: {problem}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(!detail.is_empty() && detail.contains(word), "{shown}: {detail}");
            assert_eq!(problem["status"], status, "{problem}");
        }
        huge_body(&node.url);
        for unfinished in
            ["POST /acquire HTTP/1.1\r\nHost: x\r\n", "POST /acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"]
        {
            closes(&node.url, unfinished);
        }
        let (status, after) = ask(&cluster.http, &node.url, "h", &format!("after-{}", node.id)).await.unwrap();
        assert_eq!(status, 200, "it serves on: {after}");
        permits.extend([before["permit"].as_u64().unwrap(), after["permit"].as_u64().unwrap()]);
    }
    assert_eq!(permits, [1, 2, 3, 4, 5, 6], "nothing else was consumed");
    cluster.equal_digests().await;
}

/// Ten megabytes are refused long before they are sent.
fn huge_body(url: &str) {
    let mut stream = connect(url);
    let head = "POST /acquire HTTP/1.1\r\nHost: x\r\nContent-Length: 10485760\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = vec![b' '; 64 * 1024];
    // The node may close before it has seen everything: that is the point.
    for _ in 0..160 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413") && answer.contains("too_large"), "{answer}");
    // A client that waits for the answer sees it.
    let mut stream = connect(url);
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 413");
}

/// A client that does not finish what it began is not waited for.
fn closes(url: &str, unfinished: &str) {
    let mut stream = connect(url);
    stream.write_all(unfinished.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the node ends the connection");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("in time"), "{unfinished:?}: {answer}");
}

fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// More connections than the node takes: the one too many is told so, and the others go on.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_connections_are_turned_away() {
    let mut cluster = Cluster::prepare(1, &["--connections-max", "20"]);
    cluster.node(1).spawn();
    cluster.ready().await;
    let url = cluster.nodes[0].url.clone();
    let held: Vec<TcpStream> = (0..40).map(|_| connect(&url)).collect();
    let mut turned_away = connect(&url);
    turned_away.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = turned_away.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503") && answer.contains("overloaded"), "{answer}");
    drop(held);
    let mut tries = patience();
    while !cluster.http.get(format!("{url}/livez")).send().await.is_ok_and(|answer| answer.status() == 200) {
        assert!(tries.next().await, "places are not given back:\n{}", cluster.logs());
    }
}
