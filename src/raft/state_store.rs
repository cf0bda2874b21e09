//! The state machine as the engine drives it: in memory, rebuilt from the last snapshot and the log after it.
//!
//! Applying takes a lock for one entry at a time. Snapshots are frozen under that lock, which costs reference counts, and
//! written outside it.

use super::codec::{WireLogId, WireSnapshotMeta};
use super::disk::Disk;
use super::log_store::LogStore;
use super::snapshot_file::{SnapshotDir, SnapshotFile};
use super::types::{LogId, StoredMembership, TypeConfig, leader_id};
use super::work::{aside, blocking};
use crate::failpoint;
use crate::limiter::Time;
use crate::metric_names;
use crate::planted::{self, Bug};
use crate::state::{Applied, Batch, Frozen, Machine, Stamp};
use futures::{Stream, TryStreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Sees what this node applies, in the order of the log. It is called on the way of every answer and must not wait.
pub trait Observer: Send + Sync + 'static {
    /// An entry was applied.
    fn applied(&self, index: u64, batch: &Batch, applied: &Applied);
    /// The members changed, at this time of the cluster.
    fn membership(&self, index: u64, at: Time, voters: Vec<u64>, learners: Vec<u64>);
    /// Another node leads; this stands in no entry.
    fn leader(&self, node: u64, term: u64);
    /// This node leads and has read the time for an entry that it is about to propose. It may never get into the log.
    fn stamped(&self, _stamp: &Stamp) {}
}

/// The state of one node. Clones share it.
#[derive(Clone)]
pub struct StateStore {
    shared: Arc<RwLock<Replica>>,
    snapshots: Arc<SnapshotDir>,
    log: LogStore,
    observer: Option<Arc<dyn Observer>>,
}

type Payload = EntryPayload<Arc<Batch>, u64, openraft::BasicNode>;

/// The machine and how far it got.
#[derive(Debug, Default)]
pub(super) struct Replica {
    pub(super) machine: Machine,
    pub(super) applied: Option<LogId>,
    membership: StoredMembership,
    /// What was applied since the last snapshot was begun, or the state read from one.
    unsaved: u64,
}

/// What a key and a remembered request id take in a snapshot as a rule: windows, leases and long lines of reservations take more.
const KEY_BYTES: u64 = 256;
const REQUEST_ID_BYTES: u64 = 128;

/// What nobody waits for is applied after an append that is on its way to the disk, for which a leader waits; but this much later at
/// the most. A follower learns of a commit with the next entry, and would work on the one before first (docs/adr/0018).
const STANDS_BACK: Duration = Duration::from_millis(2);
/// Only the newest entries of the log, this one and so many before it, are let wait like that.
const NEWEST: u64 = 2;

/// Fewer requests than that are applied in less than a second.
const UNSAVED_MIN: u64 = 200_000;

impl StateStore {
    /// Loads the current snapshot, if there is one. A damaged one is an error, and so is a gap between it and the log: what is
    /// missing would be permits forgotten.
    pub fn open(dir: &Path, log: LogStore, observer: Option<Arc<dyn Observer>>) -> io::Result<Self> {
        Self::on(&Disk::system(), dir, log, observer)
    }

    /// The same on another disk.
    pub(super) fn on(disk: &Disk, dir: &Path, log: LogStore, observer: Option<Arc<dyn Observer>>) -> io::Result<Self> {
        let snapshots = SnapshotDir::open(disk, dir)?;
        let mut replica = Replica::default();
        if let Some(mut current) = snapshots.current()? {
            let (meta, machine) = current.load()?;
            replica = Replica {
                applied: meta.last.map(LogId::from),
                membership: meta.membership.into(),
                machine,
                unsaved: 0,
            };
            let snapshot_index = replica.applied.map(|id| id.index);
            if snapshot_index > log.last_index() {
                // Stopped between installing a snapshot and dropping the log it replaced.
                log.snapshot_installed(replica.machine.now());
            }
        }
        let applied = replica.applied.map(|id| id.index);
        if log.purged_index() > applied {
            let gap =
                format!("it ends at entry {applied:?}, and the log behind it begins after {:?}", log.purged_index());
            return Err(io::Error::new(io::ErrorKind::InvalidData, gap));
        }
        Ok(Self { shared: Arc::new(RwLock::new(replica)), snapshots: Arc::new(snapshots), log, observer })
    }

    /// The last entry that was applied.
    pub(super) fn applied(&self) -> Option<WireLogId> {
        self.read().applied.as_ref().map(Into::into)
    }

    /// The state as applied so far.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Replica> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Replica> {
        self.shared.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an entry is among the newest of the log. Who is behind catches up, whatever the disk does.
    fn is_newest(&self, index: u64) -> bool {
        index + NEWEST >= self.log.last_index().unwrap_or(0)
    }

    /// A temporary file for a snapshot that arrives.
    pub(super) fn incoming_snapshot(&self) -> io::Result<SnapshotFile> {
        self.snapshots.incoming()
    }

    fn observe(&self, index: u64, payload: &Payload, applied: &Applied) {
        let Some(observer) = &self.observer else { return };
        match payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(batch) => observer.applied(index, batch, applied),
            EntryPayload::Membership(membership) => {
                let voters = membership.voter_ids().collect();
                let learners = membership.learner_ids().collect();
                observer.membership(index, self.read().machine.now(), voters, learners);
            }
        }
    }

    /// Whether applying what came after the last snapshot takes longer than reading one, by a share that differs from node
    /// to node: a restart would wait for it.
    pub(super) fn is_due(&self, share: (u64, u64)) -> bool {
        let replica = self.read();
        let most = UNSAVED_MIN.max(replica.machine.keys() as u64 / 2);
        replica.unsaved >= most / share.1 * share.0
    }

    /// What a snapshot of this very state takes on disk: as much work as writing one.
    pub(super) async fn snapshot_bytes_exactly(&self) -> io::Result<u64> {
        let frozen = self.read().machine.freeze();
        blocking(move || {
            let mut count = Count(0);
            frozen.write(&mut count)?;
            Ok(count.0)
        })
        .await
    }

    /// About what the next snapshot takes on disk.
    pub(super) fn snapshot_bytes(&self) -> u64 {
        let last = self.snapshots.current().ok().flatten().and_then(|current| current.bytes().ok()).unwrap_or(0);
        let replica = self.read();
        let keys = KEY_BYTES * replica.machine.keys() as u64;
        (keys + REQUEST_ID_BYTES * replica.machine.request_ids() as u64).max(2 * last)
    }

    /// The entry as if it had been stamped here and now: for a planted bug.
    fn restamped(&self, payload: &Payload) -> Option<Payload> {
        let EntryPayload::Normal(batch) = payload else { return None };
        let stamp = Stamp { time: self.log.own_time(), ..batch.stamp };
        Some(EntryPayload::Normal(Arc::new(Batch { stamp, ..batch.as_ref().clone() })))
    }

    fn meta(replica: &Replica) -> SnapshotMetaOf<TypeConfig> {
        SnapshotMetaOf::<TypeConfig> { last_log_id: replica.applied, last_membership: replica.membership.clone() }
    }
}

/// Counts what is written to it.
struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Applies one entry and says what came of it.
fn apply(replica: &mut Replica, log_id: LogId, payload: &Payload) -> Applied {
    replica.applied = Some(log_id);
    match payload {
        EntryPayload::Blank => Applied::Nothing,
        EntryPayload::Normal(batch) => {
            replica.unsaved += batch.commands.iter().map(|command| command.weight() as u64).sum::<u64>();
            let applied = replica.machine.apply(leader_id(&log_id.leader_id), batch);
            if applied == Applied::StaleStamp {
                metrics::counter!(metric_names::STALE_STAMPS_TOTAL).increment(1);
            }
            applied
        }
        EntryPayload::Membership(membership) => {
            replica.membership = StoredMembership::new(Some(log_id), membership.clone());
            Applied::Nothing
        }
    }
}

impl RaftStateMachine<TypeConfig> for StateStore {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let replica = self.read();
        Ok((replica.applied, replica.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut first = true;
        while let Some((entry, responder)) = entries.try_next().await? {
            if std::mem::take(&mut first) && responder.is_none() && self.is_newest(entry.log_id.index) {
                self.log.append_returns(STANDS_BACK).await;
            }
            failpoint::reached("apply");
            let payload = if planted::is(Bug::StampAtApply) { self.restamped(&entry.payload) } else { None };
            let payload = payload.as_ref().unwrap_or(&entry.payload);
            let applied = apply(&mut self.write(), entry.log_id, payload);
            self.observe(entry.log_id.index, &entry.payload, &applied);
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        let replica = self.read();
        metrics::gauge!(metric_names::KEYS).set(metric_names::gauge_value(replica.machine.keys() as u64));
        metrics::gauge!(metric_names::REQUEST_IDS).set(metric_names::gauge_value(replica.machine.request_ids() as u64));
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let mut replica = self.write();
        replica.unsaved = 0;
        Builder {
            state: Some(replica.machine.freeze()),
            meta: Self::meta(&replica),
            snapshots: Arc::clone(&self.snapshots),
            log: self.log.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, snapshot: SnapshotFile) -> io::Result<()> {
        // What the log had instead of the snapshot's last entry was truncated before this. It must not be there again after a crash,
        // longer than the snapshot and of an older term.
        self.log.sync().await?;
        let snapshots = Arc::clone(&self.snapshots);
        let mut snapshot = snapshot;
        let (said, machine) = blocking(move || {
            let loaded = snapshot.load()?;
            failpoint::reached("install");
            snapshots.make_current(&mut snapshot, loaded.0.last)?;
            Ok(loaded)
        })
        .await?;
        if said.last.map(LogId::from) != meta.last_log_id {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the snapshot is not the one that was announced"));
        }
        let time = machine.now();
        *self.write() =
            Replica { machine, applied: meta.last_log_id, membership: meta.last_membership.clone(), unsaved: 0 };
        if meta.last_log_id.map(|id| id.index) > self.log.last_index() {
            self.log.snapshot_installed(time);
        }
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotFile>>> {
        let snapshots = Arc::clone(&self.snapshots);
        blocking(move || {
            let Some(mut snapshot) = snapshots.current()? else { return Ok(None) };
            let said = snapshot.verify()?;
            let meta = SnapshotMetaOf::<TypeConfig> {
                last_log_id: said.last.map(LogId::from),
                last_membership: said.membership.into(),
            };
            Ok(Some(SnapshotOf::<TypeConfig, SnapshotFile> { meta, snapshot }))
        })
        .await
    }
}

/// Writes one frozen state, once.
pub struct Builder {
    state: Option<Frozen>,
    meta: SnapshotMetaOf<TypeConfig>,
    snapshots: Arc<SnapshotDir>,
    log: LogStore,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotFile>> {
        let state = self.state.take().ok_or_else(|| io::Error::other("this state was written before"))?;
        // Entries are applied when a majority has them, which need not be this disk: a snapshot does not overtake the log.
        self.log.sync().await?;
        let (keys, snapshots) = (state.keys(), Arc::clone(&self.snapshots));
        let head = WireSnapshotMeta {
            last: self.meta.last_log_id.as_ref().map(Into::into),
            membership: (&self.meta.last_membership).into(),
        };
        let snapshot = aside("snapshot", move || {
            // What nobody else holds of it any more is given back on this thread too: it may be all of it.
            let mut snapshot = snapshots.write(&head, &state)?;
            failpoint::reached("snapshot");
            snapshots.make_current(&mut snapshot, head.last)?;
            Ok(snapshot)
        })
        .await?;
        tracing::info!(last = ?self.meta.last_log_id.map(|id| id.index), keys, "snapshot written");
        Ok(SnapshotOf::<TypeConfig, SnapshotFile> { meta: self.meta.clone(), snapshot })
    }
}

#[cfg(test)]
mod tests {
    use super::super::types::{Entry, engine_leader_id};
    use super::*;
    use crate::clock::{ClockId, ManualClocks};
    use crate::state::LeaderId;
    use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
    use std::fs;

    fn blank(term: u64, index: u64) -> Entry {
        let leader_id = engine_leader_id(LeaderId { term, node: 1 });
        Entry { log_id: LogId { leader_id, index }, payload: EntryPayload::Blank }
    }

    fn stores(dir: &Path) -> (LogStore, StateStore) {
        let log = LogStore::open(&dir.join("log"), Arc::new(ManualClocks::new(ClockId(1)))).unwrap();
        let state = StateStore::open(&dir.join("snapshots"), log.clone(), None).unwrap();
        (log, state)
    }

    #[tokio::test]
    async fn only_the_newest_entries_stand_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut log, state) = stores(dir.path());
        log.blocking_append((0..=9).map(|index| blank(1, index))).await.unwrap();
        assert_eq!([6, 7, 9].map(|index| state.is_newest(index)), [false, true, true]);
    }

    /// A crash right after a snapshot has become the current one finds no entries that it overruled.
    #[tokio::test]
    async fn a_snapshot_does_not_overtake_the_truncation_before_it() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let (_, mut sender) = stores(dirs[0].path());
        sender.apply(futures::stream::iter((0..=10).map(|index| Ok((blank(2, index), None))))).await.unwrap();
        let sent = sender.get_snapshot_builder().await.build_snapshot().await.unwrap();

        let (mut log, mut state) = stores(dirs[1].path());
        log.blocking_append((0..=20).map(|index| blank(1, index))).await.unwrap();
        log.truncate_after(Some(blank(1, 5).log_id)).await.unwrap();
        state.install_snapshot(&sent.meta, sent.snapshot).await.unwrap();

        // As a kill would leave it.
        let copy = dirs[2].path().join("log");
        fs::create_dir(&copy).unwrap();
        for file in fs::read_dir(dirs[1].path().join("log")).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        let (mut log, _) = stores(dirs[2].path());
        assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(blank(1, 5).log_id));
    }
}
