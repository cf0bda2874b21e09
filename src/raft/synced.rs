//! How much of the log is on the disk for certain, as syncs return.

use super::codec::WireLogId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a sync covers that begins now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Covered {
    pub(super) vote_term: Option<u64>,
    pub(super) last: Option<WireLogId>,
    /// How often entries had been taken back until then.
    pub(super) truncations: u64,
}

/// What is on the disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Synced(Arc<Mutex<Known>>);

#[derive(Debug, Clone, Copy, Default)]
struct Known {
    vote_term: Option<u64>,
    last: Option<WireLogId>,
    truncations: u64,
}

impl Synced {
    /// A sync has returned.
    pub(super) fn advance(&self, covers: Covered) {
        let mut known = self.lock();
        known.vote_term = known.vote_term.max(covers.vote_term);
        // An entry that was taken back since then says nothing about the one that took its place.
        if known.truncations == covers.truncations {
            known.last = known.last.max(covers.last);
        }
    }

    /// The entries after `last` are taken back, for the `truncations`th time.
    pub(super) fn truncated(&self, last: Option<WireLogId>, truncations: u64) {
        let mut known = self.lock();
        known.truncations = truncations;
        if known.last.map(|id| id.index) > last.map(|id| id.index) {
            known.last = last;
        }
    }

    /// The term of the last vote, and the last entry.
    pub(super) fn vote_and_last(&self) -> (Option<u64>, Option<WireLogId>) {
        let known = self.lock();
        (known.vote_term, known.last)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
