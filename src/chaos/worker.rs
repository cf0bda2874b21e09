//! A process of workers: they acquire from all nodes, retry as the contract says, and start at the target.
//!
//! Invariants
//! - A request that was lost is asked again under its id, at another node; its deadline counts from its **first** send.
//! - A wait counts from the receipt of the answer; a permit whose window has closed is discarded, not used.
//! - Every attempt is written down with the instants before it was sent and after its answer arrived.
//!
//! The client of this crate is not used: it hides attempts, and attempts are what is checked.

use super::history::{Attempt, Event, Grant, Look, Outcome, Recorder, Release};
use super::load::{self, Key, Promise};
use super::rng::Rng;
use super::ticks::{now_ns, sleep_until_ns};
use crate::api::{
    AcquireRequest, AcquireResponse, Code, KeyResponse, Millis, Problem, Reason, ReleaseRequest, ReleaseResponse, Wait,
};
use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// One attempt: a node answers within two seconds, or has gone.
const ATTEMPT: Duration = Duration::from_millis(2_500);
/// A request that nobody settled for so long is given up, its outcome unknown.
const GIVE_UP_NS: u64 = 8_000_000_000;
/// Longest wait that a worker accepts.
pub(super) const MAX_WAIT_US: u64 = 1_000_000;

/// What one process of workers needs to know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where the nodes are.
    pub nodes: Vec<String>,
    /// Where starts go.
    pub target: SocketAddr,
    /// Where the history goes.
    pub out: PathBuf,
    /// Decides what is asked for.
    pub seed: u64,
    /// Number of the first worker of this process.
    pub first: u32,
    /// How many of them.
    pub count: u32,
}

/// Works until stdin ends.
pub async fn work(settings: Settings) -> io::Result<()> {
    let recorder = Arc::new(Recorder::create(&settings.out)?);
    let stop = Arc::new(AtomicBool::new(false));
    let keys = Arc::new(load::keys());
    let http = reqwest::Client::builder().timeout(ATTEMPT).build().map_err(io::Error::other)?;
    let answers = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for number in settings.first..settings.first + settings.count {
        let mut worker = Worker {
            number,
            requests: 0,
            rng: Rng::new(settings.seed, &format!("worker {number}")),
            nodes: settings.nodes.clone(),
            at: usize::try_from(number).unwrap_or(0) % settings.nodes.len(),
            keys: Arc::clone(&keys),
            http: http.clone(),
            recorder: Arc::clone(&recorder),
            target: BufReader::new(TcpStream::connect(settings.target).await?),
            seed: settings.seed,
            answers: Arc::clone(&answers),
        };
        worker.target.get_ref().set_nodelay(true)?;
        let stop = Arc::clone(&stop);
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                worker.once().await?;
            }
            Ok::<(), io::Error>(())
        });
    }
    let ended = tokio::task::spawn_blocking(|| io::Read::read_to_end(&mut io::stdin(), &mut Vec::new()));
    let mut flush = tokio::time::interval(Duration::from_millis(500));
    tokio::pin!(ended);
    loop {
        tokio::select! {
            _ = &mut ended => break,
            _ = flush.tick() => {
                recorder.flush()?;
                // Whoever started this shows it; if nobody reads, nobody minds.
                let _ = writeln!(io::stdout(), "{}", answers.load(Ordering::Relaxed));
            }
            Some(failed) = tasks.join_next() => failed.map_err(io::Error::other)??,
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.map_err(io::Error::other)??;
    }
    recorder.flush()
}

struct Worker {
    number: u32,
    requests: u64,
    rng: Rng,
    nodes: Vec<String>,
    /// The node that is asked next.
    at: usize,
    keys: Arc<Vec<Key>>,
    http: reqwest::Client,
    recorder: Arc<Recorder>,
    target: BufReader<TcpStream>,
    seed: u64,
    answers: Arc<AtomicU64>,
}

/// A permit in hand.
struct InHand {
    key: u16,
    grant: Grant,
    first_sent_ns: u64,
    received_ns: u64,
}

impl Worker {
    async fn once(&mut self) -> io::Result<()> {
        let key = u16::try_from(self.rng.below(u64::from(load::KEYS))).unwrap_or(0);
        if self.rng.percent(25) {
            self.look(key).await;
            return Ok(());
        }
        let Some(permit) = self.acquire(key).await else { return Ok(()) };
        if matches!(self.keys[usize::from(key)].promise, Promise::Concurrency { .. }) {
            return self.hold(&permit).await;
        }
        if permit.grant.wait_us > 20_000 && self.rng.percent(15) {
            self.release(key, permit.grant.permit).await;
            return Ok(());
        }
        self.start(&permit).await.map(drop)
    }

    /// Asks until it is granted, denied or given up; sometimes once more after that, which must change nothing.
    async fn acquire(&mut self, key: u16) -> Option<InHand> {
        self.requests += 1;
        let number = (self.number, self.requests);
        let request = AcquireRequest {
            limit: Some(self.keys[usize::from(key)].limit()),
            max_wait_ms: Some(Millis::up_from_ns(MAX_WAIT_US * 1_000)),
            wait: match self.rng.below(10) {
                0 => Wait::None,
                1 => Wait::Server,
                _ => Wait::Client,
            },
            request_id: Some(format!("{}-{}-{}", self.seed, number.0, number.1)),
            ..AcquireRequest::new(&self.keys[usize::from(key)].name)
        };
        let mut first_sent_ns = None;
        loop {
            let attempt = self.attempt(key, number, &request).await;
            // Only an attempt that can have reached somebody starts the deadline; an earlier one would be safe as well.
            let first = *first_sent_ns.get_or_insert(attempt.sent_ns);
            let (back, outcome) = (attempt.back_ns, attempt.outcome.clone());
            self.recorder.note(&Event::Acquire(attempt));
            if matches!(outcome, Outcome::Granted(_) | Outcome::Denied(_)) {
                self.answers.fetch_add(1, Ordering::Relaxed);
            }
            match outcome {
                Outcome::Granted(grant) => {
                    if self.rng.percent(4) {
                        self.at = (self.at + 1) % self.nodes.len();
                        let again = self.attempt(key, number, &request).await;
                        self.recorder.note(&Event::Acquire(again));
                    }
                    return Some(InHand { key, grant, first_sent_ns: first, received_ns: back });
                }
                Outcome::Denied(_) | Outcome::Expired | Outcome::Wrong(_) => return None,
                Outcome::NotApplied(_) | Outcome::Unknown(_) => {
                    if now_ns() > first + GIVE_UP_NS {
                        return None;
                    }
                    self.at = (self.at + 1) % self.nodes.len();
                    let nap = self.rng.between(5, 60);
                    tokio::time::sleep(Duration::from_millis(nap)).await;
                }
            }
        }
    }

    async fn attempt(&self, key: u16, request_number: (u32, u64), request: &AcquireRequest) -> Attempt {
        let sent_ns = now_ns();
        let answer = self.http.post(format!("{}/acquire", self.nodes[self.at])).json(request).send().await;
        let promise = self.keys[usize::from(key)].promise;
        let outcome = outcome_of::<AcquireResponse, _>(answer, promise, |grant| {
            Outcome::Granted(Grant {
                permit: grant.permit,
                slot_us: grant.slot_ms.micros(),
                wait_us: grant.wait_ms.micros(),
                before_us: grant.start_before_ms.map(Millis::micros),
                replayed: grant.replayed,
                held: request.wait == Wait::Server,
            })
        });
        let outcome = outcome.await;
        let back_ns = now_ns();
        let outcome = match outcome {
            Outcome::Denied(farther) if request.wait == Wait::Server => {
                Outcome::Denied(farther.and_then(|farther_us| in_line_us(farther_us, back_ns - sent_ns)))
            }
            outcome => outcome,
        };
        Attempt { request: request_number, key, sent_ns, back_ns, outcome }
    }

    async fn look(&mut self, key: u16) {
        let sent_ns = now_ns();
        let url = format!("{}/keys/{}", self.nodes[self.at], self.keys[usize::from(key)].name);
        self.at = (self.at + 1) % self.nodes.len();
        let Ok(answer) = self.http.get(url).send().await else { return };
        let (permit, now_us) = match answer.status() {
            StatusCode::OK => {
                let Ok(seen) = answer.json::<KeyResponse>().await else { return };
                (seen.permit, seen.now_ms.micros())
            }
            // An idle key is forgotten; one that is not idle must not be.
            StatusCode::NOT_FOUND => match answer.json::<Problem>().await {
                Ok(problem) if problem.code == Code::NoLimit => (0, 0),
                _ => return,
            },
            _ => return,
        };
        let look = Look { key, sent_ns, back_ns: now_ns(), permit, now_us };
        self.recorder.note(&Event::Look(look));
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    async fn release(&mut self, key: u16, permit: u64) {
        let request = ReleaseRequest { key: self.keys[usize::from(key)].name.clone(), permit };
        let nothing_done = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::NOT_FOUND];
        for _ in 0..4 {
            let sent_ns = now_ns();
            let answer = self.http.post(format!("{}/release", self.nodes[self.at])).json(&request).send().await;
            let released = match answer {
                Ok(answer) if answer.status() == StatusCode::OK => {
                    answer.json::<ReleaseResponse>().await.ok().map(|answer| answer.released)
                }
                // Nothing was given back, for certain.
                Ok(answer) if nothing_done.contains(&answer.status()) => Some(false),
                Err(error) if error.is_connect() => Some(false),
                Ok(_) | Err(_) => None,
            };
            self.recorder.note(&Event::Release(Release { key, permit, sent_ns, back_ns: now_ns(), released }));
            if released.is_some() {
                return;
            }
            self.at = (self.at + 1) % self.nodes.len();
        }
    }

    /// Starts at the target when the slot has come, unless it is too late by then.
    async fn start(&mut self, permit: &InHand) -> io::Result<bool> {
        sleep_until_ns(permit.received_ns + permit.grant.wait_us * 1_000).await;
        let deadline_ns = permit.grant.before_us.map_or(u64::MAX, |us| permit.first_sent_ns + us * 1_000);
        if now_ns() > deadline_ns {
            self.recorder.note(&Event::Discarded { key: permit.key, permit: permit.grant.permit });
            return Ok(false);
        }
        self.tell("begin", permit, deadline_ns).await?;
        Ok(true)
    }

    /// Works under a lease for a moment, and ends it.
    async fn hold(&mut self, permit: &InHand) -> io::Result<()> {
        let deadline_ns = permit.grant.before_us.map_or(u64::MAX, |us| permit.first_sent_ns + us * 1_000);
        if !self.start(permit).await? {
            return Ok(());
        }
        let nap = self.rng.between(5, 60);
        tokio::time::sleep(Duration::from_millis(nap)).await;
        self.tell("end", permit, deadline_ns).await?;
        self.release(permit.key, permit.grant.permit).await;
        Ok(())
    }

    async fn tell(&mut self, what: &str, permit: &InHand, deadline_ns: u64) -> io::Result<()> {
        let line = format!("{what} {} {} {deadline_ns}\n", permit.key, permit.grant.permit);
        self.target.get_mut().write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        if self.target.read_line(&mut answer).await? == 0 {
            return Err(io::Error::other("the target has gone"));
        }
        Ok(())
    }
}

/// How far ahead the slot of a denied request was at least.
const fn farther_than_us(promise: Promise, reason: Option<Reason>) -> Option<u64> {
    match (promise, reason) {
        (Promise::Spacing { interval_us, window_us, max_reserved }, Some(Reason::ReservationsFull)) => {
            Some(max_reserved * (interval_us + window_us))
        }
        (Promise::Spacing { .. }, Some(Reason::WouldWaitTooLong)) => Some(MAX_WAIT_US),
        (Promise::Spacing { .. }, Some(Reason::NotFreeNow)) => Some(0),
        _ => None,
    }
}

/// The same for one that stood in line: what it was still willing to wait when it was put to the register. What refused those
/// ahead of it for want of a place may have been before it was even sent, and tells nothing.
const fn in_line_us(farther_us: u64, took_ns: u64) -> Option<u64> {
    // A thousandth more for clocks.
    let waited_us = took_ns / 1_000 + took_ns / 1_000_000;
    if farther_us == MAX_WAIT_US && waited_us < MAX_WAIT_US { Some(MAX_WAIT_US - waited_us) } else { None }
}

/// What an answer means, or its absence.
async fn outcome_of<T: DeserializeOwned, F: FnOnce(T) -> Outcome>(
    answer: Result<Response, reqwest::Error>,
    promise: Promise,
    granted: F,
) -> Outcome {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if error.is_connect() => return Outcome::NotApplied("not connected".to_owned()),
        Err(error) if error.is_timeout() => return Outcome::Unknown("no answer in time".to_owned()),
        Err(_) => return Outcome::Unknown("connection lost".to_owned()),
    };
    let status = answer.status();
    let Ok(body) = answer.bytes().await else { return Outcome::Unknown("answer cut off".to_owned()) };
    if status == StatusCode::OK {
        return serde_json::from_slice(&body).map_or_else(|error| Outcome::Wrong(error.to_string()), granted);
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        return Outcome::Wrong(format!("status {status} without a problem"));
    };
    match problem.code {
        Code::Denied => Outcome::Denied(farther_than_us(promise, problem.reason)),
        Code::Expired => Outcome::Expired,
        Code::NoQuorum | Code::NoLeader | Code::DiskFull | Code::Overloaded | Code::ShuttingDown => {
            Outcome::NotApplied(problem.code.to_string())
        }
        Code::OutcomeUnknown => Outcome::Unknown(problem.code.to_string()),
        _ => Outcome::Wrong(format!("{status} {}: {}", problem.code, problem.detail)),
    }
}
