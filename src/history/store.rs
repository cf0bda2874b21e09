//! The open database: a row of volumes, and what keeps them within their bounds.
//!
//! A *volume* is a sled database of its own, in a directory of its own. Only the newest is written. It is closed when its files
//! have an eighth of the bytes that are allowed, or it is an eighth as old as anything may be; the oldest is deleted when it is
//! too old, or when the files of all are too large. So the bound is on real files, and forgetting is removing a directory. (In
//! one database for all, what is removed does not come back as space: ADR 0009.)
//!
//! Invariants
//! - One writer. Readers hold the lock of the row while they read, so that no volume is taken away under them.
//! - Whatever a log entry brought lies in the same batch as its index. After a crash all of an entry is there or nothing of it,
//!   and what is not there is above the recorded index: if the log tells it again, it is recorded as if for the first time.
//! - The audit trail goes along from volume to volume, so that traffic does not push it out.
//! - Every wall clock reading is an argument: the store has no clock.
//!
//! Not here: what is written and when (`write.rs`, `desk.rs`), how it is read (`read.rs`), threads, deadlines, and what happens
//! when any of this fails.

use super::place::{Place, audit_from};
use super::record::{AuditRecord, VolumeHeader, decode, encode};
use super::write::Margin;
use crate::clock::Deadline;
use crate::limiter::Time;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// Volumes that the bytes, and the age, are divided into.
const VOLUMES: u64 = 8;
/// Seconds of cluster time for which usage by the second is shown.
pub(super) const SECONDS_SHOWN: u64 = 3_600;
/// Lines of the audit trail that a new volume begins with, the newest.
const AUDIT_CARRIED: usize = 2_000;
/// Changes of the cluster are few and asked for late: they live this many times longer than the rest.
const AUDIT_AGE_FACTOR: u32 = 12;
/// What the newest volume keeps in memory, and any other.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;
const CACHE_BYTES_SEALED: u64 = 1024 * 1024;
/// A database that was just closed in this process may stay locked for a moment.
const LOCKED_FOR: Duration = Duration::from_secs(2);
const LOCKED_PAUSE: Duration = Duration::from_millis(5);

const VOLUME_PREFIX: &str = "volume-";

/// Why the database is of no use.
#[derive(Debug, Error)]
pub(super) enum Broken {
    /// The store says so.
    #[error("{0}")]
    Store(#[from] sled::Error),
    /// The disk says so.
    #[error("{0}")]
    Disk(#[from] io::Error),
    /// A record cannot be written.
    #[error("a record cannot be written: {0}")]
    Encode(#[from] postcard::Error),
    /// What is there is not ours.
    #[error("{0}")]
    Content(String),
}

impl Broken {
    /// Whether somebody else has it open; then it is not broken at all.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self, Self::Store(sled::Error::Io(error)) if error.to_string().contains("could not acquire lock"))
    }

    /// Whether it says something about the disk and nothing about what is on it.
    pub(super) fn is_of_the_disk(&self) -> bool {
        let (Self::Store(sled::Error::Io(error)) | Self::Disk(error)) = self else { return false };
        matches!(
            error.kind(),
            io::ErrorKind::PermissionDenied
                | io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::OutOfMemory
        )
    }
}

/// How much may be kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Of all files together.
    pub(super) bytes_max: u64,
    pub(super) age_max: Duration,
}

impl Bounds {
    /// Whether something from `wall_ms` is too old at `now_ms`. A clock that went back makes nothing old.
    pub(super) fn too_old(&self, wall_ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(wall_ms) > millis(self.age_max)
    }
}

/// The open database.
#[derive(Debug)]
pub(super) struct Store {
    dir: PathBuf,
    pub(super) bounds: Bounds,
    row: RwLock<Row>,
    /// The writer's own.
    margin: Mutex<Margin>,
}

/// All volumes, the newest last; there is always one.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) volumes: Vec<Volume>,
}

/// One volume.
#[derive(Debug)]
pub(super) struct Volume {
    number: u64,
    path: PathBuf,
    pub(super) db: sled::Db,
    pub(super) header: VolumeHeader,
}

impl Row {
    fn header(&self) -> VolumeHeader {
        self.volumes.last().map(|volume| volume.header.clone()).unwrap_or_default()
    }

    /// Cluster time of the last recorded entry.
    pub(super) fn until(&self) -> Time {
        Time(self.volumes.last().map_or(0, |volume| volume.header.last_ns))
    }
}

impl Volume {
    /// Opens or creates one; a new one begins where `before` ends.
    fn open(dir: &Path, number: u64, cache_bytes: u64, before: &VolumeHeader) -> Result<Self, Broken> {
        let path = dir.join(format!("{VOLUME_PREFIX}{number}"));
        let db = sled::Config::new().path(&path).cache_capacity(cache_bytes).flush_every_ms(None).open()?;
        let header = match db.get(Place::Header.bytes())? {
            Some(bytes) => decode(&bytes).ok_or_else(|| unreadable("the header of a volume"))?,
            None if db.is_empty() => before.clone(),
            None => return Err(unreadable("the header of a volume")),
        };
        Ok(Self { number, path, db, header })
    }

    /// Opens one that this process has just closed, with less in memory.
    fn reopen(dir: &Path, number: u64, header: &VolumeHeader) -> Result<Self, Broken> {
        let deadline = Deadline::after(LOCKED_FOR);
        loop {
            match Self::open(dir, number, CACHE_BYTES_SEALED, header) {
                Err(broken) if broken.is_locked() && !deadline.passed() => thread::sleep(LOCKED_PAUSE),
                opened => return opened,
            }
        }
    }
}

impl Store {
    /// Opens or creates the database in a directory. May hang or panic if its files are damaged.
    pub(super) fn open(dir: &Path, bounds: Bounds, wall_ms: u64) -> Result<Self, Broken> {
        let numbers = numbers(dir)?;
        let newest = numbers.last().copied().unwrap_or(wall_ms);
        let mut volumes: Vec<Volume> = Vec::new();
        for number in numbers {
            let cache_bytes = if number == newest { CACHE_BYTES } else { CACHE_BYTES_SEALED };
            let before = volumes.last().map_or_else(|| begun(wall_ms), |volume| volume.header.clone());
            volumes.push(Volume::open(dir, number, cache_bytes, &before)?);
        }
        let store = Self { dir: dir.to_owned(), bounds, row: RwLock::new(Row { volumes }), margin: Mutex::default() };
        if store.row().volumes.is_empty() {
            let header = begun(wall_ms);
            let first = Volume::open(dir, newest, CACHE_BYTES, &header)?;
            first.db.insert(Place::Header.bytes(), encode(&header)?)?;
            store.row_mut().volumes.push(first);
        }
        Ok(store)
    }

    pub(super) fn row(&self) -> RwLockReadGuard<'_, Row> {
        self.row.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn row_mut(&self) -> RwLockWriteGuard<'_, Row> {
        self.row.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last index that is recorded.
    pub(super) fn index(&self) -> u64 {
        self.row().header().index
    }

    pub(super) fn margin(&self) -> MutexGuard<'_, Margin> {
        self.margin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps everything within its bounds, and says how large the files are.
    pub(super) fn tidy(&self, wall_ms: u64) -> Result<u64, Broken> {
        let (size, opened_ms) = {
            let row = self.row();
            let size = row.volumes.last().map_or(0, |newest| disk_bytes(&newest.path));
            (size, row.header().opened_ms)
        };
        let age = wall_ms.saturating_sub(opened_ms);
        if size > self.bounds.bytes_max / VOLUMES || age > millis(self.bounds.age_max) / VOLUMES {
            self.begin_volume(wall_ms)?;
            *self.margin() = Margin::default();
        }
        loop {
            let size = disk_bytes(&self.dir);
            if !self.drop_oldest(size, wall_ms)? {
                return Ok(size);
            }
        }
    }

    /// Closes the newest volume and begins another, with the end of the audit trail.
    fn begin_volume(&self, wall_ms: u64) -> Result<(), Broken> {
        let mut row = self.row_mut();
        let Some(Volume { number, db, header, .. }) = row.volumes.pop() else { return Ok(()) };
        let carried = self.audit_carried(&db, wall_ms)?;
        db.flush()?;
        drop(db);
        row.volumes.push(Volume::reopen(&self.dir, number, &header)?);
        let header = VolumeHeader { opened_ms: wall_ms, last_ms: wall_ms, first_ns: header.last_ns, ..header };
        let next = Volume::open(&self.dir, wall_ms.max(number + 1), CACHE_BYTES, &header)?;
        let mut ops = sled::Batch::default();
        ops.insert(Place::Header.bytes(), encode(&header)?);
        for (key, value) in carried {
            ops.insert(key, value);
        }
        next.db.apply_batch(ops)?;
        row.volumes.push(next);
        Ok(())
    }

    fn audit_carried(&self, db: &sled::Db, wall_ms: u64) -> Result<Vec<(sled::IVec, sled::IVec)>, Broken> {
        let bounds = Bounds { age_max: self.bounds.age_max.saturating_mul(AUDIT_AGE_FACTOR), ..self.bounds };
        let mut carried = Vec::new();
        for item in db.range(audit_from()..).rev().take(AUDIT_CARRIED) {
            let (key, value) = item?;
            if decode::<AuditRecord>(&value).is_some_and(|line| !bounds.too_old(line.wall_ms, wall_ms)) {
                carried.push((key, value));
            }
        }
        Ok(carried)
    }

    /// Deletes the oldest volume if it is too old, or if there is too much. The newest always stays.
    fn drop_oldest(&self, size: u64, wall_ms: u64) -> Result<bool, Broken> {
        let mut row = self.row_mut();
        let [oldest, _, ..] = row.volumes.as_slice() else { return Ok(false) };
        if size <= self.bounds.bytes_max && !self.bounds.too_old(oldest.header.last_ms, wall_ms) {
            return Ok(false);
        }
        let Volume { path, db, .. } = row.volumes.remove(0);
        drop(db);
        fs::remove_dir_all(path)?;
        Ok(true)
    }

    /// Hands everything to the operating system. It is not safe from a power cut then, and need not be.
    pub(super) fn flush(&self) -> Result<(), Broken> {
        if let Some(newest) = self.row().volumes.last() {
            newest.db.flush()?;
        }
        Ok(())
    }
}

fn begun(wall_ms: u64) -> VolumeHeader {
    VolumeHeader { opened_ms: wall_ms, last_ms: wall_ms, ..VolumeHeader::default() }
}

/// The numbers of the volumes in a directory, the newest last.
fn numbers(dir: &Path) -> Result<Vec<u64>, Broken> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix(VOLUME_PREFIX)?.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Size of all files below a directory; what cannot be seen counts nothing.
pub(super) fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn unreadable(what: &str) -> Broken {
    Broken::Content(format!("{what} cannot be read"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
