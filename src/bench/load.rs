//! The load itself: threads that drive connections, and what they saw.

use super::dialect::Answer;
use super::histogram::{Quantiles, Second, Tally};
use super::pacer::Pacer;
use super::plan::Plan;
use super::wire::Wire;
use crate::clock::Stopwatch;
use serde::Serialize;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::task::LocalSet;

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// A request that takes longer is an error, and its connection is made anew.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Before a connection that broke is made again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// What a load was answered.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Decisions a second.
    pub per_second: f64,
    /// Granted in all.
    pub granted: u64,
    /// Decided and not granted.
    pub denied: u64,
    /// Not decided: errors, and connections that broke.
    pub failed: u64,
    /// From the instant a request was sent, or in open loop was due, in milliseconds.
    pub latency_ms: Quantiles,
    /// Second by second.
    pub seconds: Vec<Second>,
}

/// What all threads share.
struct Shared {
    plan: Plan,
    clock: Stopwatch,
    decided: AtomicU64,
    over: AtomicBool,
    numbers: AtomicU64,
}

/// Runs a load to its end. `tell` hears now and then how much of the time has passed and how much was decided.
pub fn measure(plan: &Plan, tell: &mut dyn FnMut(Duration, u64)) -> io::Result<Measured> {
    let (decided, numbers) = (AtomicU64::new(0), AtomicU64::new(0));
    let (clock, over) = (Stopwatch::start(), AtomicBool::new(false));
    let shared = Arc::new(Shared { plan: plan.clone(), clock, decided, over, numbers });
    let threads: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("load-{thread}")).spawn(move || drive(thread, &shared))
        })
        .collect::<io::Result<_>>()?;
    let end = plan.warm_up + plan.duration;
    while shared.clock.elapsed() < end && !threads.iter().all(thread::JoinHandle::is_finished) {
        thread::sleep(TELL_EVERY.min(end.saturating_sub(shared.clock.elapsed())));
        tell(shared.clock.elapsed(), shared.decided.load(Ordering::Relaxed));
    }
    shared.over.store(true, Ordering::Relaxed);
    let mut all = Tally::new();
    for thread in threads {
        let tally = thread.join().map_err(|_| io::Error::other("a thread of the load panicked"))??;
        all.add(&tally);
    }
    // The last, begun second is of those that were still on their way.
    let whole = usize::try_from(plan.duration.as_secs()).unwrap_or(usize::MAX);
    all.seconds.truncate(whole);
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    let per_second = (all.granted + all.denied) as f64 / plan.duration.as_secs_f64();
    let Tally { granted, denied, failed, .. } = all;
    Ok(Measured { per_second, granted, denied, failed, latency_ms: all.quantiles(), seconds: all.seconds })
}

/// One thread and its share of the connections.
fn drive(thread: usize, shared: &Arc<Shared>) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tally = Rc::new(RefCell::new(Tally::new()));
    LocalSet::new().block_on(&runtime, async {
        let pacer = Rc::new(Pacer::new(shared.clock)?);
        let mine = (thread..shared.plan.connections).step_by(shared.plan.threads);
        let tasks: Vec<_> = mine
            .map(|connection| {
                let conversation = converse(connection, Arc::clone(shared), Rc::clone(&pacer), Rc::clone(&tally));
                tokio::task::spawn_local(conversation)
            })
            .collect();
        let all = async {
            for task in tasks {
                task.await.map_err(io::Error::other)??;
            }
            Ok::<(), io::Error>(())
        };
        tokio::select! {
            ended = all => ended,
            broken = pacer.run() => broken,
        }
    })?;
    Ok(Rc::unwrap_or_clone(tally).into_inner())
}

/// One connection, one request after the other.
async fn converse(
    connection: usize,
    shared: Arc<Shared>,
    pacer: Rc<Pacer>,
    tally: Rc<RefCell<Tally>>,
) -> io::Result<()> {
    let Shared { plan, clock, decided, over, numbers } = &*shared;
    let address = plan.addresses[connection % plan.addresses.len()];
    // The first one has to succeed: nobody is there, or everybody is told so.
    let mut wire = Some(Wire::connect(address, plan.dialect.is_http()).await?);
    let mut random = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(connection as u64 + 1) | 1;
    let mut request = Vec::with_capacity(512);
    let end = plan.warm_up + plan.duration;
    let mut schedule = plan.rate.map(|rate| Schedule::new(plan, rate, connection));
    loop {
        let since = match &mut schedule {
            // Open loop: what is late is sent at once, and its latency counts from when it was due.
            Some(schedule) => {
                let due = schedule.next();
                pacer.until(due).await?;
                due
            }
            None => clock.elapsed(),
        };
        if since >= end || over.load(Ordering::Relaxed) {
            return Ok(());
        }
        request.clear();
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        plan.dialect.write(&mut request, &mut || plan.key(&mut random), number, &plan.limit);
        let Some(open) = &mut wire else {
            tokio::time::sleep(AGAIN_AFTER).await;
            wire = Wire::connect(address, plan.dialect.is_http()).await.ok();
            continue;
        };
        let answer = if let Ok(Ok(response)) = tokio::time::timeout(ANSWER_WITHIN, open.ask(&request)).await {
            plan.dialect.judge(&response)
        } else {
            wire = None;
            Answer::Failed
        };
        let now = clock.elapsed();
        if let Answer::Granted(count) | Answer::Denied(count) = answer {
            decided.fetch_add(count, Ordering::Relaxed);
        }
        if since >= plan.warm_up && now < end {
            tally.borrow_mut().record(now.saturating_sub(plan.warm_up), now.saturating_sub(since), answer);
        }
    }
}

/// When the requests of one connection are due.
struct Schedule {
    next: f64,
    every: f64,
}

impl Schedule {
    #[expect(clippy::cast_precision_loss, reason = "connections are few")]
    fn new(plan: &Plan, rate: f64, connection: usize) -> Self {
        let every = plan.connections as f64 / rate;
        Self { next: every * connection as f64 / plan.connections as f64, every }
    }

    fn next(&mut self) -> Duration {
        let due = self.next;
        self.next += self.every;
        Duration::from_secs_f64(due)
    }
}

#[cfg(test)]
mod tests {
    use super::super::dialect::{Dialect, WaitMode};
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    /// Answers every request after `pause`, but the `stall`th after half a second.
    fn server(pause: Duration, stall: usize) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                thread::spawn(move || {
                    let mut bytes = [0; 4_096];
                    let mut answered = 0;
                    while socket.read(&mut bytes).is_ok_and(|read| read > 0) {
                        answered += 1;
                        thread::sleep(if answered == stall { Duration::from_millis(500) } else { pause });
                        let body = r#"{"granted":true}"#;
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                        if socket.write_all(format!("{head}{body}").as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        address
    }

    fn plan(address: SocketAddr, rate: Option<f64>) -> Plan {
        Plan {
            addresses: vec![address],
            dialect: Dialect::Acquire { wait: WaitMode::Client, ids: false },
            connections: 2,
            threads: 2,
            rate,
            keys: 10,
            hot_percent: 0,
            limit: "{}".to_owned(),
            warm_up: Duration::from_millis(100),
            duration: Duration::from_secs(1),
        }
    }

    #[test]
    fn closed_loop_counts_what_was_answered() {
        let measured = measure(&plan(server(Duration::from_millis(1), 0), None), &mut |_, _| {}).unwrap();
        assert!(measured.granted > 50 && measured.failed == 0 && measured.denied == 0, "{measured:?}");
        assert!(measured.latency_ms.p50 >= 1.0, "{measured:?}");
    }

    /// A stall of half a second hits the one request that waits, and all that were due meanwhile: of the hundred of a connection
    /// at least the twenty that were due in its first 400 ms are late by 100 ms. A machine that is busy makes more of them late.
    #[test]
    fn open_loop_counts_from_when_a_request_was_due() {
        let plan = Plan { duration: Duration::from_secs(2), ..plan(server(Duration::ZERO, 10), Some(100.0)) };
        let measured = measure(&plan, &mut |_, _| {}).unwrap();
        assert!(measured.latency_ms.p90 >= 100.0, "those that were due while it stalled waited as well: {measured:?}");
    }

    #[test]
    fn nobody_there_is_an_error() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(measure(&plan(address, None), &mut |_, _| {}).is_err());
    }
}
