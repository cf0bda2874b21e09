//! What the handle and the writing thread have in common.

use super::event::{Applied, Audit};
use super::meters::Meters;
use super::store::Store;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Duration;

/// Events that may wait for the writer; past it they are dropped.
pub(super) const EVENTS_QUEUED_MAX: usize = 65_536;
/// So many wake the writer before its time.
const EVENTS_QUEUED_MANY: usize = EVENTS_QUEUED_MAX / 8;

/// What goes to the writer.
#[derive(Debug)]
pub(super) enum Message {
    Applied(Applied),
    Note(Audit),
}

impl Message {
    /// What it counts as when it is lost.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::Applied(applied) => applied.events.len(),
            Self::Note(_) => 1,
        }
    }

    /// What it weighs in the queue.
    pub(super) fn weight(&self) -> usize {
        self.events().max(1)
    }
}

/// The database as readers find it.
#[derive(Debug, Clone)]
pub(super) enum State {
    Open(Arc<Store>),
    /// Why there is none.
    Closed(String),
}

/// Shared by all handles and the writer.
#[derive(Debug)]
pub(super) struct Shared {
    state: RwLock<State>,
    /// What is in the queue, by its weight.
    pub(super) queued: AtomicUsize,
    writer: OnceLock<Thread>,
    pub(super) closing: AtomicBool,
    /// What a reader found broken, and in which database; the writer sees to it.
    broken: Mutex<Option<(Arc<Store>, String)>>,
    ended: Mutex<bool>,
    has_ended: Condvar,
    pub(super) meters: Meters,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            state: RwLock::new(State::Closed("the history is being opened".to_owned())),
            queued: AtomicUsize::new(0),
            writer: OnceLock::new(),
            closing: AtomicBool::new(false),
            broken: Mutex::new(None),
            ended: Mutex::new(false),
            has_ended: Condvar::new(),
            meters: Meters::new(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_state(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Takes a place in the queue for a message of this weight, if there is one. One message always fits into an empty queue.
    pub(super) fn reserve(&self, weight: usize) -> bool {
        let before = self.queued.fetch_add(weight, Ordering::Relaxed);
        let after = before.saturating_add(weight);
        if before < EVENTS_QUEUED_MANY && after >= EVENTS_QUEUED_MANY {
            self.wake();
        }
        let fits = before == 0 || after <= EVENTS_QUEUED_MAX;
        if !fits {
            self.unreserve(weight);
        }
        fits
    }

    /// Who is to be woken when there is something to do at once.
    pub(super) fn set_writer(&self, writer: Thread) {
        // There is one writer, and it is set once.
        let _ = self.writer.set(writer);
    }

    /// Lets the writer look at once.
    pub(super) fn wake(&self) {
        if let Some(writer) = self.writer.get() {
            writer.unpark();
        }
    }

    pub(super) fn unreserve(&self, weight: usize) {
        self.queued.fetch_sub(weight, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, events: usize) {
        self.meters.dropped.increment(events as u64);
    }

    pub(super) fn report(&self, store: Arc<Store>, why: String) {
        *lock(&self.broken) = Some((store, why));
    }

    pub(super) fn take_report(&self) -> Option<(Arc<Store>, String)> {
        lock(&self.broken).take()
    }

    pub(super) fn end(&self) {
        *lock(&self.ended) = true;
        self.has_ended.notify_all();
    }

    /// Waits until the writer is done. Says whether it is.
    pub(super) fn wait_for_end(&self, within: Duration) -> bool {
        let waited = self.has_ended.wait_timeout_while(lock(&self.ended), within, |ended| !*ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
