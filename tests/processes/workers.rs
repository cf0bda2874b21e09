//! Workers that acquire from all nodes, retry as the contract allows, and remember every answer.

use quorate::clock::Stopwatch;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// One grant as a worker saw it.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    pub(crate) request_id: String,
    pub(crate) key: String,
    pub(crate) permit: u64,
    pub(crate) slot_us: u64,
    /// When the answer arrived, since the beginning of the history.
    pub(crate) at: Duration,
    /// When it was first asked for.
    pub(crate) asked_at: Duration,
}

/// Everything the workers did.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) grants: Mutex<Vec<Grant>>,
    /// Answers other than grants, by status and code.
    pub(crate) others: Mutex<BTreeMap<String, u64>>,
    requests: AtomicU64,
}

/// Workers in the background.
pub(crate) struct Workers {
    pub(crate) history: Arc<History>,
    pub(crate) began: Stopwatch,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

/// What the workers ask for: far more reservations than they can use up, so that nothing is denied.
pub(crate) const RATE: &str = "500/s";
pub(crate) const INTERVAL_US: u64 = 2_000;
pub(crate) const KEYS: u64 = 4;

impl Workers {
    /// Starts `count` workers spread over all nodes. Each request is repeated under its id until it is granted.
    pub(crate) fn start(urls: &[String], count: usize) -> Self {
        Self::start_on(urls, count, KEYS)
    }

    /// The same on so many keys.
    pub(crate) fn start_on(urls: &[String], count: usize, keys: u64) -> Self {
        let history = Arc::new(History::default());
        let stop = Arc::new(AtomicBool::new(false));
        let began = Stopwatch::start();
        let mut tasks = JoinSet::new();
        for worker in 0..count {
            let (urls, history, stop) = (urls.to_vec(), Arc::clone(&history), Arc::clone(&stop));
            tasks.spawn(async move { work((worker, keys), &urls, &history, &stop, began).await });
        }
        Self { history, began, stop, tasks }
    }

    /// Grants so far.
    pub(crate) fn granted(&self) -> usize {
        self.history.grants.lock().unwrap().len()
    }

    /// When the first answer arrived to anything that was asked for after `instant`.
    pub(crate) fn first_asked_after(&self, instant: Duration) -> Option<Duration> {
        let grants = self.history.grants.lock().unwrap();
        grants.iter().filter(|grant| grant.asked_at > instant).map(|grant| grant.at).min()
    }

    /// Lets every worker finish its current request and returns what all of them saw.
    pub(crate) async fn finish(mut self) -> Arc<History> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.tasks.join_next().await {
            worker.expect("a worker panicked");
        }
        self.history
    }
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(Duration::from_secs(5)).build().expect("a client")
}

async fn work((worker, keys): (usize, u64), urls: &[String], history: &History, stop: &AtomicBool, began: Stopwatch) {
    let http = client();
    let mut node = worker % urls.len();
    while !stop.load(Ordering::Relaxed) {
        let number = history.requests.fetch_add(1, Ordering::Relaxed);
        let request_id = format!("w{worker}-{number}");
        let key = format!("key-{}", number % keys);
        let asked_at = began.elapsed();
        loop {
            let answer = ask(&http, &urls[node], &key, &request_id).await;
            match answer {
                Ok((200, body)) => {
                    let grant = Grant {
                        request_id: request_id.clone(),
                        key: key.clone(),
                        permit: body["permit"].as_u64().expect("a permit"),
                        slot_us: micros(&body["slot_ms"]),
                        at: began.elapsed(),
                        asked_at,
                    };
                    history.grants.lock().unwrap().push(grant);
                    break;
                }
                Ok((status, body)) => {
                    note(history, &format!("{status} {}", body["code"].as_str().unwrap_or("?")));
                    assert!([503, 504].contains(&status), "unexpected answer {status}: {body}");
                }
                Err(kind) => note(history, kind),
            }
            // The node is gone or has no leader: try another one, soon.
            node = (node + 1) % urls.len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn note(history: &History, what: &str) {
    *history.others.lock().unwrap().entry(what.to_owned()).or_default() += 1;
}

/// One acquire; the error says at which stage it broke.
pub(crate) async fn ask(http: &reqwest::Client, url: &str, key: &str, id: &str) -> Result<(u16, Value), &'static str> {
    let body = json!({
        "key": key, "limit": {"rate": RATE, "max_reserved": 10_000}, "request_id": id, "max_wait_ms": 60_000,
    });
    let answer = http
        .post(format!("{url}/acquire"))
        .json(&body)
        .send()
        .await
        .map_err(|error| if error.is_connect() { "connect" } else { "lost" })?;
    let status = answer.status().as_u16();
    let body = answer.json().await.map_err(|_| "cut off")?;
    Ok((status, body))
}

/// Milliseconds with three decimals, exactly.
pub(crate) fn micros(value: &Value) -> u64 {
    let millis = value.as_f64().expect("a number");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a time on the wire is positive and small"
    )]
    let micros = (millis * 1_000.0).round() as u64;
    micros
}

/// P1: "Two permits of one key are never closer than the limit allows, in cluster time, whoever the leader was."
/// And: permits are unique and grow with the slots of a key; a request id names one permit.
pub(crate) fn check(grants: &[Grant]) {
    let mut by_key: HashMap<&str, Vec<&Grant>> = HashMap::new();
    let mut by_permit: HashMap<u64, &Grant> = HashMap::new();
    let mut by_id: HashMap<&str, u64> = HashMap::new();
    for grant in grants {
        by_key.entry(&grant.key).or_default().push(grant);
        let other = by_permit.insert(grant.permit, grant);
        assert!(
            other.is_none_or(|other| other.request_id == grant.request_id),
            "one permit twice: {other:?} {grant:?}"
        );
        let permit = by_id.insert(&grant.request_id, grant.permit);
        assert!(permit.is_none_or(|permit| permit == grant.permit), "one request, two permits: {permit:?} {grant:?}");
    }
    for grants in by_key.values_mut() {
        grants.sort_by_key(|grant| grant.permit);
        for pair in grants.windows(2) {
            assert!(pair[1].slot_us >= pair[0].slot_us + INTERVAL_US, "slots too close: {pair:?}");
        }
    }
}
