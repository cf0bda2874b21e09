//! What a node's directory lies on: files and a log. The system's, or the twin in memory of the simulation.
//!
//! Invariants
//! - Only what is here touches files in `raft/`; callers sync files and directories themselves, because when to do so is
//!   their promise.
//!
//! Not here: what the files mean (`marker.rs`, `identity.rs`, `snapshot_file.rs`, `log_store.rs`).

use super::journal::Journal;
use super::memory_disk::MemoryDisk;
use super::wal;
use serde::Serialize;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A disk. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Disk(Arc<dyn Medium>);

/// The calls a node makes on its directory.
pub(super) trait Medium: Debug + Send + Sync {
    fn open_log(&self, dir: &Path) -> io::Result<Box<dyn Journal>>;
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    fn exists(&self, path: &Path) -> bool;
    /// The files of a directory.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;
    /// An empty file, in the place of what was there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// What a process like this one may still write.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// A file that is open.
pub(super) trait OpenFile: Read + Write + Seek + Debug + Send + Sync {
    fn size(&self) -> io::Result<u64>;
    /// Makes the contents durable.
    fn sync(&self) -> io::Result<()>;
}

impl Disk {
    /// The disk of this machine.
    pub fn system() -> Self {
        Self(Arc::new(System))
    }

    /// A disk of the simulation.
    pub fn memory(disk: &MemoryDisk) -> Self {
        Self(Arc::new(disk.clone()))
    }

    pub(super) fn open_log(&self, dir: &Path) -> io::Result<Box<dyn Journal>> {
        self.0.open_log(dir)
    }

    pub(super) fn files(&self) -> &dyn Medium {
        self.0.as_ref()
    }

    /// All of a small file; `None` if it is not there.
    pub(super) fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        let mut file = match self.0.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Writes a small JSON file so that after a power cut it is there whole, or not at all.
    pub(super) fn write_durably(&self, path: &Path, value: &impl Serialize) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        let mut file = self.0.create(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(value)?)?;
        file.sync()?;
        self.0.rename(&temporary, path)?;
        let dir = path.parent().ok_or_else(|| io::Error::other("a file without a directory"))?;
        self.0.sync_dir(dir)
    }
}

#[derive(Debug)]
struct System;

impl Medium for System {
    fn open_log(&self, dir: &Path) -> io::Result<Box<dyn Journal>> {
        wal::open(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        Ok(Box::new(File::options().read(true).write(true).create(true).truncate(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let statistics = rustix::fs::statvfs(dir)?;
        Ok(statistics.f_bavail.saturating_mul(statistics.f_frsize))
    }
}

impl OpenFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
