//! The one task that stamps and proposes.
//!
//! It takes everything that queued up while earlier entries were on their way, up to a bound, stamps it with the time of its
//! own timeline, and keeps several entries in flight. Only a leader's proposer stamps, and a stamp is only good for the
//! leader id it was made under: on every election the timeline starts anew from the last stamped entry in the log.
//!
//! Whoever submits learns exactly how certain the outcome is. A request that is given up while it still waits in the queue
//! was certainly not proposed; the two sides race for that on one atomic.

use super::verdict::Verdict;
use crate::clock::{Clocks, Deadline, Timeline};
use crate::limiter::{Span, Time};
use crate::limits::{BATCH_COMMANDS_MAX, BATCHES_IN_FLIGHT_MAX, PROPOSALS_QUEUED_MAX};
use crate::metric_names;
use crate::raft::{Consensus, Proposed, Status};
use crate::state::{Acquire, Applied, Batch, Command, LeaderId, Outcome, Stamp};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

/// An idle leader writes its time this often, so that a cold restart loses little of it.
const TICK: Duration = Duration::from_secs(2);

const QUEUED: u8 = 0;
const TAKEN: u8 = 1;
const ABANDONED: u8 = 2;

/// What became of one request at this node.
#[derive(Debug)]
pub(super) enum Decided {
    Verdict(Verdict),
    /// Certainly not applied: this node does not lead.
    NotLeading,
    /// Certainly not applied: no majority has confirmed this leader of late.
    NoQuorum,
    /// May or may not be applied.
    Unknown(String),
}

/// A request on its way through the queue.
struct Ticket {
    command: Command,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Decided>,
}

/// The submitting side of a ticket.
pub(super) struct Waiting {
    state: Arc<AtomicU8>,
    answer: oneshot::Receiver<Decided>,
}

impl Waiting {
    /// Waits for the outcome until `deadline`, and then gives up as certainly as it can.
    pub(super) async fn until(self, deadline: Deadline) -> Decided {
        let Self { state, answer } = self;
        match tokio::time::timeout_at(deadline.instant(), answer).await {
            Ok(Ok(decided)) => decided,
            Ok(Err(_)) => Decided::Unknown("the node stopped before the outcome was known".to_owned()),
            Err(_) => match state.compare_exchange(QUEUED, ABANDONED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => Decided::NoQuorum,
                Err(_) => Decided::Unknown("no majority confirmed the request in time".to_owned()),
            },
        }
    }
}

/// The queue in front of the proposer, and what it shows of itself.
pub(super) struct Proposer {
    queue: mpsc::Sender<Ticket>,
    shared: Arc<Shared>,
}

struct Shared {
    consensus: Arc<Consensus>,
    clocks: Arc<dyn Clocks>,
    keys_max: u64,
    tenure: Mutex<Option<Tenure>>,
    in_flight: Arc<Semaphore>,
    paused: watch::Sender<bool>,
    pending: AtomicUsize,
}

/// One term of office and its time. A copy made with a stamp is what answers for that entry are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tenure {
    leader: LeaderId,
    timeline: Timeline,
}

impl Proposer {
    /// Starts the task. It ends when the last handle is dropped.
    pub(super) fn start(consensus: Arc<Consensus>, clocks: Arc<dyn Clocks>, keys_max: u64) -> Self {
        let (queue, tickets) = mpsc::channel(PROPOSALS_QUEUED_MAX);
        let shared = Arc::new(Shared {
            consensus,
            clocks,
            keys_max,
            tenure: Mutex::new(None),
            in_flight: Arc::new(Semaphore::new(BATCHES_IN_FLIGHT_MAX)),
            paused: watch::Sender::new(false),
            pending: AtomicUsize::new(0),
        });
        shared.pending_changed(0, 0);
        let status = shared.consensus.status();
        tokio::spawn(Arc::clone(&shared).run(tickets, status));
        Self { queue, shared }
    }

    /// Queues a request; `None` when the queue is full.
    pub(super) fn submit(&self, acquire: Acquire) -> Option<Waiting> {
        let state = Arc::new(AtomicU8::new(QUEUED));
        let (sender, answer) = oneshot::channel();
        let ticket = Ticket { command: Command::Acquire(acquire), state: Arc::clone(&state), answer: sender };
        self.queue.try_send(ticket).ok()?;
        self.shared.pending_changed(1, 0);
        Some(Waiting { state, answer })
    }

    /// Cluster time on this leader's own timeline; `None` while it does not lead.
    pub(super) fn time(&self) -> Option<Time> {
        let tenure = *self.shared.tenure();
        tenure.map(|tenure| tenure.timeline.at(self.shared.clocks.read()))
    }

    /// Stops proposing and waits until nothing is in flight: what queues up meanwhile waits.
    pub(super) async fn pause(&self, within: Duration) {
        self.shared.paused.send_replace(true);
        let all = u32::try_from(BATCHES_IN_FLIGHT_MAX).unwrap_or(u32::MAX);
        // What is still in flight after that is answered as unknown when leadership is gone.
        let _ = tokio::time::timeout(within, self.shared.in_flight.acquire_many(all)).await;
    }

    /// Goes on, or bounces what queued up if this node does not lead any more.
    pub(super) fn resume(&self) {
        self.shared.paused.send_replace(false);
    }
}

impl Shared {
    async fn run(self: Arc<Self>, mut tickets: mpsc::Receiver<Ticket>, mut status: watch::Receiver<Status>) {
        let mut paused = self.paused.subscribe();
        let mut batch = Vec::new();
        let mut next_tick = Deadline::after(TICK);
        loop {
            // The place in flight comes first: everything that queues up while it is awaited rides along.
            let Ok(place) = Arc::clone(&self.in_flight).acquire_owned().await else { return };
            let leads = self.follow(&mut status);
            let held = *paused.borrow_and_update() && leads;
            tokio::select! {
                changed = status.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    continue;
                }
                _ = paused.changed() => continue,
                taken = tickets.recv_many(&mut batch, BATCH_COMMANDS_MAX), if !held => {
                    if taken == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(next_tick.instant()), if leads && !held => {}
            }
            let taken = batch.len();
            batch.retain(Ticket::take);
            self.pending_changed(0, taken - batch.len());
            // Leadership may have changed while this waited: the stamp is made under what holds now.
            self.follow(&mut status);
            next_tick = Deadline::after(TICK);
            match self.stamp() {
                Some((tenure, stamp)) => self.propose(tenure, stamp, std::mem::take(&mut batch), place).await,
                None => self.answer_all(batch.drain(..), || Decided::NotLeading),
            }
        }
    }

    /// Reads the time for an entry whose commands are all gathered. `None` while this node does not lead.
    fn stamp(&self) -> Option<(Tenure, Stamp)> {
        let mut tenure = self.tenure();
        let tenure = tenure.as_mut()?;
        let time = tenure.timeline.stamp(self.clocks.read());
        Some((*tenure, Stamp { leader: tenure.leader, time }))
    }

    /// Starts a new timeline if this node has just come to lead, ends it if it does not lead any more.
    fn follow(&self, status: &mut watch::Receiver<Status>) -> bool {
        let leading = status.borrow_and_update().leading;
        let mut tenure = self.tenure();
        if tenure.map(|tenure| tenure.leader) != leading {
            *tenure = leading.map(|leader| {
                let timeline = Timeline::rebase(self.consensus.last_stamp(), self.clocks.read());
                tracing::info!(%leader, base = %timeline.base(), "this node leads");
                Tenure { leader, timeline }
            });
        }
        leading.is_some()
    }

    async fn propose(
        self: &Arc<Self>,
        tenure: Tenure,
        stamp: Stamp,
        tickets: Vec<Ticket>,
        place: OwnedSemaphorePermit,
    ) {
        let (commands, answers): (Vec<_>, Vec<_>) =
            tickets.into_iter().map(|ticket| (ticket.command, ticket.answer)).unzip();
        if !commands.is_empty() {
            metrics::histogram!(metric_names::BATCH_SIZE).record(metric_names::gauge_value(commands.len() as u64));
        }
        let batch = Arc::new(Batch { stamp, keys_max: self.keys_max, commands });
        let proposed = self.consensus.propose(tenure.leader, batch).await;
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let proposed = proposed.await;
            drop(place);
            shared.fan_out(tenure, proposed, answers);
        });
    }

    fn fan_out(&self, tenure: Tenure, proposed: Proposed, answers: Vec<oneshot::Sender<Decided>>) {
        let all = answers.len();
        match proposed {
            Proposed::Applied(Applied::Decided { outcomes, .. }) => {
                assert_eq!(outcomes.len(), all, "one outcome per command");
                // T_r: read when answering, on the timeline of the proposer, also if it does not lead any more.
                let now = tenure.timeline.at(self.clocks.read());
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    let _ = answer.send(Decided::Verdict(verdict(outcome, now)));
                }
            }
            Proposed::Applied(Applied::StaleStamp | Applied::Nothing) | Proposed::NotLeading => {
                send_all(answers, || Decided::NotLeading);
            }
            Proposed::NoQuorum => send_all(answers, || Decided::NoQuorum),
            Proposed::Unknown(why) => send_all(answers, || Decided::Unknown(why.clone())),
        }
        self.pending_changed(0, all);
    }

    fn answer_all(&self, tickets: impl Iterator<Item = Ticket>, decided: impl Fn() -> Decided) {
        let mut answered = 0;
        for ticket in tickets {
            let _ = ticket.answer.send(decided());
            answered += 1;
        }
        self.pending_changed(0, answered);
    }

    fn pending_changed(&self, added: usize, removed: usize) {
        let before = self.pending.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
        let pending = before.wrapping_add(added).wrapping_sub(removed);
        metrics::gauge!(metric_names::PROPOSALS_PENDING).set(metric_names::gauge_value(pending as u64));
    }

    fn tenure(&self) -> std::sync::MutexGuard<'_, Option<Tenure>> {
        self.tenure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket {
    /// Whether the submitter still waits: from here on the outcome is uncertain until it is known.
    fn take(&self) -> bool {
        self.state.compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

fn send_all(answers: Vec<oneshot::Sender<Decided>>, decided: impl Fn() -> Decided) {
    for answer in answers {
        // A caller that has gone away does not want to know.
        let _ = answer.send(decided());
    }
}

fn verdict(outcome: Outcome, now: Time) -> Verdict {
    match outcome {
        Outcome::Granted(grant) => Verdict {
            wait: grant.slot.since(now),
            expired: grant.expires_at.is_some_and(|at| now > at),
            outcome: Outcome::Granted(grant),
        },
        other => Verdict { wait: Span::ZERO, expired: false, outcome: other },
    }
}
