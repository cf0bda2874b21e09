//! What happened lately, for people: permits by key, usage by second and minute, and the audit trail, in sled.
//!
//! Invariants
//! - History is not truth. It may be lost, in part or as a whole, and nothing but history is lost with it.
//! - Nothing of it is on the path of an answer to a worker: [`History::feed`] never waits and never fails. What does not
//!   fit is dropped and counted.
//! - An entry is recorded once, and whole: what it brought lies in the same batch as its index, and what comes again after a
//!   restart is skipped.
//! - Events are gathered and written together, after a second when they are few and after ten at most: to a reader the history
//!   is that far behind.
//! - Everything is bounded, in bytes and in age (`store.rs`). Buckets of usage go by cluster time; what is too old goes by
//!   this node's wall clock, which every record carries for people.
//! - A database that is damaged, hangs or panics, when it is opened or later, is moved aside; the node serves on
//!   (`opening.rs`, `writer.rs`).
//!
//! Not here: what an applied entry means (whoever feeds it translates to [`Event`]), how answers look (`http/`).

mod bundle;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod damage_tests;
mod desk;
mod event;
pub mod feed;
mod meters;
mod names;
mod opening;
#[cfg(test)]
mod oracle_tests;
mod place;
mod read;
mod record;
mod shared;
mod store;
#[cfg(test)]
mod store_tests;
mod usage;
mod view;
mod write;
mod writer;

pub use event::{Applied, Audit, Event};
pub use record::Counts;
pub use view::{AuditLine, Bucket, Denied, Depth, KeyHistory, Permit, Usage};

use crate::clock::wall_millis;
use crate::limiter::Key;
use opening::guarded;
use shared::{Message, Shared, State};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use store::{Broken, Store};
use thiserror::Error;

/// Messages that may wait for the writer, whatever is in them.
const MESSAGES_QUEUED_MAX: usize = 16_384;

/// Where the history lies and how much of it there may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A directory of its own. What is damaged is moved beside it.
    pub dir: PathBuf,
    /// Bound of its files; between two looks at them, a second apart, they may grow past it.
    pub bytes_max: u64,
    /// Bound of its age, by the wall clock.
    pub age_max: Duration,
    /// How long opening may take before the database counts as damaged.
    pub open_within: Duration,
}

/// There is no history to read just now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// The history of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct History {
    shared: Arc<Shared>,
    messages: SyncSender<Message>,
}

impl History {
    /// Starts the thread that opens the database and writes it. Comes back at once; until it is open, events queue up.
    pub fn start(settings: Settings) -> Self {
        let (messages, receiver) = sync_channel(MESSAGES_QUEUED_MAX);
        let shared = Arc::new(Shared::new());
        let writer = writer::Writer::new(settings, Arc::clone(&shared), receiver);
        match thread::Builder::new().name("history".to_owned()).spawn(move || writer.run()) {
            Ok(thread) => shared.set_writer(thread.thread().clone()),
            Err(error) => {
                tracing::error!(%error, "no thread for the history: this node serves without");
                shared.set_state(State::Closed(format!("no thread for it: {error}")));
                shared.end();
            }
        }
        Self { shared, messages }
    }

    /// Tells of an applied entry. Never waits: what does not fit into the queue is dropped and counted. Entries have to come
    /// in the order of the log; one at or below the last recorded index is skipped.
    pub fn feed(&self, applied: Applied) {
        self.send(Message::Applied(applied));
    }

    /// Tells of a change that stands in no log entry, such as a new leader. Never waits, like [`History::feed`]. It is never
    /// taken for one that came before.
    pub fn note(&self, event: Audit) {
        self.send(Message::Note(event));
    }

    fn send(&self, message: Message) {
        let (events, weight) = (message.events(), message.weight());
        if self.shared.closing.load(Ordering::Acquire) || !self.shared.reserve(weight) {
            self.shared.dropped(events);
        } else if self.messages.try_send(message).is_err() {
            self.shared.unreserve(weight);
            self.shared.dropped(events);
        }
    }

    /// What is remembered of a key. Reads the disk: not for an async task.
    pub fn key(&self, key: &Key, depth: &Depth) -> Result<KeyHistory, Unavailable> {
        self.read(|store| store.key(key, depth, wall_millis()))
    }

    /// Usage over the last hour of cluster time, of everything or of one policy, with at most so many policies and keys.
    /// Reads the disk: not for an async task.
    pub fn usage(&self, policy: Option<&str>, most: usize) -> Result<Usage, Unavailable> {
        self.read(|store| store.usage(policy, most))
    }

    /// The newest lines of the audit trail, newest first. Reads the disk: not for an async task.
    pub fn audit(&self, most: usize) -> Result<Vec<AuditLine>, Unavailable> {
        self.read(|store| store.audit_lines(most))
    }

    /// Writes what is queued, flushes and stops; what is told from now on is dropped. Comes back when that is done, or after
    /// `within`: not for an async task.
    pub fn close(&self, within: Duration) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake();
        if !self.shared.wait_for_end(within) {
            tracing::warn!(?within, "the history did not close in time; its end may be lost");
        }
    }

    fn read<T>(&self, question: impl FnOnce(&Store) -> Result<T, Broken>) -> Result<T, Unavailable> {
        let store = match self.shared.state() {
            State::Open(store) => store,
            State::Closed(why) => return Err(Unavailable(why)),
        };
        guarded(|| question(&store)).map_err(|broken| {
            let why = broken.to_string();
            self.shared.report(Arc::clone(&store), why.clone());
            self.shared.wake();
            Unavailable(why)
        })
    }
}
