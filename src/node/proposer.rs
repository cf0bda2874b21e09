//! The one task that stamps and proposes.
//!
//! It takes everything that queued up while earlier entries were on their way, up to a bound, stamps it with the time of its
//! own timeline, and keeps several entries in flight. Only a leader's proposer stamps, and a stamp is only good for the
//! leader id it was made under: on every election the timeline starts anew from the last stamped entry in the log.

use super::forward::Reply;
use super::queue::{Decided, Pending, Queue, Ticket, Waiting};
use super::verdict::Verdict;
use crate::clock::{Clocks, Deadline, Stopwatch, Timeline};
use crate::failpoint;
use crate::limiter::Time;
use crate::limits::{
    BATCH_COMMANDS_MAX, BATCH_WEIGHT_MAX, BATCHES_IN_FLIGHT_MAX as IN_FLIGHT_MAX, LEADER_WAIT_MS, PROPOSALS_QUEUED_MAX,
};
use crate::metric_names;
use crate::planted::{self, Place};
use crate::raft::{Consensus, Observer, Proposed, ReadRefused, Status};
use crate::state::{Applied, Batch, Command, LeaderId, Stamp};
use crate::watch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// An idle leader writes its time this often, so that a cold restart loses little of it.
const TICK: Duration = Duration::from_secs(2);
/// A leader whose state has more to forget than one entry takes along writes the next one this soon.
const TICK_BUSY: Duration = Duration::from_millis(50);
/// When no entry has come back for this long, no majority answers.
const STALLED: Duration = Duration::from_millis(LEADER_WAIT_MS);

/// While an entry is in flight the next one leaves this long after it, unless it is back before.
const APART: Duration = Duration::from_millis(4);
/// Fewer than so many requests wait for nobody else.
const TOGETHER: usize = 4;
/// How long an entry waits at most for those who were just answered, and how many turns of the runtime it leaves to others each
/// time that one has come.
const LINGER: Duration = Duration::from_millis(1);
const LINGER_TURNS: usize = 4;

/// The proposer, as the rest of the node holds it.
pub(super) struct Proposer {
    queue: Queue,
    shared: Arc<Shared>,
}

struct Shared {
    consensus: Arc<Consensus>,
    clocks: Arc<dyn Clocks>,
    observer: Option<Arc<dyn Observer>>,
    keys_max: u64,
    tenure: Mutex<Option<Tenure>>,
    in_flight: Arc<Semaphore>,
    paused: watch::Sender<bool>,
    /// The disks of so many are full that nothing could be committed.
    full: AtomicBool,
    pending: Arc<Pending>,
}

/// One term of office and its time. A copy made with a stamp is what answers for that entry are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tenure {
    leader: LeaderId,
    timeline: Timeline,
}

impl Proposer {
    /// Starts the task. It ends when the last handle is dropped.
    pub(super) fn start(
        consensus: Arc<Consensus>,
        (clocks, observer): (Arc<dyn Clocks>, Option<Arc<dyn Observer>>),
        keys_max: u64,
    ) -> Self {
        let (queue, tickets, pending) = Queue::bounded(PROPOSALS_QUEUED_MAX);
        let shared = Arc::new(Shared {
            consensus,
            clocks,
            observer,
            keys_max,
            tenure: Mutex::new(None),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT_MAX as usize)),
            paused: watch::Sender::new(false),
            full: AtomicBool::new(false),
            pending,
        });
        shared.pending.changed(0, 0);
        let status = shared.consensus.status();
        tokio::spawn(Arc::clone(&shared).run(tickets, status));
        Self { queue, shared }
    }

    /// Queues a request; `None` when the queue is full.
    pub(super) fn submit(&self, command: Command) -> Option<Waiting> {
        self.queue.submit(command)
    }

    /// Cluster time on this leader's own timeline; `None` while it does not lead.
    pub(super) fn time(&self) -> Option<Time> {
        let tenure = *self.shared.tenure();
        tenure.map(|tenure| tenure.timeline.at(self.shared.clocks.read()))
    }

    /// Whether so many disks are full that nothing more should be proposed.
    pub(super) fn set_full(&self, full: bool) {
        self.shared.full.store(full, Ordering::Relaxed);
    }

    /// Whether nothing more is proposed for want of room on disks.
    pub(super) fn is_full(&self) -> bool {
        self.shared.is_full()
    }

    /// Waits until a majority has confirmed that this node leads; else what to answer.
    pub(super) async fn confirmed(&self, deadline: Deadline) -> Result<(), Reply> {
        match tokio::time::timeout_at(deadline.instant(), self.shared.consensus.read_index()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(ReadRefused::NotLeading)) => Err(Reply::NotLeading),
            Ok(Err(ReadRefused::NoQuorum)) | Err(_) => Err(Reply::NoQuorum),
        }
    }

    /// Stops proposing and waits until nothing is in flight: what queues up meanwhile waits.
    pub(super) async fn pause(&self, within: Duration) {
        self.shared.paused.send_replace(true);
        // What is still in flight after that is answered as unknown when leadership is gone.
        let _ = tokio::time::timeout(within, self.shared.in_flight.acquire_many(IN_FLIGHT_MAX)).await;
    }

    /// Goes on, or bounces what queued up if this node does not lead any more.
    pub(super) fn resume(&self) {
        self.shared.paused.send_replace(false);
    }
}

impl Shared {
    async fn run(self: Arc<Self>, mut tickets: mpsc::Receiver<Ticket>, mut status: watch::Receiver<Status>) {
        let mut paused = self.paused.subscribe();
        let mut gathered = Vec::new();
        // How many the last entry took along.
        let mut rode = 0;
        let mut next_tick = Deadline::after(TICK);
        let mut next_leaves = Deadline::after(APART);
        loop {
            let leads = self.follow(&mut status);
            let held = *paused.borrow_and_update() && leads;
            let left_over = !gathered.is_empty() && !held;
            tokio::select! {
                biased;
                changed = status.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    continue;
                }
                _ = paused.changed() => continue,
                () = std::future::ready(()), if left_over => {}
                taken = tickets.recv_many(&mut gathered, BATCH_COMMANDS_MAX), if !held => {
                    if taken == 0 {
                        return;
                    }
                }
                () = tokio::time::sleep_until(next_tick.instant()), if leads && !held => {}
            }
            let Some(place) = self.place(&next_leaves).await else {
                // Nothing has come back for so long: what waits is told so, and the queue stays usable.
                self.bounce(&mut gathered, &mut tickets);
                continue;
            };
            ride_along(&mut gathered, &mut tickets, rode).await;
            // Leadership may have changed while this waited: the stamp is made under what holds now.
            if self.follow(&mut status) && *paused.borrow() {
                continue;
            }
            let batch = self.take(&mut gathered);
            rode = batch.len();
            if self.is_full() {
                // Time stands still in an idle cluster that is full: lost time is safe.
                next_tick = Deadline::after(TICK);
                self.answer_all(batch.into_iter(), || Decided::DiskFull);
                continue;
            }
            next_tick = Deadline::after(if self.consensus.has_backlog() { TICK_BUSY } else { TICK });
            next_leaves = Deadline::after(APART);
            match self.stamp() {
                Some((tenure, stamp)) => self.propose(tenure, stamp, batch, place).await,
                None => self.answer_all(batch.into_iter(), || Decided::NotLeading),
            }
        }
    }

    /// Waits for a place in flight: until nothing is in flight any more, or until the last entry has been on its way for so
    /// long that waiting for it would cost more than another one. An entry costs every node many times what a request in it
    /// does, so that requests ride together where they can. `None` when nothing has come back for long.
    async fn place(&self, left: &Deadline) -> Option<OwnedSemaphorePermit> {
        let all = Arc::clone(&self.in_flight).acquire_many_owned(IN_FLIGHT_MAX);
        if let Ok(all) = tokio::time::timeout_at(left.instant(), all).await {
            return all.ok()?.split(1);
        }
        let one = Arc::clone(&self.in_flight).acquire_owned();
        tokio::time::timeout(STALLED, one).await.ok()?.ok()
    }

    fn is_full(&self) -> bool {
        self.consensus.is_full() || self.full.load(Ordering::Relaxed)
    }

    /// Reads the time for an entry whose commands are all gathered. `None` while this node does not lead.
    fn stamp(&self) -> Option<(Tenure, Stamp)> {
        let mut tenure = self.tenure();
        let tenure = tenure.as_mut()?;
        let time = tenure.timeline.stamp(self.clocks.read());
        let stamp = Stamp { leader: tenure.leader, time };
        if let Some(observer) = &self.observer {
            observer.stamped(&stamp);
        }
        Some((*tenure, stamp))
    }

    /// Takes as many tickets as make one entry: one command may be a thousand requests.
    fn take(&self, gathered: &mut Vec<Ticket>) -> Vec<Ticket> {
        let mut weight = 0;
        let fitting = gathered.iter().take_while(|ticket| {
            weight += ticket.command.weight();
            weight <= BATCH_WEIGHT_MAX
        });
        let count = fitting.count().max(1).min(gathered.len());
        let mut batch: Vec<_> = gathered.drain(..count).collect();
        batch.retain(Ticket::take);
        self.pending.changed(0, count - batch.len());
        batch
    }

    fn bounce(&self, gathered: &mut Vec<Ticket>, tickets: &mut mpsc::Receiver<Ticket>) {
        let mut waiting = std::mem::take(gathered);
        while let Ok(ticket) = tickets.try_recv() {
            waiting.push(ticket);
        }
        let all = waiting.len();
        waiting.retain(Ticket::take);
        self.pending.changed(0, all - waiting.len());
        self.answer_all(waiting.into_iter(), || Decided::NoQuorum);
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
        planted::stall(Place::Stamped, tenure.leader.node).await;
        failpoint::reached("propose");
        let proposed = self.consensus.propose(tenure.leader, batch).await;
        let shared = Arc::clone(self);
        tokio::spawn(async move {
            let proposed = proposed.await;
            planted::stall(Place::Applied, tenure.leader.node).await;
            drop(place);
            failpoint::reached("answer");
            shared.fan_out(tenure, proposed, answers);
        });
    }

    fn fan_out(&self, tenure: Tenure, proposed: Proposed, answers: Vec<oneshot::Sender<Decided>>) {
        let all = answers.len();
        match proposed {
            Proposed::Applied(Applied::Decided { outcomes, .. }) => {
                assert_eq!(outcomes.len(), all, "one outcome per command");
                // T_r: read when answering, on the timeline of the proposer, also if it does not lead any more.
                let at = tenure.timeline.at(self.clocks.read());
                for (answer, outcome) in answers.into_iter().zip(outcomes) {
                    let _ = answer.send(Decided::Verdict(Verdict { outcome, at }));
                }
            }
            Proposed::Applied(Applied::StaleStamp | Applied::Nothing) | Proposed::NotLeading => {
                send_all(answers, || Decided::NotLeading);
            }
            Proposed::NoQuorum => send_all(answers, || Decided::NoQuorum),
            Proposed::Unknown(why) => send_all(answers, || Decided::Unknown(why.clone())),
        }
        self.pending.changed(0, all);
    }

    fn answer_all(&self, tickets: impl Iterator<Item = Ticket>, decided: impl Fn() -> Decided) {
        let mut answered = 0;
        for ticket in tickets {
            let _ = ticket.answer.send(decided());
            answered += 1;
        }
        self.pending.changed(0, answered);
    }

    fn tenure(&self) -> std::sync::MutexGuard<'_, Option<Tenure>> {
        self.tenure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn send_all(answers: Vec<oneshot::Sender<Decided>>, decided: impl Fn() -> Decided) {
    for answer in answers {
        // A caller that has gone away does not want to know.
        let _ = answer.send(decided());
    }
}

/// Takes in everything that queued up while a place was awaited. When an entry comes back, all of its callers are answered,
/// and most of them ask again at once: where many ride together, the next entry waits for three quarters of them, as long as they
/// really come.
async fn ride_along(gathered: &mut Vec<Ticket>, tickets: &mut mpsc::Receiver<Ticket>, rode: usize) {
    let around = rode + gathered.len() + tickets.len();
    let wanted = if around < TOGETHER { 0 } else { (around - around / 4).min(BATCH_COMMANDS_MAX) };
    let watch = Stopwatch::start();
    loop {
        while gathered.len() < BATCH_COMMANDS_MAX
            && let Ok(ticket) = tickets.try_recv()
        {
            gathered.push(ticket);
        }
        if gathered.len() >= wanted || watch.elapsed() >= LINGER {
            return;
        }
        match tokio::time::timeout(LINGER, tickets.recv()).await {
            Ok(Some(ticket)) => gathered.push(ticket),
            Ok(None) | Err(_) => return,
        }
        // One at a time would be a turn of the runtime for each.
        for _ in 0..LINGER_TURNS {
            tokio::task::yield_now().await;
        }
    }
}
