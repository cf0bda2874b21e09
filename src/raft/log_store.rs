//! The durable log and vote, in one ordered stream of records.
//!
//! Invariants
//! - An append is reported flushed, and a vote saved, only after the journal has synced it.
//! - A stamped entry and the local clock reading taken when it arrived are one record: they are written, truncated and
//!   purged together. The reading is never replicated.
//! - An error of the disk is final: the engine stops, and the process with it.
//!
//! Not here: how records get onto a disk (`journal.rs`), what a stamp is good for (`clock/`).

use super::codec::{WireLogId, WirePayload};
use super::disk::Disk;
use super::footing::Footing;
use super::journal::{Flushed, Journal, Stamped, StoredEntry};
use super::synced::{Covered, Synced};
use super::types::{Entry, LogId, TypeConfig, Vote};
use crate::clock::{Clocks, DriftWatch, Reading, Stopwatch, Timeline};
use crate::failpoint;
use crate::limiter::Time;
use crate::metric_names;
use crate::planted::{self, Bug};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// The log of one node. Clones share it.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Mutex<Inner>>,
    clocks: Arc<dyn Clocks>,
    synced: Synced,
}

struct Inner {
    log: Box<dyn Journal>,
    /// The last validly stamped entry in log order, or what is left of it after a purge or a snapshot.
    last: Option<Stamped>,
    /// The observation by which it is latest, wherever it stood in the log: what a planted bug continues from.
    latest: Option<Stamped>,
    watch: DriftWatch,
    /// How often entries were taken back.
    truncations: u64,
}

impl LogStore {
    /// Opens or creates the log in a directory. A record torn by a crash is dropped at the very tail and refused elsewhere.
    pub fn open(dir: &Path, clocks: Arc<dyn Clocks>) -> io::Result<Self> {
        Self::on(&Disk::system(), dir, clocks)
    }

    /// The same on another disk.
    pub(super) fn on(disk: &Disk, dir: &Path, clocks: Arc<dyn Clocks>) -> io::Result<Self> {
        let mut inner =
            Inner { log: disk.open_log(dir)?, last: None, latest: None, watch: DriftWatch::default(), truncations: 0 };
        inner.last = inner.last_stamped_up_to(u64::MAX)?;
        inner.latest = inner.last;
        Ok(Self { shared: Arc::new(Mutex::new(inner)), clocks, synced: Synced::default() })
    }

    /// The stamp that a new leader continues from, with the reading of this node's clocks that belongs to it.
    pub fn last_stamp(&self) -> Option<(Time, Reading)> {
        let inner = self.lock();
        let last = if planted::is(Bug::MaximumObservation) { inner.latest } else { inner.last };
        last.map(|stamped| (stamped.time, stamped.obs))
    }

    /// Cluster time as this node alone would continue it. Only a planted bug decides by it.
    pub(super) fn own_time(&self) -> Time {
        let now = self.clocks.read();
        Timeline::rebase(self.last_stamp(), now).at(now)
    }

    /// Whether nothing was ever written: no vote and no entry.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.lock().log.state();
        state.vote.is_none() && state.last.is_none() && state.purged.is_none()
    }

    /// Index of the last entry that was purged.
    pub(super) fn purged_index(&self) -> Option<u64> {
        self.lock().log.state().purged.map(|id| id.index)
    }

    /// Index of the last entry, purged ones included.
    pub(super) fn last_index(&self) -> Option<u64> {
        let state = self.lock().log.state();
        state.last.or(state.purged).map(|id| id.index)
    }

    /// Where this log stands, synced or not: the vote, and the last entry or, if that is farther, `applied`.
    pub(super) fn footing(&self, applied: Option<WireLogId>) -> Footing {
        let covered = self.lock().covered();
        Footing::new(covered.vote_term, covered.last.max(applied))
    }

    /// Where it stands for good: nothing of this can go away any more. `applied` says what is committed.
    pub(super) fn settled(&self, applied: Option<WireLogId>) -> Footing {
        let (vote_term, last) = self.synced.vote_and_last();
        let entry = if last.map(|id| id.index) < applied.map(|id| id.index) { last } else { applied };
        Footing::new(vote_term, entry)
    }

    /// A snapshot whose last stamp is `time` takes the place of the log: the sender's readings mean nothing here, so the
    /// reading that belongs to it is this instant's.
    pub(super) fn snapshot_installed(&self, time: Time) {
        let obs = self.clocks.read();
        self.lock().last = Some(Stamped { time, obs });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere does not make the log wrong: every change to it is one call.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// While an append waits for the disk: resolves when one has been told how it ended, but after `most` at the latest.
    pub(super) async fn append_returns(&self, most: Duration) {
        self.synced.append_returns(most).await;
    }

    /// How much of it is on the disk.
    pub(super) fn synced(&self) -> Synced {
        self.synced.clone()
    }

    /// Syncs everything written so far and waits for it.
    pub(super) async fn sync(&self) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut inner = self.lock();
            let waiter = Flushed::caller(sender, (inner.covered(), self.synced.clone()));
            inner.log.flush(Some(waiter))?;
        }
        receiver.await.map_err(|_| io::Error::other("the log's writer has stopped"))?
    }
}

impl Inner {
    /// What a sync that begins now covers.
    fn covered(&self) -> Covered {
        let state = self.log.state();
        Covered {
            vote_term: state.vote.map(|vote| vote.leader.term),
            last: state.last.or(state.purged),
            truncations: self.truncations,
        }
    }

    /// Walks back from `index` to the first validly stamped entry: one step, as a rule.
    fn last_stamped_up_to(&self, index: u64) -> io::Result<Option<Stamped>> {
        let state = self.log.state();
        let first = state.purged.map_or(0, |id| id.index + 1);
        let Some(last) = state.last.map(|id| id.index.min(index)) else { return Ok(state.floor) };
        for at in (first..=last).rev() {
            let Some((log_id, entry)) = self.log.read(at, at + 1).next().transpose()? else { continue };
            if let Some(stamped) = stamped(&log_id, &entry) {
                return Ok(Some(stamped));
            }
        }
        Ok(state.floor)
    }

    fn read(&self, range: &impl RangeBounds<u64>) -> io::Result<Vec<Entry>> {
        let from = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(at) => at + 1,
            Bound::Excluded(at) => *at,
            Bound::Unbounded => u64::MAX,
        };
        if from >= to {
            return Ok(Vec::new());
        }
        self.log
            .read(from, to)
            .map(|record| {
                let (log_id, entry) = record?;
                Ok(Entry { log_id: log_id.into(), payload: entry.payload.into() })
            })
            .collect()
    }
}

/// The stamp of an entry, unless it has none or it was made on another leader's timeline (then apply rejects the entry, and
/// its time must not be continued either).
fn stamped(log_id: &WireLogId, entry: &StoredEntry) -> Option<Stamped> {
    match (&entry.payload, entry.obs) {
        (WirePayload::Batch(batch), Some(obs))
            if batch.stamp.leader == log_id.leader || planted::is(Bug::NoLeaderIdCheck) =>
        {
            Some(Stamped { time: batch.stamp.time, obs })
        }
        _ => None,
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.lock().read(&range)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.lock().log.state().vote.map(Into::into))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let state = self.lock().log.state();
        let purged = state.purged.map(LogId::from);
        Ok(LogState { last_purged_log_id: purged, last_log_id: state.last.map(LogId::from).or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.lock().log.save_vote(vote.into())?;
        failpoint::reached("vote");
        self.sync().await
    }

    /// Best effort: it only saves a restarted node from waiting for a leader, so it rides on the next sync.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(committed) = committed {
            self.lock().log.save_committed((&committed).into())?;
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.lock().log.state().committed.map(Into::into))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let since = Stopwatch::start();
        // Read after the entries arrived: an observation later than the truth only wastes time.
        let obs = self.clocks.read();
        let mut inner = self.lock();
        let Inner { log, last, latest, watch, .. } = &mut *inner;
        let mut records = entries.into_iter().map(|entry| {
            let log_id = WireLogId::from(&entry.log_id);
            let payload = WirePayload::from(&entry.payload);
            let stored = StoredEntry { obs: matches!(payload, WirePayload::Batch(_)).then_some(obs), payload };
            if let Some(stamped) = stamped(&log_id, &stored) {
                *last = Some(stamped);
                if planted::is(Bug::MaximumObservation) {
                    *latest = latest.filter(|latest| latest.is_ahead_of(&stamped)).or(*last);
                }
                if let Some(ahead) = watch.observe(stamped.time, obs) {
                    metrics::counter!(metric_names::CLOCK_ALARMS_TOTAL).increment(1);
                    tracing::error!(leader = %log_id.leader, %ahead, "the leader's time runs faster than clocks may drift");
                }
            }
            (log_id, stored)
        });
        log.append(&mut records)?;
        if planted::is(Bug::AckBeforeDurable) {
            callback.io_completed(Ok(()));
            return log.flush(None);
        }
        failpoint::reached("append");
        self.synced.append_waits();
        let waiter = Flushed::engine(callback, since, (inner.covered(), self.synced.clone()));
        inner.log.flush(Some(waiter))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let mut inner = self.lock();
        let keep = last_log_id.map_or(0, |id| id.index + 1);
        if inner.log.state().last.is_none_or(|last| last.index < keep) {
            return Ok(());
        }
        inner.log.truncate(keep)?;
        inner.truncations += 1;
        self.synced.truncated(last_log_id.as_ref().map(Into::into), inner.truncations);
        inner.last = inner.last_stamped_up_to(u64::MAX)?;
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let mut inner = self.lock();
        let ends_inside = inner.log.state().last.is_some_and(|last| last.index >= log_id.index);
        // What the log forgets of time is kept beside it. Past the end of the log a snapshot has just set it.
        let floor = if ends_inside { inner.last_stamped_up_to(log_id.index)? } else { inner.last };
        inner.log.save_floor(floor)?;
        failpoint::reached("purge");
        inner.log.purge((&log_id).into())?;
        inner.log.flush(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::engine_leader_id;
    use super::*;
    use crate::clock::{ClockId, ManualClocks};
    use crate::state::{Batch, LeaderId, Stamp};
    use openraft::EntryPayload;
    use openraft::storage::RaftLogStorageExt;
    use std::path::PathBuf;

    const LEADER: LeaderId = LeaderId { term: 2, node: 1 };
    const OTHER: LeaderId = LeaderId { term: 1, node: 3 };

    /// An entry of `LEADER` at `index`, stamped `seconds` on the timeline of `stamped_by`.
    fn entry(index: u64, seconds: u64, stamped_by: LeaderId) -> Entry {
        let stamp = Stamp { leader: stamped_by, time: Time(seconds * 1_000_000_000) };
        let batch = Batch { stamp, keys_max: 1, commands: Vec::new() };
        Entry { log_id: log_id(index), payload: EntryPayload::Normal(Arc::new(batch)) }
    }

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: engine_leader_id(LEADER), index }
    }

    fn blank(index: u64) -> Entry {
        Entry { log_id: log_id(index), payload: EntryPayload::Blank }
    }

    struct Bench {
        dir: tempfile::TempDir,
        clocks: ManualClocks,
    }

    impl Bench {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), clocks: ManualClocks::new(ClockId(1)) }
        }

        fn open(&self) -> LogStore {
            self.try_open().unwrap()
        }

        fn try_open(&self) -> io::Result<LogStore> {
            LogStore::open(&self.dir.path().join("log"), Arc::new(self.clocks.clone()))
        }

        /// The only file of a short log.
        fn file(&self) -> PathBuf {
            let files = std::fs::read_dir(self.dir.path().join("log")).unwrap().map(|file| file.unwrap().path());
            let mut files = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
            let file = files.next().unwrap();
            assert_eq!(files.next(), None);
            file
        }

        fn pass(&self, seconds: u64) {
            self.clocks.advance(crate::limiter::Span::from_secs(seconds));
        }
    }

    fn stamp_secs(log: &LogStore) -> Option<(u64, u64)> {
        log.last_stamp().map(|(time, obs)| (time.0 / 1_000_000_000, obs.raw_ns / 1_000_000_000))
    }

    #[tokio::test]
    async fn the_reading_is_taken_on_arrival_and_survives_a_restart() {
        let bench = Bench::new();
        let started = bench.clocks.read().raw_ns / 1_000_000_000;
        let mut log = bench.open();
        assert_eq!(log.last_stamp(), None);
        bench.pass(5);
        log.blocking_append([blank(0), entry(1, 100, LEADER)]).await.unwrap();
        bench.pass(5);
        log.blocking_append([entry(2, 103, LEADER), blank(3)]).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((103, started + 10)));
        drop(log);
        bench.pass(5);
        assert_eq!(stamp_secs(&bench.open()), Some((103, started + 10)), "the last stamped entry, as it arrived then");
    }

    #[tokio::test]
    async fn truncated_entries_take_their_readings_with_them() {
        let bench = Bench::new();
        let started = bench.clocks.read().raw_ns / 1_000_000_000;
        let mut log = bench.open();
        log.blocking_append([blank(0), entry(1, 100, LEADER)]).await.unwrap();
        bench.pass(7);
        log.blocking_append([entry(2, 107, LEADER), entry(3, 108, LEADER)]).await.unwrap();
        log.truncate_after(Some(log_id(1))).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((100, started)));
        log.sync().await.unwrap();
        drop(log);
        assert_eq!(stamp_secs(&bench.open()), Some((100, started)));
    }

    #[tokio::test]
    async fn a_stamp_of_another_timeline_is_no_base() {
        let bench = Bench::new();
        let started = bench.clocks.read().raw_ns / 1_000_000_000;
        let mut log = bench.open();
        log.blocking_append([blank(0), entry(1, 100, LEADER), entry(2, 900, OTHER)]).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((100, started)));
        drop(log);
        assert_eq!(stamp_secs(&bench.open()), Some((100, started)));
    }

    #[tokio::test]
    async fn a_purge_keeps_the_last_stamp_of_what_it_removes() {
        let bench = Bench::new();
        let started = bench.clocks.read().raw_ns / 1_000_000_000;
        let mut log = bench.open();
        log.blocking_append([blank(0), entry(1, 100, LEADER), blank(2)]).await.unwrap();
        bench.pass(4);
        log.blocking_append([entry(3, 104, LEADER), blank(4)]).await.unwrap();
        log.purge(log_id(2)).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((104, started + 4)));
        log.truncate_after(Some(log_id(2))).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((100, started)), "what was purged is remembered");
        log.sync().await.unwrap();
        drop(log);
        assert_eq!(stamp_secs(&bench.open()), Some((100, started)));
    }

    #[tokio::test]
    async fn a_snapshot_from_elsewhere_counts_from_its_arrival() {
        let bench = Bench::new();
        let started = bench.clocks.read().raw_ns / 1_000_000_000;
        let mut log = bench.open();
        log.blocking_append([blank(0), entry(1, 100, LEADER)]).await.unwrap();
        bench.pass(50);
        log.snapshot_installed(Time(500 * 1_000_000_000));
        log.purge(log_id(1_000)).await.unwrap();
        assert_eq!(stamp_secs(&log), Some((500, started + 50)));
        log.sync().await.unwrap();
        drop(log);
        bench.pass(3);
        assert_eq!(stamp_secs(&bench.open()), Some((500, started + 50)));
    }

    #[tokio::test]
    async fn a_torn_tail_is_dropped_and_a_flipped_bit_is_refused() {
        let bench = Bench::new();
        let mut log = bench.open();
        for index in 0..50 {
            log.blocking_append([entry(index, 100 + index, LEADER)]).await.unwrap();
        }
        drop(log);
        let file = bench.file();
        let whole = std::fs::read(&file).unwrap();
        // The rest of the file lies ready for more.
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        std::fs::write(&file, &whole[..used - 7]).unwrap();
        let mut log = bench.open();
        let state = log.get_log_state().await.unwrap();
        assert_eq!(state.last_log_id.map(|id| id.index), Some(48), "only the torn record is gone");
        drop(log);

        // Every bit of some records in the middle: lengths, tags, bodies, checksums.
        let middle = used / 2;
        for bit in middle * 8..(middle + 2 * used / 50) * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, &flipped).unwrap();
            assert!(bench.try_open().is_err(), "bit {bit} of {} flipped, and the log opens", used * 8);
            assert_eq!(std::fs::read(&file).unwrap(), flipped, "what is refused is left as it is");
        }
    }

    #[tokio::test]
    async fn a_second_process_is_kept_out() {
        let bench = Bench::new();
        let _log = bench.open();
        assert!(bench.try_open().is_err());
    }
}
