//! `quorate proxy` between real clients, a real cluster and a real target.

use super::cluster::{Cluster, get, patience};
use super::program::{Program, sample};
use super::target::Target;
use quorate::chaos::free_port;
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Nobody listens there.
fn nowhere() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

/// For requests that are held for long.
pub(crate) fn patient() -> reqwest::Client {
    reqwest::Client::builder().timeout(Duration::from_secs(60)).build().expect("a client")
}

/// How many permits of a key lie ahead. An idle key is forgotten, and then there are none.
async fn reserved(cluster: &Cluster, key: &str) -> u64 {
    let found = get(&cluster.http, &format!("{}/keys/{key}", cluster.nodes[0].url)).await;
    found.map_or(0, |found| found["reserved"].as_u64().expect("a number"))
}

pub(crate) async fn until_reserved(cluster: &Cluster, key: &str, wanted: u64) {
    let mut tries = patience();
    loop {
        let found = reserved(cluster, key).await;
        if found == wanted {
            return;
        }
        assert!(tries.next().await, "{found} reserved and not {wanted}");
    }
}

/// A raw request whose connection the test has in hand.
pub(crate) async fn raw(proxy: &Program, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(proxy.url.trim_start_matches("http://")).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

/// P2: "two workers that obey `start_after`/`start_before` never *start* closer than the interval in real time": here two proxies, one
/// key, one target that looks at its own clock.
#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_keep_the_distance_at_the_target() {
    let cluster = Cluster::start(3).await;
    let target = Target::start().await;
    // A slot a second; the rest of it, 900 ms, is for a machine that stands still between a start and its arrival.
    let limit = r#"{"rate":"10/s","start_window":"900ms","max_reserved":100}"#;
    let more = ["--key", "const:api", "--limit", limit, "--max-wait", "60s"];
    let proxies = [(); 2].map(|()| Program::proxy(&target.url, &cluster.urls(), &more));
    let (mut requests, http) = (JoinSet::new(), patient());
    for number in 0..8 {
        let (http, url) = (http.clone(), format!("{}/item/{number}", proxies[number % 2].url));
        requests.spawn(async move { http.get(url).send().await.expect("an answer").status().as_u16() });
    }
    let statuses = requests.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let closest = target.closest().expect("arrivals");
    println!("8 requests through two proxies: closest arrivals {closest:?}, the interval is 100 ms");
    assert_eq!(target.seen().len(), 8);
    assert!(closest >= Duration::from_millis(100), "{closest:?}");
    for proxy in &proxies {
        let page = proxy.metrics(&cluster.http).await;
        for name in ["quorate_proxy_held_seconds_count", "quorate_proxy_overhead_seconds_count"] {
            assert!((sample(&page, name) - 4.0).abs() < 0.1, "{name}\n{page}");
        }
        let (held, overhead) =
            (sample(&page, "quorate_proxy_held_seconds_sum"), sample(&page, "quorate_proxy_overhead_seconds_sum"));
        println!("held {held:.3} s in all, of that {overhead:.3} s overhead");
        // Four slots of a proxy lie a second apart at least: six seconds in all, and that is not its overhead.
        assert!(held - overhead >= 5.0, "{overhead} of {held}");
        assert!((sample(&page, r#"quorate_proxy_requests_total{outcome="forwarded"}"#) - 4.0).abs() < 0.1, "{page}");
        assert!(page.contains("quorate_proxy_waiting 0"), "{page}");
    }
}

/// Reads a chunked answer as it comes.
#[derive(Default)]
struct Chunked {
    head: Option<String>,
    /// What is not understood yet.
    rest: Vec<u8>,
    /// Bytes of the current chunk that are still to come.
    left: usize,
    ended: bool,
}

impl Chunked {
    /// Puts what these bytes bring of the body at the end of `body`.
    fn read(&mut self, bytes: &[u8], body: &mut Vec<u8>) {
        self.rest.extend_from_slice(bytes);
        loop {
            if self.left > 0 {
                let some = self.left.min(self.rest.len());
                body.extend(self.rest.drain(..some));
                self.left -= some;
            }
            let mark: &[u8] = if self.head.is_none() { b"\r\n\r\n" } else { b"\r\n" };
            let Some(at) = self.rest.windows(mark.len()).position(|window| window == mark) else { return };
            if self.left > 0 {
                return;
            }
            let line = self.rest.drain(..at + mark.len()).collect();
            let line = String::from_utf8(line).expect("text");
            if self.head.is_none() {
                self.head = Some(line);
            } else if !line.trim().is_empty() {
                self.left = usize::from_str_radix(line.trim(), 16).expect("the size of a chunk");
                self.ended |= self.left == 0;
            }
        }
    }
}

/// "Forwards streaming bodies": 128 MiB there and back, one piece at a time, each read before the next is sent.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_go_through_as_they_come() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 128;
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let proxy = Program::proxy(&target.url, &cluster.urls(), &["--limit", "1000/s"]);
    let head = "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close, x-mine\r\nx-mine: 1\r\n\
                x-kept: 2\r\n\r\n";
    let mut stream = raw(&proxy, head).await;
    let piece: Vec<u8> = (0..PIECE).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let framed = [format!("{PIECE:x}\r\n").as_bytes(), &piece, b"\r\n"].concat();
    let mut back = Chunked::default();
    let mut buffer = vec![0; 256 * 1_024];
    let mut body = Vec::new();
    for sent in 1..=PIECES {
        stream.write_all(&framed).await.expect("sent");
        body.clear();
        while body.len() < PIECE {
            let read = stream.read(&mut buffer).await.expect("an answer");
            assert!(read > 0, "it broke off at piece {sent}");
            back.read(&buffer[..read], &mut body);
        }
        assert!(body == piece, "piece {sent} came back as another one");
    }
    stream.write_all(b"0\r\n\r\n").await.expect("sent");
    let mut end = Vec::new();
    stream.read_to_end(&mut end).await.expect("the rest");
    body.clear();
    back.read(&end, &mut body);
    assert!(body.is_empty() && back.ended, "the whole body came back, and nothing else");
    let head = back.head.expect("a head").to_lowercase();
    assert!(head.starts_with("http/1.1 200") && head.contains("x-target: yes") && head.contains("via: 1.1 quorate"));
    assert!(!head.contains("x-private"), "what the target said to the proxy alone: {head}");
    let seen = &target.seen()[0].headers;
    assert!(seen.contains_key("x-kept") && !seen.contains_key("x-mine"), "{seen:?}");
    assert_eq!(seen["x-forwarded-host"], "x");
    let peak = proxy.peak_memory_bytes();
    println!("{PIECES} MiB there and back: the proxy had at most {} MiB in memory", peak >> 20);
    assert!(peak < (PIECES as u64 * 3 / 4) << 20, "{peak} bytes: far less than one whole body");
}

/// "Gives the permit back when the client goes away": with and without a body that nobody has read.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_goes_away_gives_back() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let more = ["--key", "header:x-key", "--limit", "1/10m", "--max-wait", "2h"];
    let mut proxy = Program::proxy(&target.url, &cluster.urls(), &more);
    let first = cluster.http.get(&proxy.url).header("x-key", "k").send().await.expect("an answer");
    assert_eq!(first.status(), 200);
    let held = raw(&proxy, "GET /held HTTP/1.1\r\nhost: x\r\nx-key: k\r\n\r\n").await;
    until_reserved(&cluster, "k", 1).await;
    let mut body = raw(&proxy, "POST /held HTTP/1.1\r\nhost: x\r\nx-key: k\r\ncontent-length: 1000000\r\n\r\n").await;
    body.write_all(&vec![7; 100_000]).await.expect("sent");
    until_reserved(&cluster, "k", 2).await;
    assert!((proxy.metric(&cluster.http, "quorate_proxy_waiting").await - 2.0).abs() < 0.1);
    drop(held);
    until_reserved(&cluster, "k", 1).await;
    drop(body);
    until_reserved(&cluster, "k", 0).await;
    proxy.until(&cluster.http, r#"quorate_proxy_requests_total{outcome="client_gone"}"#, 2.0).await;

    // Told to stop, it sends away who is held, gives back, and ends by itself.
    let held = tokio::spawn(patient().get(&proxy.url).header("x-key", "k").send());
    until_reserved(&cluster, "k", 1).await;
    proxy.signal("TERM");
    let answer = held.await.expect("a task").expect("an answer");
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await.expect("a problem")["code"], "shutting_down");
    assert!(proxy.ended().await.success());
    until_reserved(&cluster, "k", 0).await;
    assert_eq!(target.seen().len(), 1, "nothing that was held went through");
}

/// "Bounds its waiting requests"; a wait that is too long is told at once; without an upstream 502, without a cluster 503.
#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_says_what_it_is() {
    let cluster = Cluster::start(1).await;
    let target = Target::start().await;
    let http = &cluster.http;
    let problem = async |answer: reqwest::Response| {
        let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("a problem"), retry_after)
    };

    let full =
        Program::proxy(&target.url, &cluster.urls(), &["--limit", "1/10m", "--max-wait", "1h", "--max-waiting", "1"]);
    assert_eq!(http.get(format!("{}/a", full.url)).send().await.expect("an answer").status(), 200);
    let _held = raw(&full, "GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await;
    full.until(http, "quorate_proxy_waiting", 1.0).await;
    let (status, said, retry_after) =
        problem(http.get(format!("{}/b", full.url)).send().await.expect("an answer")).await;
    assert_eq!((status, &said["code"], retry_after.as_deref()), (503, &"overloaded".into(), Some("1")), "{said}");

    let hasty = Program::proxy(&target.url, &cluster.urls(), &["--limit", "1/10m", "--max-wait", "5s"]);
    assert_eq!(http.get(format!("{}/c", hasty.url)).send().await.expect("an answer").status(), 200);
    let (status, said, retry_after) =
        problem(http.get(format!("{}/c", hasty.url)).send().await.expect("an answer")).await;
    assert_eq!((status, &said["code"]), (429, &"denied".into()), "{said}");
    let seconds: u64 = retry_after.expect("a time to come back").parse().expect("seconds");
    assert!((1..=600).contains(&seconds), "{seconds}");

    // A limit with one reservation: the third stands in line, and goes when it is its turn.
    let limit = r#"{"rate":"2/s","max_reserved":1}"#;
    let line = Program::proxy(&target.url, &cluster.urls(), &["--limit", limit, "--key", "const:line"]);
    let mut all = JoinSet::new();
    for _ in 0..5 {
        all.spawn(http.get(&line.url).send());
    }
    let answers = all.join_all().await;
    assert!(answers.into_iter().all(|answer| answer.expect("an answer").status() == 200));

    let lost = Program::proxy(&nowhere(), &cluster.urls(), &["--limit", "100/s"]);
    let (status, said, _) = problem(http.get(format!("{}/d", lost.url)).send().await.expect("an answer")).await;
    assert_eq!((status, &said["code"]), (502, &"upstream_unreachable".into()), "{said}");

    let alone = Program::proxy(&target.url, &[nowhere()], &["--limit", "100/s"]);
    let before = target.seen().len();
    let (status, said, _) = problem(http.get(format!("{}/e", alone.url)).send().await.expect("an answer")).await;
    assert_eq!((status, &said["code"]), (503, &"no_leader".into()), "{said}");
    assert_eq!(target.seen().len(), before, "it fails closed");
    assert!(target.seen().iter().all(|seen| seen.path != "/e"));
}
