//! Asking for blocks and giving back: what the desk says is to be done, done.

use super::asleep::Asleep;
use super::block::{Ns, Slot};
use super::cluster::{Answer, Failed, Nodes, Question, Upstream};
use super::desk::{Back, Block, Desk, Outcome, Wanted};
use super::meters::{self, Meters};
use super::options::Options;
use crate::api::{
    AcquireRequest, AcquireResponse, BatchRequest, BatchResponse, Code, Millis, Problem, ReleaseRequest,
    ReleaseResponse,
};
use crate::clock::Stopwatch;
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How often the desk is looked over.
const TICK: Duration = Duration::from_millis(20);
/// Permits on their way back at once.
const RELEASES_MAX: usize = 32;
/// The label of an agent in the history, where no worker has one.
const WORKER: &str = "agent";

/// A running agent. Cheap to clone.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

struct Inner {
    desk: Mutex<Desk>,
    upstream: Box<dyn Upstream>,
    options: Options,
    meters: Meters,
    /// All instants are counted from here.
    begun: Stopwatch,
    asleep: Asleep,
    /// Names this run of this agent in its request ids.
    name: String,
    numbers: AtomicU64,
    releases: Semaphore,
    /// Releases that have not ended.
    underway: AtomicU64,
    reachable: AtomicBool,
}

impl Agent {
    /// An agent of the nodes that its options name. Says what is wrong with them.
    pub fn new(options: Options) -> Result<Self, String> {
        let nodes = Nodes::new(&options.nodes, options.attempt_timeout)?;
        Self::with(options, Box::new(nodes))
    }

    pub(super) fn with(options: Options, upstream: Box<dyn Upstream>) -> Result<Self, String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| format!("the system has no random numbers: {error}"))?;
        let meters = Meters::new();
        Ok(Self(Arc::new(Inner {
            desk: Mutex::new(Desk::new(options.clone(), meters.clone())),
            upstream,
            options,
            meters,
            begun: Stopwatch::start(),
            asleep: Asleep::new(),
            name: format!("agent-{:032x}", u128::from_ne_bytes(random)),
            numbers: AtomicU64::new(0),
            releases: Semaphore::new(RELEASES_MAX),
            underway: AtomicU64::new(0),
            reachable: AtomicBool::new(true),
        })))
    }

    /// The agent's own monotonic clock.
    pub(super) fn now(&self) -> Ns {
        u64::try_from(self.0.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The desk, with nothing on it from before the machine last slept.
    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing in there stops halfway.
        let mut desk = self.0.desk.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.asleep.slept() {
            tracing::warn!("the machine slept: all slots that were reserved before are given back");
            self.give_back(desk.woke_up());
        }
        desk
    }

    pub(super) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(super) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    /// Whether the last exchange with the cluster came to something.
    pub(super) fn is_reachable(&self) -> bool {
        self.0.reachable.load(Ordering::Relaxed)
    }

    /// An id that nobody else uses.
    pub(super) fn fresh_id(&self) -> String {
        format!("{}-{}", self.0.name, self.0.numbers.fetch_add(1, Ordering::Relaxed))
    }

    /// Puts a question to the cluster, with the usual patience.
    pub(super) async fn put(&self, method: Method, path: &str, body: Bytes) -> Result<Answer, Failed> {
        let Options { timeout, attempt_timeout, .. } = self.0.options;
        self.put_within(method, path, body, (attempt_timeout, timeout)).await
    }

    /// The same with another patience, for one attempt and for all.
    pub(super) async fn put_within(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        (attempt_timeout, timeout): (Duration, Duration),
    ) -> Result<Answer, Failed> {
        let question = Question { method, path: path.to_owned(), body, attempt_timeout, timeout };
        let answer = self.0.upstream.put(question).await;
        self.0.reachable.store(answer.is_ok(), Ordering::Relaxed);
        answer
    }

    /// Asks for a block, and for the next one if that is due by then.
    pub(super) fn reserve(&self, block: Option<Block>) {
        let Some(block) = block else { return };
        let agent = self.clone();
        tokio::spawn(async move {
            let mut next = Some(block);
            while let Some(block) = next {
                let outcomes = agent.ask(&block).await;
                let (outcomes, received) = match outcomes {
                    Ok((outcomes, received)) => (Ok(outcomes), received),
                    Err(problem) => (Err(problem), agent.now()),
                };
                // At the instant of the receipt: a slot that was free then goes to whoever waited for it.
                let (back, due) = agent.desk().settle(&block, outcomes, received);
                agent.give_back(back.into_iter().collect());
                next = due;
            }
        });
    }

    /// One outcome for each request of a block, with the instant of the receipt; or one problem for all.
    async fn ask(&self, block: &Block) -> Result<(Vec<Outcome>, Ns), Box<Problem>> {
        let request = self.batch(block);
        let asked = request.requests.len();
        let body = serde_json::to_vec(&request).map_err(|error| internal(&error.to_string()))?;
        // Before the first attempt: deadlines count from here, whichever attempt is answered.
        let sent = self.now();
        let answer = self.put(Method::POST, "/acquire/batch", body.into()).await;
        // After the last byte: waits count from here.
        let received = self.now();
        let answer = match answer {
            Ok(answer) => answer,
            Err(Failed::Unavailable(problem)) => {
                meters::block("unavailable");
                return Err(problem);
            }
            // Whatever was reserved is wasted; nobody here has it.
            Err(Failed::Unknown(detail)) => {
                meters::block("unknown");
                let detail = format!("the cluster did not come to an answer, and nothing was handed out: {detail}");
                return Err(Box::new(Problem::new(Code::NoQuorum, detail)));
            }
        };
        self.desk().took(received - sent);
        if answer.status != 200 {
            meters::block("denied");
            return Err(serde_json::from_slice(&answer.body)
                .map_or_else(|_| internal(&format!("status {}", answer.status)), Box::new));
        }
        let batch: BatchResponse =
            serde_json::from_slice(&answer.body).map_err(|error| internal(&error.to_string()))?;
        if batch.results.len() != asked {
            return Err(internal(&format!("{} results for {asked} requests", batch.results.len())));
        }
        let outcomes: Vec<_> = batch.results.into_iter().map(|result| outcome(result, (sent, received))).collect();
        let granted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let is_expired = |outcome: &&Outcome| matches!(outcome, Err(problem) if problem.code == Code::Expired);
        let expired = outcomes.iter().filter(is_expired).count();
        self.0.meters.reserved.increment((granted + expired) as u64);
        self.0.meters.wasted.increment(expired as u64);
        meters::block(if granted > 0 { "granted" } else { "denied" });
        Ok((outcomes, received))
    }

    fn batch(&self, block: &Block) -> BatchRequest {
        let age_max = Millis::up_from(self.0.options.age_max);
        let plain = || AcquireRequest {
            limit: block.limit.clone(),
            request_id: Some(self.fresh_id()),
            worker: Some(WORKER.to_owned()),
            ..AcquireRequest::new(&block.which.key)
        };
        let waiting = block.waiting.iter().map(|Wanted { terms, worker, .. }| AcquireRequest {
            max_wait_ms: terms.max_wait.map(Millis::up_from_ns),
            lead_ms: (terms.lead > 0).then(|| Millis::up_from_ns(terms.lead)),
            worker: Some(worker.clone().unwrap_or_else(|| WORKER.to_owned())),
            ..plain()
        });
        // Slots of a spacing limit follow each other by themselves, and follow what is held: a lead would only leave room
        // between them unused. Those of a bucket would all come at once.
        let lead = |number: u64| block.stagger.map(|stagger| Millis::up_from_ns(stagger.saturating_mul(number)));
        let extra = (1..).take(block.extra).map(|number| AcquireRequest {
            max_wait_ms: Some(age_max),
            lead_ms: lead(number).map(|lead| lead.min(age_max)),
            ..plain()
        });
        BatchRequest { requests: waiting.chain(extra).collect(), atomic: false }
    }

    /// Gives permits back, beside everything else.
    pub(super) fn give_back(&self, all: Vec<Back>) {
        for Back { key, permits } in all {
            for permit in permits {
                let (agent, key) = (self.clone(), key.clone());
                self.0.underway.fetch_add(1, Ordering::AcqRel);
                tokio::spawn(async move {
                    agent.release(&key, permit).await;
                    agent.0.underway.fetch_sub(1, Ordering::AcqRel);
                });
            }
        }
    }

    async fn release(&self, key: &str, permit: u64) {
        let Ok(_place) = self.0.releases.acquire().await else { return };
        let request = ReleaseRequest { key: key.to_owned(), permit };
        let released = match serde_json::to_vec(&request) {
            Ok(body) => self.put(Method::POST, "/release", body.into()).await.ok(),
            Err(_) => None,
        };
        let released = released
            .filter(|answer| answer.status == 200)
            .and_then(|answer| serde_json::from_slice::<ReleaseResponse>(&answer.body).ok())
            .is_some_and(|answer| answer.released);
        let counter = if released { &self.0.meters.given_back } else { &self.0.meters.wasted };
        counter.increment(1);
    }

    /// Looks the desk over again and again.
    pub(super) async fn keep(&self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let back = self.desk().tick(self.now());
            self.give_back(back);
        }
    }

    /// Grants nothing any more and gives back all that lies ahead, within `grace`.
    pub(super) async fn close(&self, grace: Duration) {
        let closed = async {
            loop {
                let back = self.desk().close(self.now());
                self.give_back(back);
                // A block that is on its way is waited for: what it brings is given back as well.
                if !self.desk().is_asking() && self.0.underway.load(Ordering::Acquire) == 0 {
                    break;
                }
                sleep(TICK).await;
            }
        };
        if timeout(grace, closed).await.is_err() {
            tracing::warn!("some slots could not be given back in time and are wasted");
        }
    }
}

fn outcome(result: Value, (sent, received): (Ns, Ns)) -> Outcome {
    if result.get("granted") == Some(&Value::Bool(true)) {
        let grant: AcquireResponse = serde_json::from_value(result).map_err(|error| internal(&error.to_string()))?;
        let (wait, before) = (grant.wait_ms.ns(), grant.start_before_ms.map(Millis::ns));
        return Ok(Slot::new(Arc::new(grant), (sent, received), wait, before));
    }
    let mut problem: Problem = serde_json::from_value(result).map_err(|error| internal(&error.to_string()))?;
    // Where in the batch it stood is nothing to the worker, who asked for one permit.
    if let Some(index) = problem.index.take() {
        problem.detail = problem.detail.replacen(&format!("requests[{index}]: "), "", 1);
    }
    Err(Box::new(problem))
}

fn internal(why: &str) -> Box<Problem> {
    Box::new(Problem::new(Code::Internal, format!("an answer that no node of ours gives: {why}")))
}
