//! A worker that obeys the two instants, and remembers when it started.

use quorate::clock::{Deadline, Stopwatch};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep_until;

/// What all workers of a run did, on one clock.
pub(crate) struct Record {
    clock: Stopwatch,
    pub(crate) starts: Mutex<Vec<Duration>>,
    /// From asking to the answer, of grants.
    pub(crate) answers: Mutex<Vec<Duration>>,
    pub(crate) discarded: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) stop: AtomicBool,
}

impl Record {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            clock: Stopwatch::start(),
            starts: Mutex::default(),
            answers: Mutex::default(),
            discarded: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// The shortest time between two starts.
    pub(crate) fn closest(&self) -> Option<Duration> {
        let mut starts = self.starts.lock().unwrap().clone();
        starts.sort();
        starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min()
    }

    /// The middle of the times to an answer, and the longest of 99 in 100.
    pub(crate) fn latency(&self) -> (Duration, Duration) {
        let mut answers = self.answers.lock().unwrap().clone();
        answers.sort();
        let at = |part: usize| answers.get((answers.len().max(1) - 1) * part / 100).copied().unwrap_or_default();
        (at(50), at(99))
    }

    pub(crate) fn started(&self) -> usize {
        self.starts.lock().unwrap().len()
    }

    /// In one loop: asks, waits, starts, without end until told.
    pub(crate) async fn work(self: Arc<Self>, http: reqwest::Client, urls: Vec<String>, key: String, limit: Value) {
        for turn in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let url = &urls[turn % urls.len()];
            let body = json!({"key": key, "limit": limit, "max_wait_ms": 20_000, "request_id": fresh_id()});
            let asked = Stopwatch::start();
            let Ok(answer) = http.post(format!("{url}/acquire")).json(&body).send().await else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let status = answer.status();
            let Ok(body) = answer.json::<Value>().await else { continue };
            if status != 200 {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let pause = body["retry_after_ms"].as_f64().unwrap_or(20.0).clamp(1.0, 200.0);
                tokio::time::sleep(Duration::from_secs_f64(pause / 1_000.0)).await;
                continue;
            }
            let start_after = Deadline::after(millis(&body["wait_ms"]));
            self.answers.lock().unwrap().push(asked.elapsed());
            sleep_until(start_after.instant()).await;
            let mut starts = self.starts.lock().unwrap();
            // The clock first, then the check: however long this thread stands still in between, what is noted was in time.
            let start = self.clock.elapsed();
            let late = body.get("start_before_ms").is_some_and(|before| asked.elapsed() > millis(before));
            if late {
                self.discarded.fetch_add(1, Ordering::Relaxed);
            } else {
                starts.push(start);
            }
        }
    }
}

pub(crate) fn millis(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().expect("a number") / 1_000.0)
}

fn fresh_id() -> String {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    format!("edge-{}-{}", std::process::id(), NUMBERS.fetch_add(1, Ordering::Relaxed))
}
