//! How much of the log is on the disk for certain, as syncs return.

use super::codec::WireLogId;
use crate::clock::Stopwatch;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

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
pub(super) struct Synced(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<Known>,
    /// Since when the appends wait that wait for the disk.
    appends: Mutex<VecDeque<Stopwatch>>,
    /// One of them waits no more.
    returned: Notify,
}

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

    /// An append begins to wait for the disk.
    pub(super) fn append_waits(&self) {
        self.appends().push_back(Stopwatch::start());
    }

    /// The one that waited longest was told how it ended.
    pub(super) fn append_told(&self) {
        self.appends().pop_front();
        self.0.returned.notify_waiters();
    }

    /// How long the disk has kept an append waiting; nothing if none waits.
    pub(super) fn append_waited(&self) -> Duration {
        self.appends().front().map(Stopwatch::elapsed).unwrap_or_default()
    }

    /// While an append waits for the disk: resolves when one has been told, but after `most` at the latest.
    pub(super) async fn append_returns(&self, most: Duration) {
        let mut returned = std::pin::pin!(self.0.returned.notified());
        // From here on no return is missed.
        returned.as_mut().enable();
        let waits = !self.appends().is_empty();
        if waits {
            let _ = tokio::time::timeout(most, returned).await;
        }
    }

    fn appends(&self) -> MutexGuard<'_, VecDeque<Stopwatch>> {
        self.0.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only bounds failures.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn who_stands_back_goes_on_when_an_append_was_told_or_none_waits() {
        let synced = Synced::default();
        synced.append_returns(PATIENCE).await;
        synced.append_waits();
        let waiting = tokio::spawn({
            let synced = synced.clone();
            async move { synced.append_returns(PATIENCE).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        synced.append_told();
        tokio::time::timeout(PATIENCE / 2, waiting).await.expect("told").unwrap();
        synced.append_returns(PATIENCE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_longest_is_told_first() {
        let synced = Synced::default();
        assert_eq!(synced.append_waited(), Duration::ZERO);
        synced.append_waits();
        tokio::time::advance(Duration::from_millis(3)).await;
        synced.append_waits();
        assert_eq!(synced.append_waited(), Duration::from_millis(3));
        synced.append_told();
        assert_eq!(synced.append_waited(), Duration::ZERO);
        synced.append_told();
        synced.append_returns(PATIENCE).await;
    }

    #[tokio::test]
    async fn a_disk_that_stalls_holds_nobody_up_for_long() {
        let synced = Synced::default();
        synced.append_waits();
        let bounded = synced.append_returns(Duration::from_millis(1));
        tokio::time::timeout(PATIENCE, bounded).await.expect("it went on");
    }
}
