//! One real node in this process, asked over HTTP: what the document writes is what a node takes.

use super::document::{all_limits, read};
use quorate::http;
use quorate::node::{Node, Options, start};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Only bounds failures.
const PATIENCE: u32 = 600;

/// A cluster of one.
pub(crate) struct Server {
    url: String,
    client: reqwest::Client,
    node: Node,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    _data: TempDir,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let data = TempDir::new().expect("a directory");
        let peers = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let clients = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", clients.local_addr().expect("its address"));
        let options = Options {
            id: 1,
            data: data.path().to_owned(),
            members: BTreeMap::from([(1, peers.local_addr().expect("its address").to_string())]),
            join: false,
            cluster: "limits".to_owned(),
            advertise: url.clone(),
            keys_max: 1_000,
            heartbeat_ms: 100,
            election_ms_min: 200,
            election_ms_max: 350,
            request_timeout_ms: 10_000,
            snapshot_every_entries: 100_000,
            log_keep_entries: 1_000,
            disk_reserve_bytes: 0,
        };
        let node = start(&options, peers, None).await.expect("a node");
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(http::serve(clients, node.handle(), http::Options::default(), async {
            let _ = stopped.await;
        }));
        Self { url, client: reqwest::Client::new(), node, stop, serving, _data: data }
    }

    /// Status, headers and body; asked again as long as there is no leader yet.
    pub(crate) async fn acquire(&self, request: &Value) -> (u16, BTreeMap<String, String>, Value) {
        for _ in 0..PATIENCE {
            let sent = self.client.post(format!("{}/acquire", self.url)).json(request).send().await;
            let response = sent.expect("an answer");
            let status = response.status().as_u16();
            if status == 503 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            let text = |value: &reqwest::header::HeaderValue| value.to_str().expect("text").to_owned();
            let headers = response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            return (status, headers, response.json().await.expect("JSON"));
        }
        panic!("no leader");
    }

    /// A member of a key as it stands.
    async fn look(&self, key: &str, member: &str) -> Value {
        let sent = self.client.get(format!("{}/keys/{key}", self.url)).send().await;
        sent.expect("an answer").json::<Value>().await.expect("JSON")[member].take()
    }

    /// Waits until a member of a key has this value.
    async fn until(&self, key: &str, member: &str, wanted: &Value) {
        for _ in 0..PATIENCE {
            if self.look(key, member).await == *wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{member} of {key} never was {wanted}");
    }

    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.serving.await.expect("it stops");
        self.node.shutdown(Duration::from_secs(5)).await;
    }
}

/// Every limit of the document is taken as it stands, and comes back as it was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_every_limit_of_the_document() {
    let server = Server::start().await;
    let mut kinds = BTreeSet::new();
    for (index, limit) in all_limits().iter().enumerate() {
        let (status, headers, body) = server.acquire(&json!({"key": format!("example {index}"), "limit": limit})).await;
        assert_eq!((status, &body["limit"]), (200, limit), "{body}");
        let kind = read(limit).kind();
        assert!(headers["ratelimit-policy"].starts_with(&format!("\"{kind}\";")), "{headers:?}");
        kinds.insert(kind);
    }
    assert_eq!(kinds.len(), 4, "all kinds are shown: {kinds:?}");
    server.stop().await;
}

/// "Who closes the connection gives up its place or its slot."
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_gives_its_slot_back() {
    let server = Server::start().await;
    let request = json!({"key": "held", "limit": "1/h", "wait": "server"});
    let (status, ..) = server.acquire(&request).await;
    assert_eq!(status, 200, "free now");
    // Its slot lies an hour ahead, so its answer is held.
    let held = server.client.post(format!("{}/acquire", server.url)).json(&request).send();
    let held = tokio::spawn(held);
    server.until("held", "reserved", &json!(1)).await;
    held.abort();
    server.until("held", "reserved", &json!(0)).await;
    server.stop().await;
}

/// "Who does not wait does not overtake."
#[tokio::test(flavor = "multi_thread")]
async fn nobody_overtakes_a_line() {
    let server = Server::start().await;
    let limit = json!({"kind": "concurrency", "max": 2, "lease": "10m"});
    let small = json!({"key": "line", "limit": limit});
    assert_eq!(server.acquire(&small).await.0, 200);
    // There is room for one more, but the one that waits wants two.
    let large = json!({"key": "line", "limit": limit, "cost": 2, "wait": "server"});
    let waiter = tokio::spawn(server.client.post(format!("{}/acquire", server.url)).json(&large).send());
    server.until("line", "waiting", &json!(1)).await;
    for tries in 0.. {
        let (status, _, body) = server.acquire(&small).await;
        if status == 429 {
            assert_eq!(body["reason"], "in_flight_full");
            break;
        }
        // It came before the line had been told that there is no place.
        assert!(tries < PATIENCE, "it overtakes every time");
        let release = json!({"key": "line", "permit": body["permit"]});
        server.client.post(format!("{}/release", server.url)).json(&release).send().await.expect("an answer");
    }
    waiter.abort();
    server.until("line", "waiting", &json!(0)).await;
    assert_eq!(server.acquire(&small).await.0, 200, "without the line there is room");
    server.stop().await;
}
