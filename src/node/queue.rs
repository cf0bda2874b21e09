//! The bounded queue in front of the proposer.
//!
//! Whoever submits learns exactly how certain the outcome is. A request that is given up while it still waits in the queue
//! was certainly not proposed; the two sides race for that on one atomic.

use super::verdict::Verdict;
use crate::clock::Deadline;
use crate::metric_names;
use crate::state::Command;
use metrics::{Gauge, gauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

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
    /// Certainly not applied: this leader's disk is full, or those of most nodes.
    DiskFull,
    /// May or may not be applied.
    Unknown(String),
}

/// A request on its way through the queue.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) command: Command,
    pub(super) answer: oneshot::Sender<Decided>,
    state: Arc<AtomicU8>,
}

impl Ticket {
    /// Whether the submitter still waits: from here on the outcome is uncertain until it is known.
    pub(super) fn take(&self) -> bool {
        self.state.compare_exchange(QUEUED, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The submitting side of a ticket.
#[derive(Debug)]
pub(super) struct Waiting {
    state: Arc<AtomicU8>,
    answer: oneshot::Receiver<Decided>,
}

impl Waiting {
    /// Waits for the outcome until `deadline`. A request that has not even left the queue at `queued_until` is given up
    /// then: nothing moves, and it is certain that nothing happened to it.
    pub(super) async fn until(mut self, queued_until: Deadline, deadline: Deadline) -> Decided {
        for instant in [queued_until.min(deadline), deadline] {
            match tokio::time::timeout_at(instant.instant(), &mut self.answer).await {
                Ok(Ok(decided)) => return decided,
                Ok(Err(_)) => return Decided::Unknown("the node stopped before the outcome was known".to_owned()),
                Err(_) if self.abandon() => return Decided::NoQuorum,
                Err(_) => {}
            }
        }
        Decided::Unknown("no majority confirmed the request in time".to_owned())
    }

    fn abandon(&self) -> bool {
        self.state.compare_exchange(QUEUED, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The submitting end.
#[derive(Debug)]
pub(super) struct Queue {
    tickets: mpsc::Sender<Ticket>,
    pending: Arc<Pending>,
}

/// How many requests wait in the queue or are in flight.
#[derive(Debug)]
pub(super) struct Pending {
    count: AtomicUsize,
    shown: Gauge,
}

impl Queue {
    /// A queue for `most` requests, its other end, and the count of both.
    pub(super) fn bounded(most: usize) -> (Self, mpsc::Receiver<Ticket>, Arc<Pending>) {
        let (tickets, receiver) = mpsc::channel(most);
        let pending = Arc::new(Pending { count: AtomicUsize::new(0), shown: gauge!(metric_names::PROPOSALS_PENDING) });
        (Self { tickets, pending: Arc::clone(&pending) }, receiver, pending)
    }

    /// Queues a request; `None` when the queue is full.
    pub(super) fn submit(&self, command: Command) -> Option<Waiting> {
        let state = Arc::new(AtomicU8::new(QUEUED));
        let (sender, answer) = oneshot::channel();
        let ticket = Ticket { command, state: Arc::clone(&state), answer: sender };
        self.pending.changed(1, 0);
        if self.tickets.try_send(ticket).is_err() {
            self.pending.changed(0, 1);
            return None;
        }
        Some(Waiting { state, answer })
    }
}

impl Pending {
    /// Counts, and shows the count.
    pub(super) fn changed(&self, added: usize, removed: usize) {
        let change = added.wrapping_sub(removed);
        let pending = self.count.fetch_add(change, Ordering::Relaxed).wrapping_add(change);
        self.shown.set(metric_names::gauge_value(pending as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Key;
    use std::time::Duration;

    fn acquire() -> Command {
        Command::Reset(Key::new("k").unwrap())
    }

    /// P7: "queues: everything has a limit and a clear error past it".
    #[test]
    fn a_full_queue_takes_no_more_until_there_is_room() {
        let (queue, mut tickets, pending) = Queue::bounded(2);
        let held = [queue.submit(acquire()), queue.submit(acquire())];
        assert!(held.iter().all(Option::is_some));
        assert!(queue.submit(acquire()).is_none());
        assert_eq!(pending.count.load(Ordering::Relaxed), 2, "a refused one does not count");
        tickets.try_recv().unwrap();
        assert!(queue.submit(acquire()).is_some());
    }

    #[tokio::test]
    async fn what_was_never_taken_was_certainly_not_proposed() {
        let (queue, mut tickets, _) = Queue::bounded(2);
        let waiting = queue.submit(acquire()).unwrap();
        let (now, later) = (Deadline::after(Duration::ZERO), Deadline::after(Duration::from_secs(60)));
        assert!(matches!(waiting.until(now, later).await, Decided::NoQuorum), "without waiting for the deadline");
        assert!(!tickets.try_recv().unwrap().take(), "and the proposer leaves it alone");
    }

    #[tokio::test]
    async fn what_was_taken_and_not_answered_is_unknown() {
        let (queue, mut tickets, _) = Queue::bounded(2);
        let waiting = queue.submit(acquire()).unwrap();
        let ticket = tickets.try_recv().unwrap();
        assert!(ticket.take());
        let (now, later) = (Deadline::after(Duration::ZERO), Deadline::after(Duration::from_secs(60)));
        assert!(matches!(waiting.until(now, now).await, Decided::Unknown(_)));

        let waiting = queue.submit(acquire()).unwrap();
        drop(tickets.try_recv().unwrap());
        assert!(matches!(waiting.until(later, later).await, Decided::Unknown(_)));
    }
}
