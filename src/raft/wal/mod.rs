//! The journal in files: one ordered stream of checksummed blocks for vote and entries, in segments that lie ready
//! (docs/adr/0022).
//!
//! Invariants
//! - A flush is reported only after `fdatasync` has returned.
//! - What a crash tore is dropped at the very end and refused elsewhere.
//! - A segment goes only when a purge of all its entries is on the disk, the oldest first.

mod block;
mod segment;
mod sync;
#[cfg(test)]
mod tests;

use super::codec::{WireLogId, WirePayload, WireVote};
use super::journal::{Flushed, Journal, Record, Stamped, State, StoredEntry};
use super::types::Vote;
use block::{Change, Changes, Salt};
use segment::{Ahead, Finder, Place};
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use sync::{Syncer, Write};

/// The file that keeps a second process out.
const LOCK: &str = "lock";
/// What entries take in memory for replication at the most; older ones are read from their files.
const CACHE_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Opens or creates the log in `dir`.
pub(super) fn open(dir: &Path) -> io::Result<Box<dyn Journal>> {
    Ok(Box::new(open_files(dir)?))
}

fn open_files(dir: &Path) -> io::Result<Wal> {
    fs::create_dir_all(dir)?;
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    let lock = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
    lock.try_lock().map_err(|error| io::Error::other(format!("the log is in use: {error}")))?;
    let mut numbers = segment::list(dir, LOCK)?;
    let salt = segment::salt(dir, numbers.is_empty())?;
    if numbers.is_empty() {
        segment::create(dir, 1)?;
        numbers.push(1);
    }
    let (mut state, mut index) = (State::default(), Index::default());
    let end = segment::read(dir, (salt, &numbers), &mut state, &mut index)?;
    index.finish(&mut state)?;
    let file = Arc::new(segment::cut(dir, &numbers, end)?);
    let segments = numbers.into_iter().filter(|number| *number <= end.segment).collect();
    Ok(Wal {
        dir: dir.to_owned(),
        salt,
        syncer: Syncer::start(end.block)?,
        state,
        index,
        changes: Changes::default(),
        unplaced: VecDeque::new(),
        segments,
        file,
        offset: end.offset,
        next: None,
        block: end.block,
        begun_by: end.block,
        purge: None,
        remover: None,
        failed: None,
        _lock: lock,
    })
}

struct Wal {
    dir: PathBuf,
    salt: Salt,
    syncer: Syncer,
    state: State,
    index: Index,
    /// What was changed since the last flush.
    changes: Changes,
    /// Where among them the entries begin.
    unplaced: VecDeque<u32>,
    /// The numbers of all segments; the last one is written to.
    segments: VecDeque<u64>,
    file: Arc<File>,
    /// Where the next block goes.
    offset: u64,
    /// The segment after this one, while it is made.
    next: Option<Ahead>,
    /// The number of the last block.
    block: u64,
    /// The number of the first block of the last segment, or of a later one that is on the disk.
    begun_by: u64,
    /// The block with the last purge, while its segments are still there.
    purge: Option<u64>,
    /// Removes segments.
    remover: Option<JoinHandle<()>>,
    /// Why a flush could not even be begun. What it should have written is not anywhere, so none can be begun after it.
    failed: Option<(io::ErrorKind, String)>,
    /// Let go of last: a thread may write until the others are gone.
    _lock: File,
}

/// Where every entry stands, and the last ones themselves.
#[derive(Default)]
struct Index {
    /// Without gaps. Those that no flush has taken along yet have no place.
    slots: VecDeque<(WireLogId, Option<Place>)>,
    /// The last entries, and what each takes.
    cache: VecDeque<(StoredEntry, u64)>,
    cached_bytes: u64,
}

fn memory_bytes(entry: &StoredEntry) -> u64 {
    match &entry.payload {
        WirePayload::Batch(batch) => batch.memory_bytes(),
        WirePayload::Blank | WirePayload::Membership(_) => 256,
    }
}

impl Index {
    fn first(&self) -> Option<u64> {
        self.slots.front().map(|(id, _)| id.index)
    }

    fn last(&self) -> Option<WireLogId> {
        self.slots.back().map(|(id, _)| *id)
    }

    fn push(&mut self, id: WireLogId, place: Option<Place>, entry: StoredEntry) {
        self.slots.push_back((id, place));
        let bytes = memory_bytes(&entry);
        self.cached_bytes += bytes;
        self.cache.push_back((entry, bytes));
    }

    /// Lets go of the oldest entries in memory where there are too many. What is on its way to the disk cannot be read from there
    /// yet, and stays.
    fn evict(&mut self, durable: u64) {
        while self.cached_bytes > CACHE_BYTES_MAX {
            let oldest = self.slots[self.slots.len() - self.cache.len()].1;
            if oldest.is_none_or(|place| place.number > durable) {
                return;
            }
            self.cached_bytes -= self.cache.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }

    /// Forgets all from `index` on.
    fn truncate(&mut self, index: u64) {
        while self.last().is_some_and(|last| last.index >= index) {
            self.slots.pop_back();
            self.cached_bytes -= self.cache.pop_back().map_or(0, |(_, bytes)| bytes);
        }
    }

    /// Forgets all up to `index`.
    fn purge(&mut self, index: u64) {
        while self.first().is_some_and(|first| first <= index) {
            if self.cache.len() == self.slots.len() {
                self.cached_bytes -= self.cache.pop_front().map_or(0, |(_, bytes)| bytes);
            }
            self.slots.pop_front();
        }
    }

    /// After everything was read: what is left has to begin where the purge ended.
    fn finish(&mut self, state: &mut State) -> io::Result<()> {
        if let Some(purged) = state.purged {
            self.purge(purged.index);
        }
        let begins = state.purged.map_or(0, |id| id.index + 1);
        if self.first().is_some_and(|first| first != begins) {
            return Err(segment::damaged(&format!("the log begins at entry {:?} and not at {begins}", self.first())));
        }
        state.last = self.last().or(state.purged);
        Ok(())
    }
}

impl Finder for Index {
    fn change(&mut self, at: Place, change: Change) -> io::Result<()> {
        match change {
            Change::Truncate(index) => self.truncate(index),
            Change::Append(id, entry) => {
                // Behind a snapshot that was installed the log begins anew, further on.
                if self.last().is_some_and(|last| id.index != last.index + 1) {
                    self.purge(u64::MAX);
                }
                self.push(id, Some(at), entry);
                self.evict(u64::MAX);
            }
        }
        Ok(())
    }
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the log refuses {what}"))
}

impl Wal {
    /// The last entry that stays when all from `index` on go.
    fn before(&self, index: u64) -> io::Result<Option<WireLogId>> {
        let begins = self.state.purged.map_or(0, |id| id.index + 1);
        if index == begins {
            return Ok(self.state.purged);
        }
        let kept = index.checked_sub(begins + 1).and_then(|at| self.index.slots.get(usize::try_from(at).ok()?));
        kept.map(|(id, _)| Some(*id)).ok_or_else(|| refused("to truncate to an entry that is not there"))
    }

    /// Where a block of so many bytes goes. The segment after this one is begun when half of this one is full.
    fn place(&mut self, bytes: u64) -> io::Result<u64> {
        let number = *self.segments.back().ok_or_else(|| io::Error::other("a log without files"))?;
        let size = segment::bytes_of(number);
        if self.offset + bytes > size / 2 && self.next.is_none() {
            // Without a thread for it, it is made when it is needed.
            self.next = Ahead::begin(&self.dir, number + 1).ok();
        }
        if let Some(next) = &self.next
            && self.offset + bytes > size / 4 * 3
        {
            next.hurry();
        }
        if self.offset > 0 && self.offset + bytes > size {
            self.file = Arc::new(match self.next.take().map(Ahead::finish) {
                Some(Ok(file)) => file,
                // Whatever was wrong then, a disk that was full for one, may be over by now.
                _ => segment::create(&self.dir, number + 1)?,
            });
            self.segments.push_back(number + 1);
            self.offset = 0;
            self.begun_by = self.block + 1;
        }
        let at = self.offset;
        self.offset += bytes;
        Ok(at)
    }

    /// Removes the segments that nothing is needed of any more, once the purge that says so is on the disk, and a block of the last
    /// segment: it says where the log stands when the others are gone.
    fn remove_purged(&mut self) {
        if self.purge.is_none_or(|block| block.max(self.begun_by) > self.syncer.durable()) {
            return;
        }
        self.purge = None;
        let needed = self.index.slots.iter().find_map(|(_, place)| place.map(|place| place.segment));
        let keep = needed.or(self.segments.back().copied()).unwrap_or(0);
        let before = self.segments.len();
        while self.segments.len() > 1 && self.segments.front().is_some_and(|number| *number < keep) {
            self.segments.pop_front();
        }
        if self.segments.len() == before {
            return;
        }
        let (dir, earlier) = (self.dir.clone(), self.remover.take());
        let remove = move || {
            let _ = earlier.map(JoinHandle::join);
            if let Err(error) = segment::remove_before(&dir, keep) {
                tracing::warn!(%error, "a file of the log that is not needed any more stays for now");
            }
        };
        // What could not be removed now goes with the next ones.
        self.remover = thread::Builder::new().name("log-purge".to_owned()).spawn(remove).ok();
    }

    /// Everything that changed since the last flush becomes a block, and that goes to the disk.
    fn submit(&mut self, waiter: Option<Flushed>) -> io::Result<()> {
        let number = self.block + 1;
        let changes = std::mem::take(&mut self.changes);
        let (bytes, changes_at) = changes.into_block(self.salt, (number, self.syncer.durable()), &self.state)?;
        let offset = self.place(bytes.len() as u64)?;
        let segment = self.segments.back().copied().unwrap_or(0);
        let unplaced = self.unplaced.len();
        let slots = self.index.slots.iter_mut().rev().take(unplaced);
        for ((_, place), change) in slots.zip(self.unplaced.drain(..).rev()) {
            *place = Some(Place { segment, number, block: offset, change: changes_at + change });
        }
        self.block = number;
        self.syncer.submit(number, Write { file: Arc::clone(&self.file), offset, bytes }, waiter)
    }

    fn block_at(&self, place: Place) -> io::Result<Vec<u8>> {
        let gone = || segment::damaged("a block of the log is not what it was");
        let file = File::open(segment::path(&self.dir, place.segment))?;
        let mut head = [0; block::HEAD_BYTES];
        file.read_exact_at(&mut head, place.block)?;
        let found = block::head(self.salt, &head).ok_or_else(gone)?;
        let mut bytes = vec![0; found.block_bytes()];
        file.read_exact_at(&mut bytes, place.block)?;
        found.body(self.salt, &bytes).ok_or_else(gone)?;
        Ok(bytes)
    }
}

impl Journal for Wal {
    fn state(&self) -> State {
        self.state
    }

    fn read(&self, from: u64, to: u64) -> Box<dyn Iterator<Item = io::Result<Record>> + '_> {
        let Index { slots, cache, .. } = &self.index;
        let begins = self.index.first().unwrap_or(0);
        let at = |index: u64| usize::try_from(index.saturating_sub(begins)).unwrap_or(usize::MAX).min(slots.len());
        let uncached = slots.len() - cache.len();
        // The entries of one block are read together.
        let mut held: Option<(Place, Vec<u8>)> = None;
        Box::new((at(from)..at(to)).map(move |at| {
            let (id, place) = slots[at];
            if let Some(cached) = at.checked_sub(uncached) {
                return Ok((id, cache[cached].0.clone()));
            }
            let place = place.ok_or_else(|| io::Error::other("an entry is neither in memory nor on the disk"))?;
            if held.as_ref().is_none_or(|(held, _)| (held.segment, held.block) != (place.segment, place.block)) {
                held = Some((place, self.block_at(place)?));
            }
            let block = held.as_ref().map_or(&[][..], |(_, block)| block);
            let record = block::entry_at(block, place.change)?;
            if record.0 == id { Ok(record) } else { Err(segment::damaged("an entry of the log is not what it was")) }
        }))
    }

    fn append(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()> {
        for record in records {
            let id = record.0;
            if self.state.last.is_some_and(|last| id <= last || id.index != last.index + 1) {
                return Err(refused("an entry out of order"));
            }
            self.unplaced.push_back(self.changes.append(&record)?);
            self.index.push(id, None, record.1);
            self.state.last = Some(id);
        }
        Ok(())
    }

    fn truncate(&mut self, index: u64) -> io::Result<()> {
        let last = self.before(index)?;
        if last < self.state.committed {
            return Err(refused("to truncate what is committed"));
        }
        let unplaced = self.index.slots.iter().rev().take_while(|(_, place)| place.is_none());
        let taken_back = unplaced.filter(|(id, _)| id.index >= index).count();
        self.unplaced.truncate(self.unplaced.len() - taken_back);
        self.changes.truncate(index)?;
        self.index.truncate(index);
        self.state.last = last;
        // Until this is on the disk, the segments of what was taken back are needed.
        self.purge = self.purge.map(|_| self.block + 1);
        Ok(())
    }

    fn purge(&mut self, upto: WireLogId) -> io::Result<()> {
        if upto.index < self.state.purged.map_or(0, |id| id.index + 1) {
            return Ok(());
        }
        let unplaced = self.index.slots.iter().filter(|(id, place)| place.is_none() && id.index <= upto.index).count();
        self.unplaced.drain(..unplaced);
        self.index.purge(upto.index);
        self.state.purged = Some(upto);
        self.state.last = self.index.last().or(Some(upto));
        self.purge = Some(self.block + 1);
        Ok(())
    }

    fn save_vote(&mut self, vote: WireVote) -> io::Result<()> {
        if self.state.vote.is_some_and(|old| Vote::from(vote) < Vote::from(old)) {
            return Err(refused("a vote that goes back"));
        }
        self.state.vote = Some(vote);
        Ok(())
    }

    fn save_committed(&mut self, committed: WireLogId) -> io::Result<()> {
        if Some(committed) < self.state.committed || Some(committed) > self.state.last {
            return Err(refused("a commit that goes back or beyond the last entry"));
        }
        self.state.committed = Some(committed);
        Ok(())
    }

    fn save_floor(&mut self, floor: Option<Stamped>) -> io::Result<()> {
        self.state.floor = floor;
        Ok(())
    }

    fn flush(&mut self, waiter: Option<Flushed>) -> io::Result<()> {
        if let Some((kind, why)) = &self.failed {
            return Err(io::Error::new(*kind, why.clone()));
        }
        if let Err(error) = self.submit(waiter) {
            self.failed = Some((error.kind(), error.to_string()));
            return Err(error);
        }
        self.index.evict(self.syncer.durable());
        self.remove_purged();
        Ok(())
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // A file that is still being made, or removed, would surprise whoever opens this next.
        let _ = self.next.take().map(Ahead::finish);
        let _ = self.remover.take().map(JoinHandle::join);
    }
}
