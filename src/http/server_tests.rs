//! The listener over real sockets, with a script in place of the node.
//!
//! Tests wait for conditions: an answer, a closed connection, another connection's deadline. No sleep decides an
//! outcome.

use super::options::Options;
use super::server::run;
use super::upstream::Upstream;
use super::upstream::scripted::{Script, granted};
use crate::history::{self, Applied, Audit, Event, History};
use crate::limiter::{Key, Time};
use crate::node::{Readiness, Rules};
use futures::FutureExt;
use futures::future::pending;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const SHORT: Duration = Duration::from_millis(50);
/// What no test may take; a deadline that does not work shows up as this one.
const FOREVER: Duration = Duration::from_secs(30);

const ACQUIRE: &str = r#"{"key":"k","limit":"1/6s"}"#;

struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<()>,
}

impl Server {
    async fn start(script: Script, options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = stopped.map(|_| ());
        let running = tokio::spawn(run(listener, Upstream::Script(Box::new(script)), options, shutdown));
        Self { address, stop: Some(stop), running }
    }

    async fn client(&self) -> Client {
        Client { socket: TcpStream::connect(self.address).await.unwrap(), unread: Vec::new() }
    }

    fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    async fn ended(self) {
        timeout(FOREVER, self.running).await.expect("the server ends").unwrap();
    }
}

struct Client {
    socket: TcpStream,
    unread: Vec<u8>,
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn is_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status, &self.json()["code"]), (status, &json!(code)), "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
    }
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(FOREVER, self.socket.write_all(bytes.as_ref())).await.expect("sending does not hang").unwrap();
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, "").await
    }

    async fn post(&mut self, body: &str) -> Reply {
        self.request("POST", "/acquire", body).await
    }

    async fn request(&mut self, method: &str, path: &str, body: &str) -> Reply {
        self.send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        self.reply().await
    }

    /// The next response, by its content length.
    async fn reply(&mut self) -> Reply {
        let head = self.until(b"\r\n\r\n").await;
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<_, _> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            assert!(self.more().await > 0, "closed in the middle of a body");
        }
        let body = String::from_utf8(self.unread.drain(..length).collect()).unwrap();
        Reply { status, headers, body }
    }

    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                return self.unread.drain(..at + end.len()).collect();
            }
            assert!(self.more().await > 0, "closed after {:?}", String::from_utf8_lossy(&self.unread));
        }
    }

    async fn more(&mut self) -> usize {
        timeout(FOREVER, self.socket.read_buf(&mut self.unread)).await.expect("an answer or an end").unwrap()
    }

    /// Waits until the server has closed the connection without another word.
    async fn closed(&mut self) {
        let read = timeout(FOREVER, self.socket.read_buf(&mut self.unread)).await.expect("the server closes");
        assert!(matches!(read, Ok(0) | Err(_)), "{:?}", String::from_utf8_lossy(&self.unread));
    }
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let script = Script { leader_elsewhere: Some("http://10.0.0.1:7001".to_owned()), ..Script::default() };
    let server = Server::start(script, Options::default()).await;
    let mut client = server.client().await;
    for _ in 0..3 {
        let reply = client.post(ACQUIRE).await;
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.json(),
            json!({"granted": true, "key": "k", "permit": 7, "slot_ms": 1, "wait_ms": 0, "reserved": 0, "limit": "1/6s",
                   "replayed": false})
        );
        assert_eq!(reply.headers["content-type"], "application/json");
        assert_eq!(reply.headers["ratelimit"], "\"spacing\";r=1;t=6");
        assert_eq!(reply.headers["quorate-leader"], "http://10.0.0.1:7001");
    }
    let form = format!(
        "POST /acquire HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         idempotency-key: a\r\ncontent-length: {}\r\n\r\n{ACQUIRE}",
        ACQUIRE.len()
    );
    // What `curl -d` sends, twice in one packet.
    client.send(format!("{form}{form}")).await;
    assert_eq!((client.reply().await.status, client.reply().await.status), (200, 200));
}

#[tokio::test]
async fn every_route_answers_and_everything_else_is_a_problem() {
    let readiness = Readiness { checks: vec![("leader", Err("none known".to_owned()))] };
    let server = Server::start(Script { readiness, ..Script::default() }, Options::default()).await;
    let mut client = server.client().await;
    assert!(client.get("/").await.body.contains("/acquire"));
    assert_eq!(client.get("/livez").await.body, "ok\n");
    assert_eq!(client.get("/livez?verbose").await.body, "[+]ping ok\nlivez check passed\n");
    let reply = client.get("/readyz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "[-]leader failed: none known\nreadyz check failed\n"));
    assert_eq!(client.get("/healthz").await.status, 503);
    assert_eq!(client.get("/cluster").await.json()["leader"], 1);
    assert_eq!(client.get("/openapi.json").await.json()["openapi"], "3.1.0");
    client.get("/metrics").await.is_problem(404, "not_found");
    client.get("/nothing/here").await.is_problem(404, "not_found");
    client.get("/keys/").await.is_problem(404, "not_found");
    client.get("/keys/%FF").await.is_problem(400, "bad_request");
    client.get("/keys/a%00b").await.is_problem(400, "bad_request");
    client.get(&format!("/keys/{}", "x".repeat(257))).await.is_problem(413, "too_large");
    let reply = client.get("/acquire").await;
    reply.is_problem(405, "method_not_allowed");
    assert_eq!(reply.headers["allow"], "POST");
    let reply = client.request("DELETE", "/cluster", "").await;
    reply.is_problem(405, "method_not_allowed");
    assert_eq!(reply.headers["allow"], "GET,HEAD");
}

#[tokio::test]
async fn metrics_are_rendered() {
    let recorder = crate::metric_names::builder().unwrap().build_recorder();
    let metrics = Some(recorder.handle());
    metrics::with_local_recorder(&recorder, crate::metric_names::describe);
    let server = Server::start(Script::default(), Options { metrics, ..Options::default() }).await;
    let reply = server.client().await.get("/metrics").await;
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(reply.body.contains("quorate_build_info"), "{}", reply.body);
}

#[tokio::test]
async fn unreadable_requests_are_problems_and_the_connection_lives_on() {
    let server = Server::start(Script::default(), Options::default()).await;
    let mut client = server.client().await;
    client.post("not json").await.is_problem(400, "bad_request");
    client.post("").await.is_problem(400, "bad_request");
    client.post(&"[".repeat(60_000)).await.is_problem(400, "bad_request");
    client.post(r#"{"key":"k","limit":"0/s"}"#).await.is_problem(422, "never");
    client.post(&format!(r#"{{"key":"{}"}}"#, "x".repeat(10_000))).await.is_problem(413, "too_large");
    assert_eq!(client.post(ACQUIRE).await.status, 200);
}

#[tokio::test]
async fn large_bodies_get_an_answer_and_not_a_reset() {
    let server = Server::start(Script::default(), Options::default()).await;
    let mut whole = server.client().await;
    let reply = whole.post(&" ".repeat(10 * 1024 * 1024)).await;
    reply.is_problem(413, "too_large");
    assert_eq!(reply.headers["connection"], "close");
    whole.closed().await;

    let mut chunked = server.client().await;
    chunked.send("POST /acquire HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let chunk = format!("1000\r\n{}\r\n", " ".repeat(4_096));
    chunked.send(chunk.repeat(20)).await;
    chunked.send("0\r\n\r\n").await;
    chunked.reply().await.is_problem(413, "too_large");

    let mut polite = server.client().await;
    polite.send("POST /acquire HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 10485760\r\n\r\n").await;
    polite.reply().await.is_problem(413, "too_large");
    polite.closed().await;
}

#[tokio::test]
async fn a_slow_body_is_told_so_and_closed() {
    let server = Server::start(Script::default(), Options { body_timeout: SHORT, ..Options::default() }).await;
    let mut client = server.client().await;
    client.send("POST /acquire HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"key\":").await;
    let reply = client.reply().await;
    reply.is_problem(400, "bad_request");
    assert!(reply.body.contains("did not arrive in time"), "{}", reply.body);
    assert_eq!(reply.headers["connection"], "close");
    client.closed().await;
}

#[tokio::test]
async fn half_sent_headers_are_told_so_and_closed_and_resting_connections_are_not() {
    let server = Server::start(Script::default(), Options { header_timeout: SHORT, ..Options::default() }).await;
    let mut resting = server.client().await;
    assert_eq!(resting.post(ACQUIRE).await.status, 200);
    let mut silent = server.client().await;
    let mut half = server.client().await;
    half.send("POST /acquire HTTP/1.1\r\nhost: x\r\ncontent-").await;
    let told = half.reply().await;
    assert_eq!((told.status, told.headers["content-type"].as_str()), (400, "application/problem+json"));
    assert!(told.body.contains("did not arrive in time"), "{}", told.body);
    half.closed().await;
    silent.closed().await;
    // The time for headers has passed by now, more than once.
    assert_eq!(resting.post(ACQUIRE).await.status, 200);
    // A head that begins after a rest has its time too.
    resting.send("POST /acq").await;
    assert_eq!(resting.reply().await.status, 400);
    resting.closed().await;
}

#[tokio::test]
async fn a_connection_that_rests_for_too_long_is_closed() {
    let server = Server::start(Script::default(), Options { idle_timeout: SHORT, ..Options::default() }).await;
    let mut client = server.client().await;
    assert_eq!(client.post(ACQUIRE).await.status, 200);
    client.closed().await;
}

#[tokio::test]
async fn headers_have_a_bound() {
    let server = Server::start(Script::default(), Options::default()).await;
    let mut client = server.client().await;
    client.send(format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "x".repeat(32 * 1024))).await;
    assert_eq!(client.reply().await.status, 431);
    let mut client = server.client().await;
    client.send("this is not HTTP\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 400);
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let server = Server::start(Script::default(), Options { connections_max: 2, ..Options::default() }).await;
    let mut first = server.client().await;
    let mut second = server.client().await;
    assert_eq!((first.get("/livez").await.status, second.get("/livez").await.status), (200, 200));
    let mut third = server.client().await;
    let reply = third.post(ACQUIRE).await;
    reply.is_problem(503, "overloaded");
    assert_eq!(reply.headers["retry-after"], "1");
    third.closed().await;
    assert_eq!(first.get("/livez").await.status, 200, "who is in stays in");
    drop(second);
    let freed = async { while server.client().await.get("/livez").await.status != 200 {} };
    timeout(FOREVER, freed).await.expect("a closed connection makes room");
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_place() {
    let options = Options { connections_max: 1, write_timeout: SHORT, ..Options::default() };
    let server = Server::start(Script::default(), options).await;
    let mut deaf = server.client().await;
    // Tens of megabytes of answers: more than the kernel takes off the server's hands.
    deaf.send("GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2_000)).await;
    let freed = async { while server.client().await.get("/livez").await.status != 200 {} };
    timeout(FOREVER, freed).await.expect("its place becomes free");
    drop(deaf);
}

#[tokio::test]
async fn a_node_that_says_nothing_is_not_waited_for_for_ever() {
    let script = Script { decide: Box::new(|_| pending().boxed()), ..Script::default() };
    let server = Server::start(script, Options { request_timeout: SHORT, ..Options::default() }).await;
    let mut client = server.client().await;
    client.post(ACQUIRE).await.is_problem(504, "outcome_unknown");
    client.get("/keys/k").await.is_problem(503, "no_quorum");
    client.get("/cluster/digest").await.is_problem(503, "overloaded");
}

#[tokio::test]
async fn a_panic_in_a_handler_is_an_answer_and_the_connection_lives_on() {
    let panicking = Script { decide: Box::new(|_| async { panic!("on purpose") }.boxed()), ..Script::default() };
    let server = Server::start(panicking, Options::default()).await;
    let mut client = server.client().await;
    client.post(ACQUIRE).await.is_problem(500, "internal");
    assert_eq!(client.get("/livez").await.status, 200);
}

/// A script whose acquire says when it was asked and waits until it may answer.
fn gated() -> (Script, Arc<Notify>, Arc<Notify>) {
    let (asked, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (asked_inside, open_inside) = (Arc::clone(&asked), Arc::clone(&open));
    let decide = Box::new(move |_| {
        let (asked, open) = (Arc::clone(&asked_inside), Arc::clone(&open_inside));
        async move {
            asked.notify_one();
            open.notified().await;
            Ok(granted())
        }
        .boxed()
    });
    (Script { decide, ..Script::default() }, asked, open)
}

fn posted(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{ACQUIRE}", ACQUIRE.len())
}

#[tokio::test]
async fn a_request_whose_client_has_gone_is_given_up() {
    struct Dropped(Arc<Notify>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    for request in [posted("/acquire"), "GET /keys/k HTTP/1.1\r\nhost: x\r\n\r\n".to_owned()] {
        let (asked, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let waits = {
            let (asked, dropped) = (Arc::clone(&asked), Arc::clone(&dropped));
            move || {
                let dropped = Dropped(Arc::clone(&dropped));
                asked.notify_one();
                async move {
                    let _dropped = dropped;
                    pending::<()>().await;
                }
            }
        };
        let look = waits.clone();
        let script = Script {
            decide: Box::new(move |_| waits().map(|()| Ok(granted())).boxed()),
            look: Box::new(move |_| look().map(|()| unreachable!("it never ends")).boxed()),
            ..Script::default()
        };
        let options = Options { request_timeout: 2 * FOREVER, ..Options::default() };
        let server = Server::start(script, options).await;
        let mut client = server.client().await;
        client.send(&request).await;
        asked.notified().await;
        drop(client);
        timeout(FOREVER, dropped.notified()).await.unwrap_or_else(|_| panic!("nobody is there any more: {request}"));
    }
}

/// Whatever way a request takes through the server, the answers come in the order of the questions and nothing is lost between.
#[tokio::test]
async fn requests_of_all_kinds_share_a_connection() {
    let server = Server::start(Script::default(), Options::default()).await;
    let plain = posted("/acquire");
    let named = plain.replace("host: x", "host: x\r\nidempotency-key: \"a\"");
    let chunked = format!(
        "POST /acquire HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{ACQUIRE}\r\n0\r\n\r\n",
        ACQUIRE.len()
    );
    let look = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n".to_owned();
    let absent = look.replace("livez", "nowhere");
    let broken = plain.replace("\"key\"", "'key'");
    let all = [
        (&plain, 200),
        (&plain, 200),
        (&broken, 400),
        (&named, 200),
        (&look, 200),
        (&chunked, 200),
        (&absent, 404),
        (&plain, 200),
    ];
    let text: String = all.iter().map(|(request, _)| request.as_str()).collect();
    for first in 0..all.len() {
        let mut client = server.client().await;
        for (request, expected) in all.iter().cycle().skip(first).take(all.len()) {
            client.send(request).await;
            let reply = client.reply().await;
            assert_eq!((reply.status, reply.headers.contains_key("date")), (*expected, true), "{request}");
        }
    }
    // All at once, and cut in two anywhere.
    for cut in 0..text.len() {
        let mut client = server.client().await;
        client.send(&text[..cut]).await;
        tokio::task::yield_now().await;
        client.send(&text[cut..]).await;
        for (request, expected) in &all {
            assert_eq!(client.reply().await.status, *expected, "{request}, cut at {cut}");
        }
    }
}

#[tokio::test]
async fn a_client_that_has_said_all_it_will_is_answered() {
    let slow = async || {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        Ok(Rules { stored: Vec::new(), revision: 1 })
    };
    let script = Script { rules: Box::new(move |_| slow().boxed()), ..Script::default() };
    let server = Server::start(script, Options::default()).await;
    for request in [posted("/acquire"), "GET /policies HTTP/1.1\r\nhost: x\r\n\r\n".to_owned()] {
        let mut client = server.client().await;
        client.send(&request).await;
        client.socket.shutdown().await.unwrap();
        assert_eq!(client.reply().await.status, 200, "{request}");
        client.closed().await;
    }
}

#[tokio::test]
async fn shutting_down_lets_requests_in_flight_finish() {
    let (script, asked, open) = gated();
    let mut server = Server::start(script, Options::default()).await;
    let mut resting = server.client().await;
    assert_eq!(resting.get("/livez").await.status, 200);
    let mut working = server.client().await;
    working.send(posted("/acquire")).await;
    asked.notified().await;

    server.stop();
    resting.closed().await;
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody is accepted any more");
    open.notify_one();
    let reply = working.reply().await;
    assert_eq!((reply.status, reply.headers["connection"].as_str()), (200, "close"));
    working.closed().await;
    server.ended().await;
}

#[tokio::test]
async fn shutting_down_does_not_wait_for_ever() {
    let (script, asked, _open) = gated();
    let mut server = Server::start(script, Options { shutdown_grace: SHORT, ..Options::default() }).await;
    let mut working = server.client().await;
    working.send(posted("/acquire")).await;
    asked.notified().await;
    server.stop();
    working.closed().await;
    server.ended().await;
}

/// A history with something in it, and its directory.
async fn remembered() -> (History, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    let history = History::start(history::Settings {
        dir: data.path().join("history"),
        bytes_max: 64 << 20,
        age_max: Duration::from_secs(86_400),
        open_within: FOREVER,
    });
    let key = Key::new("a/b").unwrap();
    let (policy, worker) = (Some("api".into()), Some("w-1".into()));
    let slot = Time(6_000_000_000);
    let granted = Event::Granted { key: key.clone(), policy, permit: 7, slot, cost: 2, worker };
    let denied = Event::Denied { key: key.clone(), policy: None, cost: 1, reason: "not_free_now", worker: None };
    history.feed(Applied { index: 1, at: Time(1_500_000), events: vec![granted, denied, Event::Reset { key }] });
    history.note(Audit::Leader { node: 2, term: 3 });
    let (reader, counted) = (history.clone(), async || {
        let history = history.clone();
        let (usage, audit) =
            tokio::task::spawn_blocking(move || (history.usage(None, 1), history.audit(2))).await.unwrap();
        usage.is_ok_and(|usage| usage.total.granted == 1) && audit.is_ok_and(|lines| lines.len() == 2)
    });
    let written = async { while !counted().await {} };
    timeout(FOREVER, written).await.expect("it is written");
    (reader, data)
}

#[tokio::test]
async fn what_a_node_remembers_is_shown() {
    let (history, _data) = remembered().await;
    let options = Options { history: Some(history.clone()), ..Options::default() };
    let server = Server::start(Script::default(), options).await;
    let mut client = server.client().await;
    let mut found = client.get("/keys/a%2Fb/history").await.json();
    let recorded = found["permits"][0]["recorded"].take();
    assert!(recorded.as_str().is_some_and(|text| text.len() == 24 && text.ends_with('Z')), "{recorded}");
    found["denied"][0]["recorded"].take();
    assert_eq!(
        found,
        json!({"key": "a/b", "until_ms": 1.5,
               "permits": [{"permit": 7, "slot_ms": 6000, "at_ms": 1.5, "cost": 2, "worker": "w-1", "policy": "api",
                            "outcome": "granted", "recorded": null}],
               "denied": [{"at_ms": 1.5, "cost": 1, "reason": "not_free_now", "recorded": null}],
               "seconds": [{"at_ms": 0, "granted": 1, "cost": 2, "denied": 1}],
               "minutes": [{"at_ms": 0, "granted": 1, "cost": 2, "denied": 1}]})
    );
    let usage = client.get("/history").await.json();
    assert_eq!(usage["total"], json!({"granted": 1, "cost": 2, "denied": 1}));
    assert_eq!(usage["keys"], json!([{"key": "a/b", "granted": 1, "cost": 2, "denied": 1}]));
    assert_eq!(usage["policies"], json!([{"policy": "api", "granted": 1, "cost": 2, "denied": 0}]));
    assert_eq!(client.get("/history?policy=none&top=1").await.json()["total"]["granted"], 0);
    let audit = client.get("/audit?limit=2").await.json();
    let kinds: Vec<_> = audit["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("leader"), Some("key_reset")]);
    assert_eq!((&audit["events"][1]["key"], &audit["events"][1]["index"]), (&json!("a/b"), &json!(1)));
    let unheard = client.get("/keys/unheard/history?seconds=0&minutes=0&limit=1000").await;
    assert_eq!((unheard.status, &unheard.json()["permits"]), (200, &json!([])));

    tokio::task::spawn_blocking(move || history.close(FOREVER)).await.unwrap();
    let closed = client.get("/audit").await;
    closed.is_problem(503, "history_unavailable");
    assert_eq!(closed.headers["retry-after"], "1");
}

#[tokio::test]
async fn questions_about_the_past_have_bounds() {
    let (history, _data) = remembered().await;
    let server = Server::start(Script::default(), Options { history: Some(history), ..Options::default() }).await;
    let mut client = server.client().await;
    for (path, detail) in [
        ("/keys/k/history?limit=0", "limit: has to be a whole number between 1 and 1000, this is \"0\""),
        ("/keys/k/history?seconds=3601", "seconds: has to be a whole number between 0 and 3600, this is \"3601\""),
        ("/keys/k/history?minutes=x", "minutes: has to be a whole number between 0 and 10080, this is \"x\""),
        ("/keys/k/history?lmit=1", "unknown parameter \"lmit\", only limit, seconds, minutes"),
        ("/keys/100%/history", "key: a percent sign is not followed by two hexadecimal digits"),
        ("/history?top=1001", "top: has to be a whole number between 1 and 1000, this is \"1001\""),
        ("/audit?limit=1&limit=2", "limit: given more than once"),
    ] {
        let reply = client.get(path).await;
        reply.is_problem(400, "bad_request");
        assert_eq!(reply.json()["detail"], detail, "{path}");
    }
    client.get(&format!("/keys/{}/history", "x".repeat(257))).await.is_problem(413, "too_large");
    client.get("/keys//history").await.is_problem(400, "bad_request");
    client.get("/keys/a/b/history").await.is_problem(404, "not_found");
    client.request("POST", "/keys/k/history", "").await.is_problem(405, "method_not_allowed");
}

#[tokio::test]
async fn a_node_without_a_history_says_so() {
    let server = Server::start(Script::default(), Options::default()).await;
    let mut client = server.client().await;
    for path in ["/keys/k/history", "/history", "/audit"] {
        client.get(path).await.is_problem(503, "history_unavailable");
    }
}
