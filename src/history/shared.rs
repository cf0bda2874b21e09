//! What the handle and the writing thread have in common.

use super::event::{Applied, Audit};
use super::meters::Meters;
use super::store::Store;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Events that may wait for the writer; past it they are dropped.
pub(super) const EVENTS_QUEUED_MAX: usize = 65_536;

/// What goes to the writer.
#[derive(Debug)]
pub(super) enum Message {
    Applied(Applied),
    Note(Audit),
    /// Nothing; there is something else to look at.
    Wake,
}

impl Message {
    /// What it weighs in the queue, and counts as when it is lost.
    pub(super) fn events(&self) -> usize {
        match self {
            Self::Applied(applied) => applied.events.len(),
            Self::Note(_) => 1,
            Self::Wake => 0,
        }
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
    /// Events in the queue.
    pub(super) queued: AtomicUsize,
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

    /// Takes a place in the queue for so many events, if there is one. One message always fits into an empty queue.
    pub(super) fn reserve(&self, events: usize) -> bool {
        let before = self.queued.fetch_add(events, Ordering::Relaxed);
        let fits = before == 0 || before.saturating_add(events) <= EVENTS_QUEUED_MAX;
        if !fits {
            self.unreserve(events);
        }
        fits
    }

    pub(super) fn unreserve(&self, events: usize) {
        self.queued.fetch_sub(events, Ordering::Relaxed);
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
