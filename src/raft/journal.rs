//! What the log is written to: one ordered stream of records, each read back whole or not at all.
//!
//! [`LogStore`](super::LogStore) keeps the rules of the log; a journal keeps its records. There are two: files
//! (`wal/`), and the twin in memory whose unsynced tail a crash takes away (`memory_disk.rs`).
//!
//! Invariants
//! - Records are durable in the order they were written: a crash keeps a prefix.
//! - A waiter is told that a flush succeeded only when everything written before it is durable.

use super::codec::{WireLogId, WirePayload, WireVote};
use super::synced::{Covered, Synced};
use super::types::TypeConfig;
use crate::clock::{Reading, Stopwatch};
use crate::failpoint;
use crate::limiter::Time;
use crate::metric_names;
use openraft::storage::IOFlushed;
use serde::{Deserialize, Serialize};
use std::io;
use tokio::sync::oneshot;

/// An entry with its position.
pub(super) type Record = (WireLogId, StoredEntry);

/// A log on some medium. Every call is cheap: what takes time happens behind [`Journal::flush`].
pub(super) trait Journal: Send {
    /// What the records so far amount to, durable or not.
    fn state(&self) -> State;
    /// The entries of a range of indexes that are there.
    fn read(&self, from: u64, to: u64) -> Box<dyn Iterator<Item = io::Result<Record>> + '_>;
    fn append(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()>;
    /// Removes all entries from `index` on.
    fn truncate(&mut self, index: u64) -> io::Result<()>;
    /// Removes all entries up to `upto`, which need not be there.
    fn purge(&mut self, upto: WireLogId) -> io::Result<()>;
    fn save_vote(&mut self, vote: WireVote) -> io::Result<()>;
    fn save_committed(&mut self, committed: WireLogId) -> io::Result<()>;
    /// What is kept of time when the entry it stood in is purged.
    fn save_floor(&mut self, floor: Option<Stamped>) -> io::Result<()>;
    /// Makes everything written so far durable, then tells the waiter.
    fn flush(&mut self, waiter: Option<Flushed>) -> io::Result<()>;
}

/// Where a log stands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    pub(super) vote: Option<WireVote>,
    /// The last entry, or the last purged one if there is none after it.
    pub(super) last: Option<WireLogId>,
    pub(super) committed: Option<WireLogId>,
    pub(super) purged: Option<WireLogId>,
    pub(super) floor: Option<Stamped>,
}

/// An entry and when it arrived here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StoredEntry {
    /// Set for stamped entries only.
    pub(super) obs: Option<Reading>,
    pub(super) payload: WirePayload,
}

/// A stamp and the local reading that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamped {
    pub(super) time: Time,
    pub(super) obs: Reading,
}

impl Stamped {
    /// Whether time is later by this observation than by the other, on the same clocks.
    pub(super) fn is_ahead_of(&self, other: &Self) -> bool {
        let lead = |one: &Self| i128::from(one.time.0) - i128::from(one.obs.raw_ns);
        self.obs.clock_id == other.obs.clock_id && lead(self) > lead(other)
    }
}

/// Who waits for a sync, and since when.
pub(super) struct Flushed {
    waiter: Waiter,
    since: Stopwatch,
    /// What is on the disk once it has returned, and where to say so.
    covers: (Covered, Synced),
}

enum Waiter {
    Engine(IOFlushed<TypeConfig>),
    Caller(oneshot::Sender<io::Result<()>>),
}

impl Flushed {
    /// The engine waits, since an append began.
    pub(super) const fn engine(callback: IOFlushed<TypeConfig>, since: Stopwatch, covers: (Covered, Synced)) -> Self {
        Self { waiter: Waiter::Engine(callback), since, covers }
    }

    /// Somebody waits on the other end of the channel.
    pub(super) fn caller(sender: oneshot::Sender<io::Result<()>>, covers: (Covered, Synced)) -> Self {
        Self { waiter: Waiter::Caller(sender), since: Stopwatch::start(), covers }
    }

    /// Tells the waiter how it ended.
    pub(super) fn done(self, result: io::Result<()>) {
        metrics::histogram!(metric_names::LOG_SYNC_DURATION_SECONDS).record(self.since.elapsed());
        failpoint::reached("sync");
        match &result {
            Ok(()) => self.covers.1.advance(self.covers.0),
            Err(error) => tracing::error!(%error, "the log could not be synced; this node will stop"),
        }
        match self.waiter {
            Waiter::Engine(callback) => {
                callback.io_completed(result);
                self.covers.1.append_told();
            }
            // A caller that went away learns nothing; the error itself stays with the log.
            Waiter::Caller(sender) => drop(sender.send(result)),
        }
    }
}
