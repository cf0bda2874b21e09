//! What `quorate proxy` passes on, byte for byte: old versions, odd requests, slow bodies; and what it does not.

use super::cluster::Cluster;
use super::program::Program;
use super::proxy::{patient, raw};
use super::target::Target;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// All that comes back on a connection that the other side closes.
async fn said(proxy: &Program, request: &str) -> String {
    let mut text = String::new();
    raw(proxy, request).await.read_to_string(&mut text).await.expect("an answer");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_every_shape() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let proxy = Program::proxy(&target.url, &cluster.urls(), &["--limit", "1000/s"]);

    let old = said(&proxy, "GET /old HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200") || old.starts_with("HTTP/1.1 200"), "{old}");
    assert!(!old.to_lowercase().contains("transfer-encoding"), "HTTP/1.0 knows no chunks: {old}");
    assert_eq!(target.seen()[0].headers["via"], "1.0 quorate");

    let absolute = "GET http://elsewhere:1/absolute?a=b HTTP/1.1\r\nhost: elsewhere:1\r\nconnection: close\r\n\r\n";
    let absolute = said(&proxy, absolute).await;
    assert!(absolute.starts_with("HTTP/1.1 200"), "{absolute}");
    let seen = target.seen()[1].clone();
    assert_eq!((&*seen.path, seen.headers["x-forwarded-host"].to_str().unwrap()), ("/absolute?a=b", "elsewhere:1"));

    // A body is a body, whatever the method.
    let head = "GET /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let body = said(&proxy, &format!("{head}5\r\nhello\r\n0\r\n\r\n")).await;
    assert!(body.starts_with("HTTP/1.1 200") && body.contains("hello"), "{body}");

    // A path too long for a key is limited all the same.
    let long = format!("{}/{}", proxy.url, "x".repeat(1_000));
    assert_eq!(cluster.http.get(long).send().await.expect("an answer").status(), 200);
    assert_eq!(target.seen().len(), 4);
}

/// What cannot be passed on is refused before it takes a permit: the only one for ten minutes is still there.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_passed_on_takes_no_permit() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let proxy = Program::proxy(&target.url, &cluster.urls(), &["--limit", "1/10m", "--key", "const:one"]);
    let connect = "CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\nconnection: close\r\n\r\n";
    let connect = said(&proxy, connect).await;
    assert!(connect.starts_with("HTTP/1.1 400"), "{connect}");
    assert_eq!(cluster.http.get(&proxy.url).send().await.expect("an answer").status(), 200);
}

/// A full window is waited for like a missing reservation.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_window_is_waited_for() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let limit = r#"{"kind":"window","rate":"2/2s"}"#;
    let more = ["--limit", limit, "--key", "const:window", "--max-wait", "60s"];
    let proxy = Program::proxy(&target.url, &cluster.urls(), &more);
    let (mut all, http) = (JoinSet::new(), patient());
    for _ in 0..5 {
        all.spawn(http.get(&proxy.url).send());
    }
    let answers = all.join_all().await;
    assert!(answers.into_iter().all(|answer| answer.expect("an answer").status() == 200));
}

/// "The upstream took the request and did not begin an answer" is a 504; a client that takes its time is not the upstream's silence.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_upstream_is_silent_when_it_is() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let proxy = Program::proxy(&target.url, &cluster.urls(), &["--limit", "1000/s", "--upstream-timeout", "2s"]);
    let silent = cluster.http.get(format!("{}/silent", proxy.url)).send().await.expect("an answer");
    assert_eq!(silent.status(), 504);
    assert_eq!(silent.json::<Value>().await.expect("a problem")["code"], "upstream_timeout");

    let head = "POST /whole HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\nconnection: close\r\n\r\nhello";
    let mut stream = raw(&proxy, head).await;
    // Longer than the upstream may be silent; it has nothing to say yet.
    tokio::time::sleep(Duration::from_secs(3)).await;
    stream.write_all(b"world").await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("helloworld"), "{text}");
}
