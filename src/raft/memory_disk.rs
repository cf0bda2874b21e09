//! The twin of a node's directory for the simulation: files and a log in memory, and what a crash leaves of them.
//!
//! Not behind `cfg(test)`, because the tests of whole nodes live outside the crate. It tells no lie that a real disk could
//! not: what was not synced may be gone after a crash, and what was synced is there.
//!
//! Invariants
//! - The log is one ordered stream, vote and entries. A crash keeps everything synced and a random prefix of the rest.
//! - A waiter is told of a sync only after the time a sync takes, and the sync covers what was written before it began.
//! - A file's contents are durable once synced, its name once its directory is; before that either may be lost.
//! - The records it refuses are the ones that the log in files refuses: a vote or a log that goes back, a truncated commit.

use super::codec::{WireLogId, WireVote};
use super::disk::{Medium, OpenFile};
use super::journal::{Flushed, Journal, Record, Stamped, State, StoredEntry};
use super::types::Vote;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A disk in memory. Clones are the same one; it outlives the node that uses it.
#[derive(Clone)]
pub struct MemoryDisk(Arc<Mutex<Platter>>);

struct Platter {
    random: u64,
    log: Vec<Change>,
    synced: usize,
    /// Who waits for a sync, and up to where it has to reach.
    waiting: Vec<(usize, Option<Flushed>)>,
    /// Counts openings: a syncer of an earlier life must not touch this one.
    life: u64,
    sync_us_max: u64,
    files: BTreeMap<PathBuf, Inode>,
    durable: BTreeMap<PathBuf, Inode>,
    syncs: u64,
    /// What may still be written, as it says; nothing is refused.
    free_bytes: u64,
}

type Inode = Arc<Mutex<Contents>>;

#[derive(Debug, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: usize,
}

/// One record of the log.
#[derive(Clone)]
enum Change {
    Append(WireLogId, StoredEntry),
    Truncate(u64),
    Purge(WireLogId),
    Vote(WireVote),
    Committed(WireLogId),
    Floor(Option<Stamped>),
}

impl std::fmt::Debug for MemoryDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryDisk")
    }
}

impl MemoryDisk {
    /// An empty disk; `seed` decides how long its syncs take and what crashes leave.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Platter {
            random: seed | 1,
            log: Vec::new(),
            synced: 0,
            waiting: Vec::new(),
            life: 0,
            sync_us_max: 2_000,
            files: BTreeMap::new(),
            durable: BTreeMap::new(),
            syncs: 0,
            free_bytes: u64::MAX,
        })))
    }

    /// From now on a sync takes up to this long.
    pub fn set_sync_max(&self, most: Duration) {
        self.lock().sync_us_max = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
    }

    /// From now on it says that so much may still be written. Nothing is refused: what a node writes into its reserve fits.
    pub fn set_free(&self, bytes: u64) {
        self.lock().free_bytes = bytes;
    }

    /// The node is gone, and with it a random part of what was not synced, from the end. What is left of that after a mere
    /// crash of the process can still go in a power cut.
    pub fn crash(&self, power_cut: bool) {
        let mut platter = self.lock();
        platter.life += 1;
        platter.waiting.clear();
        let (synced, written) = (platter.synced, platter.log.len());
        let keep = if power_cut && platter.chance(2) { synced } else { platter.between(synced, written) };
        platter.log.truncate(keep);
        if !power_cut {
            // What the process wrote is still with the system, and still not synced.
            return;
        }
        platter.synced = keep;
        let names_survive = platter.chance(2);
        let names = if names_survive { platter.files.clone() } else { platter.durable.clone() };
        for inode in names.values() {
            let mut contents = lock(inode);
            let (synced, written) = (contents.synced, contents.bytes.len());
            let keep = platter.between(synced, written);
            contents.bytes.truncate(keep);
            contents.synced = keep;
        }
        platter.durable.clone_from(&names);
        platter.files = names;
    }

    /// How many syncs of the log were done.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        lock(&self.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Platter {
    /// The next number of an xorshift generator: enough for delays and tails.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 16) as usize % (high - low + 1)
    }

    fn chance(&mut self, one_in: u64) -> bool {
        (self.next() >> 16).is_multiple_of(one_in)
    }
}

/// Syncs in the background, as a disk does, until the disk crashes or is opened again.
async fn sync_again_and_again(disk: MemoryDisk, life: u64, wake: Arc<Notify>) {
    loop {
        let taken = {
            let mut platter = disk.lock();
            if platter.life != life {
                return;
            }
            let most = platter.sync_us_max;
            let waiting = std::mem::take(&mut platter.waiting);
            (!waiting.is_empty()).then(|| (waiting, platter.next() % (most + 1)))
        };
        let Some((waiting, takes_us)) = taken else {
            wake.notified().await;
            continue;
        };
        tokio::time::sleep(Duration::from_micros(takes_us)).await;
        {
            let mut platter = disk.lock();
            if platter.life != life {
                return;
            }
            let upto = waiting.iter().map(|(upto, _)| *upto).max().unwrap_or(0);
            platter.synced = platter.synced.max(upto);
            platter.syncs += 1;
        }
        for waiter in waiting.into_iter().filter_map(|(_, waiter)| waiter) {
            waiter.done(Ok(()));
        }
    }
}

/// The log as an open node sees it: what the records amount to.
struct MemoryLog {
    disk: MemoryDisk,
    wake: Arc<Notify>,
    state: State,
    entries: BTreeMap<u64, Record>,
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the log refuses {what}"))
}

impl MemoryLog {
    fn check(&self, change: &Change) -> io::Result<()> {
        let State { vote, last, committed, .. } = self.state;
        match change {
            Change::Vote(new) if vote.is_some_and(|old| Vote::from(*new) < Vote::from(old)) => {
                Err(refused("a vote that goes back"))
            }
            Change::Append(id, _) if last.is_some_and(|last| *id <= last || id.index != last.index + 1) => {
                Err(refused("an entry out of order"))
            }
            Change::Committed(id) if Some(*id) < committed || Some(*id) > last => {
                Err(refused("a commit that goes back or beyond the last entry"))
            }
            Change::Truncate(index) if self.before(*index)? < committed => {
                Err(refused("to truncate what is committed"))
            }
            _ => Ok(()),
        }
    }

    /// The last entry that stays when all from `index` on go.
    fn before(&self, index: u64) -> io::Result<Option<WireLogId>> {
        if index == self.state.purged.map_or(0, |id| id.index + 1) {
            return Ok(self.state.purged);
        }
        let kept = index.checked_sub(1).and_then(|at| self.entries.get(&at));
        kept.map(|(id, _)| Some(*id)).ok_or_else(|| refused("to truncate to an entry that is not there"))
    }

    fn apply(&mut self, change: Change) -> io::Result<()> {
        self.check(&change)?;
        match change {
            Change::Append(id, entry) => {
                self.state.last = Some(id);
                self.entries.insert(id.index, (id, entry));
            }
            Change::Truncate(index) => {
                self.state.last = self.before(index)?;
                self.entries.split_off(&index);
            }
            Change::Purge(upto) => {
                self.state.purged = self.state.purged.max(Some(upto));
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.state.last = self.entries.last_key_value().map(|(_, (id, _))| *id).or(self.state.purged);
            }
            Change::Vote(vote) => self.state.vote = Some(vote),
            Change::Committed(id) => self.state.committed = Some(id),
            Change::Floor(floor) => self.state.floor = floor,
        }
        Ok(())
    }

    fn write(&mut self, change: Change) -> io::Result<()> {
        self.apply(change.clone())?;
        self.disk.lock().log.push(change);
        Ok(())
    }

    /// The shortest log that amounts to the same.
    fn compacted(&self) -> Vec<Change> {
        let State { vote, committed, purged, floor, .. } = self.state;
        let head = [vote.map(Change::Vote), Some(Change::Floor(floor)), purged.map(Change::Purge)];
        let entries = self.entries.values().map(|(id, entry)| Change::Append(*id, entry.clone()));
        head.into_iter().flatten().chain(entries).chain(committed.map(Change::Committed)).collect()
    }
}

impl Journal for MemoryLog {
    fn state(&self) -> State {
        self.state
    }

    fn read(&self, from: u64, to: u64) -> Box<dyn Iterator<Item = io::Result<Record>> + '_> {
        Box::new(self.entries.range(from..to).map(|(_, record)| Ok(record.clone())))
    }

    fn append(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()> {
        for (id, entry) in records {
            self.write(Change::Append(id, entry))?;
        }
        Ok(())
    }

    fn truncate(&mut self, index: u64) -> io::Result<()> {
        self.write(Change::Truncate(index))
    }

    fn purge(&mut self, upto: WireLogId) -> io::Result<()> {
        if upto.index < self.state.purged.map_or(0, |id| id.index + 1) {
            return Ok(());
        }
        self.write(Change::Purge(upto))
    }

    fn save_vote(&mut self, vote: WireVote) -> io::Result<()> {
        self.write(Change::Vote(vote))
    }

    fn save_committed(&mut self, committed: WireLogId) -> io::Result<()> {
        self.write(Change::Committed(committed))
    }

    fn save_floor(&mut self, floor: Option<Stamped>) -> io::Result<()> {
        self.write(Change::Floor(floor))
    }

    fn flush(&mut self, waiter: Option<Flushed>) -> io::Result<()> {
        let mut platter = self.disk.lock();
        let upto = platter.log.len();
        platter.waiting.push((upto, waiter));
        self.wake.notify_one();
        Ok(())
    }
}

impl Medium for MemoryDisk {
    fn open_log(&self, _dir: &Path) -> io::Result<Box<dyn Journal>> {
        let wake = Arc::new(Notify::new());
        let (life, changes) = {
            let mut platter = self.lock();
            platter.life += 1;
            (platter.life, platter.log.clone())
        };
        let disk = self.clone();
        let mut log = MemoryLog { disk, wake: Arc::clone(&wake), state: State::default(), entries: BTreeMap::new() };
        for change in changes {
            log.apply(change)?;
        }
        {
            let mut platter = self.lock();
            if platter.synced == platter.log.len() {
                platter.log = log.compacted();
                platter.synced = platter.log.len();
            }
        }
        tokio::spawn(sync_again_and_again(self.clone(), life, wake));
        Ok(Box::new(log))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.lock().free_bytes)
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, path: &Path) -> bool {
        self.lock().files.keys().any(|file| file.starts_with(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(self.lock().files.keys().filter(|file| file.parent() == Some(dir)).cloned().collect())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let inode = self.lock().files.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(MemoryFile { inode, at: 0 }))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        let inode = Inode::default();
        self.lock().files.insert(path.to_owned(), Arc::clone(&inode));
        Ok(Box::new(MemoryFile { inode, at: 0 }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut platter = self.lock();
        let inode = platter.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        platter.files.insert(to.to_owned(), inode);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.lock().files.remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let platter = &mut *self.lock();
        platter.durable.retain(|path, _| path.parent() != Some(dir));
        let here = platter.files.iter().filter(|(path, _)| path.parent() == Some(dir));
        platter.durable.extend(here.map(|(path, inode)| (path.clone(), Arc::clone(inode))));
        Ok(())
    }
}

#[derive(Debug)]
struct MemoryFile {
    inode: Inode,
    at: usize,
}

impl OpenFile for MemoryFile {
    fn size(&self) -> io::Result<u64> {
        Ok(lock(&self.inode).bytes.len() as u64)
    }

    fn sync(&self) -> io::Result<()> {
        let mut contents = lock(&self.inode);
        contents.synced = contents.bytes.len();
        Ok(())
    }
}

impl Read for MemoryFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let contents = lock(&self.inode);
        let mut rest = contents.bytes.get(self.at..).unwrap_or_default();
        let read = rest.read(out)?;
        self.at += read;
        Ok(read)
    }
}

impl Write for MemoryFile {
    /// At the end: nothing in this project writes over what it wrote.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut contents = lock(&self.inode);
        contents.bytes.extend_from_slice(bytes);
        self.at = contents.bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for MemoryFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let SeekFrom::Start(at) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        self.at = usize::try_from(at).map_err(io::Error::other)?;
        Ok(at)
    }
}
