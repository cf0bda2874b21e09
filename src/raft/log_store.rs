//! The durable log and vote, in one ordered stream of checksummed records (crate `raft-log`).
//!
//! Invariants
//! - An append is reported flushed, and a vote saved, only after `fdatasync` has returned.
//! - A stamped entry and the local clock reading taken when it arrived are one record: they are written, truncated and
//!   purged together. The reading is never replicated.
//! - An error of the disk is final: the engine stops, and the process with it.
//!
//! Not here: what a stamp is good for (`clock/`).

use super::codec::{self, WireLogId, WirePayload, WireVote};
use super::footing::Footing;
use super::types::{Entry, LogId, TypeConfig, Vote};
use crate::clock::{Clocks, DriftWatch, Reading, Stopwatch};
use crate::failpoint;
use crate::limiter::Time;
use crate::metric_names;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::codeq::{Decode, Encode};
use raft_log::{Config, RaftLog, Types};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A file of the log; small ones make purging return space early.
const CHUNK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Entries kept in memory for replication, and their bytes.
const CACHE_ENTRIES_MAX: usize = 100_000;
const CACHE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Largest record that is believed when reading.
const RECORD_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Never zero, so that a stretch of zeros is no length.
const LENGTH_CHECK: u32 = 0x5155_4F52;

/// Types of the `raft-log` crate.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct LogTypes;

impl Types for LogTypes {
    type LogId = Framed<WireLogId>;
    type LogPayload = Framed<StoredEntry>;
    type Vote = StoredVote;
    type Callback = Flushed;
    type UserData = Framed<Stamped>;

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.0.index
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        match &payload.0.payload {
            WirePayload::Batch(batch) => 64 + 128 * batch.commands.len() as u64,
            WirePayload::Blank | WirePayload::Membership(_) => 256,
        }
    }
}

/// A value as one block of [`codec`] bytes behind its length.
///
/// The length carries a check of its own. A record that ends too soon counts as torn, and a torn one is dropped with all
/// that follows: without the check, one flipped bit in a length would make the rest of the log look torn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Framed<T>(T);

impl<T: Serialize> Encode for Framed<T> {
    fn encode<W: Write>(&self, mut writer: W) -> io::Result<usize> {
        let bytes = codec::encode(&self.0);
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        writer.write_all(&length.to_le_bytes())?;
        writer.write_all(&(length ^ LENGTH_CHECK).to_le_bytes())?;
        writer.write_all(&bytes)?;
        Ok(8 + bytes.len())
    }
}

impl<T: for<'de> Deserialize<'de>> Decode for Framed<T> {
    fn decode<R: Read>(mut reader: R) -> io::Result<Self> {
        let (mut length, mut check) = ([0; 4], [0; 4]);
        reader.read_exact(&mut length)?;
        reader.read_exact(&mut check)?;
        let (length, check) = (u32::from_le_bytes(length), u32::from_le_bytes(check));
        if length ^ LENGTH_CHECK != check || length > RECORD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a record of {length} bytes")));
        }
        let mut bytes = Vec::new();
        reader.take(u64::from(length)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        codec::decode(&bytes).map(Self)
    }
}

/// An entry and when it arrived here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredEntry {
    /// Set for stamped entries only.
    obs: Option<Reading>,
    payload: WirePayload,
}

/// A stamp and the local reading that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Stamped {
    time: Time,
    obs: Reading,
}

/// A vote in the order the protocol gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredVote(Framed<WireVote>);

impl PartialOrd for StoredVote {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Vote::from(self.0.0).partial_cmp(&Vote::from(other.0.0))
    }
}

impl Encode for StoredVote {
    fn encode<W: Write>(&self, writer: W) -> io::Result<usize> {
        self.0.encode(writer)
    }
}

impl Decode for StoredVote {
    fn decode<R: Read>(reader: R) -> io::Result<Self> {
        Framed::decode(reader).map(Self)
    }
}

/// Who waits for a sync, since when, and what is on the disk once it has returned.
struct Flushed {
    waiter: Waiter,
    since: Stopwatch,
    covers: Covered,
    synced: Arc<Mutex<Synced>>,
}

/// What a sync covers.
#[derive(Debug, Clone, Copy)]
struct Covered {
    vote_term: Option<u64>,
    last: Option<WireLogId>,
    /// How often entries had been taken back until then.
    truncations: u64,
}

/// What is on the disk for certain.
#[derive(Debug, Default)]
struct Synced {
    vote_term: Option<u64>,
    last: Option<WireLogId>,
    truncations: u64,
}

impl Synced {
    fn advance(&mut self, covers: Covered) {
        self.vote_term = self.vote_term.max(covers.vote_term);
        // An entry that was taken back since then says nothing about the one that took its place.
        if self.truncations == covers.truncations {
            self.last = self.last.max(covers.last);
        }
    }
}

enum Waiter {
    Engine(IOFlushed<TypeConfig>),
    Caller(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        metrics::histogram!(metric_names::LOG_SYNC_DURATION_SECONDS).record(self.since.elapsed());
        failpoint::reached("sync");
        match &result {
            Ok(()) => self.synced.lock().unwrap_or_else(PoisonError::into_inner).advance(self.covers),
            Err(error) => tracing::error!(%error, "the log could not be synced; this node will stop"),
        }
        match self.waiter {
            Waiter::Engine(callback) => callback.io_completed(result),
            // A caller that went away learns nothing; the error itself stays with the log.
            Waiter::Caller(sender) => drop(sender.send(result)),
        }
    }
}

/// The log of one node. Clones share it.
#[derive(Clone)]
pub struct LogStore {
    shared: Arc<Mutex<Inner>>,
    clocks: Arc<dyn Clocks>,
    synced: Arc<Mutex<Synced>>,
}

struct Inner {
    log: RaftLog<LogTypes>,
    /// The last validly stamped entry in log order, or what is left of it after a purge or a snapshot.
    last: Option<Stamped>,
    watch: DriftWatch,
    truncations: u64,
}

impl LogStore {
    /// Opens or creates the log in `dir`. A record torn by a crash is dropped at the very tail and refused elsewhere.
    pub fn open(dir: &Path, clocks: Arc<dyn Clocks>) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let dir = dir.to_str().ok_or_else(|| io::Error::other("the path of the log is not UTF-8"))?;
        let mut config = Config::new(dir);
        config.wal.flush_batch_wait = Some(Duration::ZERO);
        config.wal.truncate_incomplete_record = Some(true);
        config.wal.chunk_max_size = Some(CHUNK_BYTES_MAX);
        config.wal.read_buffer_size = Some(1024 * 1024);
        config.log_cache_max_items = Some(CACHE_ENTRIES_MAX);
        config.log_cache_capacity = Some(CACHE_BYTES_MAX);
        let log = RaftLog::open(Arc::new(config))?;
        let mut inner = Inner { log, last: None, watch: DriftWatch::default(), truncations: 0 };
        inner.last = inner.last_stamped_up_to(u64::MAX)?;
        Ok(Self { shared: Arc::new(Mutex::new(inner)), clocks, synced: Arc::default() })
    }

    /// The stamp that a new leader continues from, with the reading of this node's clocks that belongs to it.
    pub fn last_stamp(&self) -> Option<(Time, Reading)> {
        self.lock().last.map(|stamped| (stamped.time, stamped.obs))
    }

    /// Whether nothing was ever written: no vote and no entry.
    pub(super) fn is_empty(&self) -> bool {
        let inner = self.lock();
        let state = inner.log.log_state();
        state.vote().is_none() && state.last().is_none() && state.purged().is_none()
    }

    /// Index of the last entry that was purged.
    pub(super) fn purged_index(&self) -> Option<u64> {
        self.lock().log.log_state().purged().map(|id| id.0.index)
    }

    /// Index of the last entry, purged ones included.
    pub(super) fn last_index(&self) -> Option<u64> {
        let inner = self.lock();
        let state = inner.log.log_state();
        state.last().or(state.purged()).map(|id| id.0.index)
    }

    /// Where this log stands, synced or not: the vote, and the last entry or, if that is farther, `applied`.
    pub(super) fn footing(&self, applied: Option<WireLogId>) -> Footing {
        let covered = self.lock().covered();
        Footing::new(covered.vote_term, covered.last.max(applied))
    }

    /// Where it stands for good: nothing of this can go away any more. `applied` says what is committed.
    pub(super) fn settled(&self, applied: Option<WireLogId>) -> Footing {
        let synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = if synced.last.map(|id| id.index) < applied.map(|id| id.index) { synced.last } else { applied };
        Footing::new(synced.vote_term, entry)
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

    /// Syncs everything written so far and waits for it.
    pub(super) async fn sync(&self) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        let since = Stopwatch::start();
        {
            let mut inner = self.lock();
            let (covers, synced) = (inner.covered(), Arc::clone(&self.synced));
            inner.log.flush(true, Some(Flushed { waiter: Waiter::Caller(sender), since, covers, synced }))?;
        }
        receiver.await.map_err(|_| io::Error::other("the log's writer has stopped"))?
    }
}

impl Inner {
    /// What a sync that begins now covers.
    fn covered(&self) -> Covered {
        let state = self.log.log_state();
        Covered {
            vote_term: state.vote().map(|vote| vote.0.0.leader.term),
            last: state.last().or(state.purged()).map(|id| id.0),
            truncations: self.truncations,
        }
    }

    /// Walks back from `index` to the first validly stamped entry: one step, as a rule.
    fn last_stamped_up_to(&self, index: u64) -> io::Result<Option<Stamped>> {
        let state = self.log.log_state();
        let first = state.purged().map_or(0, |id| id.0.index + 1);
        let Some(last) = state.last().map(|id| id.0.index.min(index)) else {
            return Ok(state.user_data.as_ref().map(|floor| floor.0));
        };
        for at in (first..=last).rev() {
            let Some(entry) = self.log.read(at, at + 1).next().transpose()? else { continue };
            if let Some(stamped) = stamped(&entry.0.0, &entry.1.0) {
                return Ok(Some(stamped));
            }
        }
        Ok(state.user_data.as_ref().map(|floor| floor.0))
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
                Ok(Entry { log_id: log_id.0.into(), payload: entry.0.payload.into() })
            })
            .collect()
    }
}

/// The stamp of an entry, unless it has none or it was made on another leader's timeline (then apply rejects the entry, and
/// its time must not be continued either).
fn stamped(log_id: &WireLogId, entry: &StoredEntry) -> Option<Stamped> {
    match (&entry.payload, entry.obs) {
        (WirePayload::Batch(batch), Some(obs)) if batch.stamp.leader == log_id.leader => {
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
        Ok(self.lock().log.log_state().vote().map(|vote| vote.0.0.into()))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let inner = self.lock();
        let state = inner.log.log_state();
        let engine = |id: Option<&Framed<WireLogId>>| id.map(|id| LogId::from(id.0));
        let purged = engine(state.purged());
        Ok(LogState { last_purged_log_id: purged, last_log_id: engine(state.last()).or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.lock().log.save_vote(StoredVote(Framed(vote.into())))?;
        failpoint::reached("vote");
        self.sync().await
    }

    /// Best effort: it only saves a restarted node from waiting for a leader, so it rides on the next sync.
    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(committed) = committed {
            self.lock().log.commit(Framed((&committed).into()))?;
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        let inner = self.lock();
        let state = inner.log.log_state();
        Ok(state.committed().map(|id| id.0.into()))
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
        let Inner { log, last, watch, .. } = &mut *inner;
        let records = entries.into_iter().map(|entry| {
            let log_id = WireLogId::from(&entry.log_id);
            let payload = WirePayload::from(&entry.payload);
            let stored = StoredEntry { obs: matches!(payload, WirePayload::Batch(_)).then_some(obs), payload };
            if let Some(stamped) = stamped(&log_id, &stored) {
                *last = Some(stamped);
                if let Some(ahead) = watch.observe(stamped.time, obs) {
                    metrics::counter!(metric_names::CLOCK_ALARMS_TOTAL).increment(1);
                    tracing::error!(leader = %log_id.leader, %ahead, "the leader's time runs faster than clocks may drift");
                }
            }
            (Framed(log_id), Framed(stored))
        });
        log.append(records)?;
        failpoint::reached("append");
        let (covers, synced) = (inner.covered(), Arc::clone(&self.synced));
        inner.log.flush(true, Some(Flushed { waiter: Waiter::Engine(callback), since, covers, synced }))
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        let mut inner = self.lock();
        let keep = last_log_id.map_or(0, |id| id.index + 1);
        if inner.log.log_state().last().is_none_or(|last| last.0.index < keep) {
            return Ok(());
        }
        inner.log.truncate(keep)?;
        inner.truncations += 1;
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        synced.truncations = inner.truncations;
        if synced.last.is_some_and(|last| last.index >= keep) {
            synced.last = last_log_id.as_ref().map(Into::into);
        }
        drop(synced);
        inner.last = inner.last_stamped_up_to(u64::MAX)?;
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        let mut inner = self.lock();
        let ends_inside = inner.log.log_state().last().is_some_and(|last| last.0.index >= log_id.index);
        // What the log forgets of time is kept beside it. Past the end of the log a snapshot has just set it.
        let floor = if ends_inside { inner.last_stamped_up_to(log_id.index)? } else { inner.last };
        inner.log.save_user_data(floor.map(Framed))?;
        failpoint::reached("purge");
        inner.log.purge(Framed((&log_id).into()))?;
        inner.log.flush(true, None)
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

        /// The files of the log that hold anything, oldest first.
        fn files(&self) -> Vec<PathBuf> {
            let files = std::fs::read_dir(self.dir.path().join("log")).unwrap().map(|file| file.unwrap().path());
            let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "wal")).collect();
            files.sort();
            files
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
        let file = bench.files().pop().unwrap();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 7]).unwrap();
        let mut log = bench.open();
        let state = log.get_log_state().await.unwrap();
        assert_eq!(state.last_log_id.map(|id| id.index), Some(48), "only the torn record is gone");
        drop(log);

        for extra in bench.files().iter().filter(|path| **path != file) {
            std::fs::remove_file(extra).unwrap();
        }
        // Every bit of some records in the middle: lengths, tags, bodies, checksums.
        let middle = whole.len() / 2;
        for bit in middle * 8..(middle + 2 * whole.len() / 50) * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, &flipped).unwrap();
            assert!(bench.try_open().is_err(), "bit {bit} of {} flipped, and the log opens", whole.len() * 8);
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
