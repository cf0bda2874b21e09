//! Simulated workers: they ask at any node, retry under the same id, and start when the answer lets them.
//!
//! A worker counts its wait from the receipt of the answer and its deadline from its **first** send, on a clock of its own
//! that may be as wrong as [`DRIFT_PPM`] allows. Within that it is as nasty as it can be: it likes to start at the very first
//! and at the very last instant.

use crate::machine::{Question, Reply, receive, send};
use crate::network::{DOOR_PORT, Gates, WORKERS};
use crate::record::{Answer, Record, Said, Start, nanos};
use crate::rng::Rng;
use quorate::limiter::{Key, Limit, Spacing, Span, Terms};
use quorate::limits::DRIFT_PPM;
use quorate::node::{Failure, Verdict};
use quorate::planted::{self, Bug};
use quorate::raft::Connection;
use quorate::state::{Acquire, Grant, Identity, Outcome, request_id_hash};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Every key has this limit: starts at least so far apart, and a window to start in.
pub(crate) const INTERVAL: Duration = Duration::from_millis(300);
pub(crate) const WINDOW: Duration = Duration::from_millis(200);
/// Keys whose requests are answered at once, and keys whose requests stand in line.
const KEYS: [&str; 3] = ["a", "b", "c"];
const LINES: [&str; 1] = ["line"];
const PLAIN: u64 = 5;
const IN_LINE: u64 = 3;
/// Attempts of one request, and how long one lasts.
const ATTEMPTS_MAX: usize = 5;

/// How far a run has come.
#[derive(Clone, Default)]
pub(crate) struct Phase(Arc<AtomicU8>);

impl Phase {
    pub(crate) const WORK: u8 = 0;
    /// Faults are over: does everybody serve?
    pub(crate) const HEALED: u8 = 1;
    /// Nobody asks any more.
    pub(crate) const QUIET: u8 = 2;

    pub(crate) fn set(&self, phase: u8) {
        self.0.store(phase, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What all workers share.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) gates: Gates,
    pub(crate) record: Record,
    pub(crate) phase: Phase,
}

/// True time.
pub(crate) fn now() -> Duration {
    turmoil::sim_elapsed().expect("workers are on a simulated host")
}

fn limit(max_reserved: u32) -> Limit {
    let span = |duration: Duration| Span(nanos(duration));
    let rate = format!("1/{}ms", INTERVAL.as_millis()).parse().expect("a rate");
    Limit::Spacing(Spacing::new(rate, span(WINDOW), max_reserved).expect("a limit"))
}

fn request(key: &str, id: &str, max_reserved: u32, max_wait: Option<Duration>) -> Acquire {
    let terms = Terms { max_wait: max_wait.map(|wait| Span(nanos(wait))), ..Terms::default() };
    let mut acquire = Acquire::one(Key::new(key).expect("a key"), Some(limit(max_reserved)), 1, terms);
    acquire.identity = Some(Identity::of(id, acquire.wanted()));
    acquire
}

impl Crew {
    /// All workers, until the run is quiet.
    pub(crate) async fn run(self, mut rng: Rng) -> turmoil::Result {
        let mut tasks = tokio::task::JoinSet::new();
        // The last one reads.
        for number in 0..=PLAIN + IN_LINE {
            let worker = Worker::new(number, self.clone(), rng.fork());
            tasks.spawn_local(async move {
                match number {
                    _ if number < PLAIN => worker.plain().await,
                    _ if number < PLAIN + IN_LINE => worker.in_line().await,
                    _ => worker.read().await,
                }
            });
        }
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    /// Once faults are over: asks every node until it grants, and says when each did.
    pub(crate) async fn probe(self, rng: Rng, served: Arc<std::sync::Mutex<Vec<Duration>>>) -> turmoil::Result {
        while self.phase.get() == Phase::WORK {
            sleep(Duration::from_millis(50)).await;
        }
        for node in 1..=3 {
            let mut worker = Worker::new(100 + node, self.clone(), rng.clone());
            for number in 0.. {
                let acquire = request(&format!("probe{node}"), &format!("probe{node}-{number}"), 10, None);
                let reply = worker.ask(node, &Question::Acquire(acquire), Duration::from_secs(2)).await;
                if let Some(Reply::Verdict(Verdict { outcome: Outcome::Granted(_), .. })) = reply {
                    break;
                }
                if self.phase.get() == Phase::QUIET {
                    return Ok(());
                }
                sleep(Duration::from_millis(50)).await;
            }
            served.lock().expect("one thread").push(now());
        }
        Ok(())
    }
}

struct Worker {
    number: u64,
    crew: Crew,
    rng: Rng,
    requests: u64,
    /// How far its clock goes while a million true units pass.
    clock_ppm: u64,
    connection: Option<(u64, Connection)>,
}

impl Worker {
    fn new(number: u64, crew: Crew, mut rng: Rng) -> Self {
        let clock_ppm = rng.pick(&[1_000_000 - DRIFT_PPM, 1_000_000, 1_000_000 + DRIFT_PPM]);
        Self { number, crew, rng, requests: 0, clock_ppm, connection: None }
    }

    fn goes_on(&self) -> bool {
        self.crew.phase.get() != Phase::QUIET
    }

    async fn think(&mut self, most_ms: u64) {
        sleep(self.rng.millis(0, most_ms)).await;
    }

    fn next_id(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.number, self.requests)
    }

    async fn plain(mut self) {
        while self.goes_on() {
            let id = self.next_id();
            self.plain_once(&id).await;
            self.crew.record.events().open.remove(&request_id_hash(&id));
            self.think(600).await;
        }
    }

    async fn plain_once(&mut self, id: &str) {
        let key = self.rng.pick(&KEYS);
        let acquire = request(key, id, 6, None);
        let asked = now();
        let open = (self.number, key.to_owned(), asked);
        self.crew.record.events().open.insert(request_id_hash(id), open);
        let mut last_send;
        let mut in_doubt = false;
        for _ in 0..ATTEMPTS_MAX {
            let node = self.rng.range(1, 3);
            let patience = self.rng.millis(400, 2_500);
            last_send = now();
            match self.ask(node, &Question::Acquire(acquire.clone()), patience).await {
                Some(Reply::Verdict(verdict)) => {
                    let from = if planted::is(Bug::RetryRestartsDeadline) { last_send } else { asked };
                    return self.decided(key, id, &verdict, (asked, from), in_doubt).await;
                }
                Some(Reply::Failure(Failure::Refused { .. })) => {}
                _ => in_doubt = true,
            }
            self.think(150).await;
        }
        let said = if in_doubt { Said::Unknown { id: request_id_hash(id) } } else { Said::Refused };
        self.note(key, asked, (!in_doubt).then(now), said);
    }

    async fn in_line(mut self) {
        while self.goes_on() {
            let (key, id) = (self.rng.pick(&LINES), self.next_id());
            let mut acquire = request(key, &id, 1, Some(Duration::from_secs(4)));
            acquire.claim = self.number * 1_000_000 + self.requests;
            let (asked, node) = (now(), self.rng.range(1, 3));
            // Some hang up early.
            let patience = if self.rng.percent(15) { self.rng.millis(50, 1_500) } else { Duration::from_secs(8) };
            match self.ask(node, &Question::Held(acquire), patience).await {
                Some(Reply::Verdict(verdict)) => self.decided(key, &id, &verdict, (asked, asked), false).await,
                Some(Reply::Failure(Failure::Refused { .. })) => self.note(key, asked, Some(now()), Said::Refused),
                _ => self.note(key, asked, None, Said::Unknown { id: request_id_hash(&id) }),
            }
            self.think(400).await;
        }
    }

    async fn read(mut self) {
        while self.goes_on() {
            let (key, asked, node) = (self.rng.pick(&KEYS), now(), self.rng.range(1, 3));
            let question = Question::Look(Key::new(key).expect("a key"));
            if let Some(Reply::Look(look)) = self.ask(node, &question, Duration::from_secs(2)).await {
                let permit = look.key.map(|view| view.permit);
                self.note(key, asked, Some(now()), Said::Looked { permit, now: look.now });
            }
            self.think(500).await;
        }
    }

    /// Takes note of a verdict and does what a worker does with a permit.
    async fn decided(
        &mut self,
        key: &str,
        id: &str,
        verdict: &Verdict,
        (asked, deadline_from): (Duration, Duration),
        in_doubt: bool,
    ) {
        let received = now();
        let id = request_id_hash(id);
        let Outcome::Granted(grant) = &verdict.outcome else {
            let said = if in_doubt { Said::Unknown { id } } else { Said::Denied };
            return self.note(key, asked, (!in_doubt).then_some(received), said);
        };
        let said = Said::Granted { id, number: grant.first.number, slot: grant.slot, stamp: grant.stamp };
        self.note(key, asked, Some(received), said);
        if !verdict.expired(grant) {
            self.start(key, verdict, grant, received, deadline_from).await;
        }
    }

    async fn start(&mut self, key: &str, verdict: &Verdict, grant: &Grant, received: Duration, from: Duration) {
        let Some(start_before) = grant.start_before else { return };
        let first = received + self.true_span(verdict.wait(grant));
        let last = from + self.true_span(start_before);
        // Simulated time goes in whole milliseconds.
        let (first, last) = (nanos(first).div_ceil(1_000_000), nanos(last) / 1_000_000);
        if first > last {
            return;
        }
        let at = match self.rng.range(0, 9) {
            0..=4 => first,
            5..=7 => last,
            _ => self.rng.range(first, last),
        };
        sleep(Duration::from_millis(at).saturating_sub(now())).await;
        let at = now();
        if nanos(at) / 1_000_000 <= last {
            let start = Start { key: key.to_owned(), at, number: grant.first.number };
            self.crew.record.events().start(start);
        }
    }

    /// How long this worker's clock takes for a span, in true time.
    fn true_span(&self, span: Span) -> Duration {
        let ns = u128::from(span.0) * 1_000_000 / u128::from(self.clock_ppm);
        Duration::from_nanos(u64::try_from(ns).expect("a short span"))
    }

    fn note(&self, key: &str, asked: Duration, answered: Option<Duration>, said: Said) {
        let answer = Answer { worker: self.number, key: key.to_owned(), asked, answered, said };
        self.crew.record.events().answer(answer);
    }

    /// Puts a question to a node; `None` if the answer is missing.
    async fn ask(&mut self, node: u64, question: &Question, patience: Duration) -> Option<Reply> {
        let kept = self.connection.take().filter(|(to, _)| *to == node);
        let gates = self.crew.gates.clone();
        let conversation = async move {
            let mut connection = match kept {
                Some((_, connection)) => connection,
                None => gates.connect(WORKERS, node, DOOR_PORT).await.ok()?,
            };
            send(&mut connection.output, question).await.ok()?;
            let reply = receive::<Reply>(&mut connection.input).await.ok()?;
            Some((connection, reply))
        };
        let (connection, reply) = timeout(patience, conversation).await.ok()??;
        self.connection = Some((node, connection));
        Some(reply)
    }
}
