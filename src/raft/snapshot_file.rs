//! Snapshots as files: written aside, synced, renamed, and checked whenever they are read.
//!
//! ```text
//! "QUORATE" · format byte · length of head (u32) · head · state · BLAKE3 of all of it
//! ```
//! There is one current snapshot. A file is complete or it does not have its name: a crash leaves at most a temporary
//! file, which the next start removes. A damaged current snapshot stops the node, because the log behind it is gone.

use super::codec::{self, WireLogId, WireSnapshotMeta};
use super::disk::{Disk, OpenFile};
use crate::limits::SNAPSHOT_BYTES_MAX;
use crate::state::{Frozen, Machine};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const MAGIC: &[u8; 7] = b"QUORATE";
const HASH_BYTES: usize = 32;
const HEAD_BYTES_MAX: u32 = 1 << 20;
const CURRENT: &str = "current.snapshot";
/// How much of a snapshot is written before it is made durable.
const UNSYNCED_BYTES_MAX: usize = 1 << 20;
const TEMPORARY_SUFFIX: &str = ".tmp";

/// An open snapshot. It stays readable when another takes its name.
#[derive(Debug)]
pub struct SnapshotFile {
    file: Box<dyn OpenFile>,
    path: PathBuf,
    disk: Disk,
}

/// The directory snapshots live in.
#[derive(Debug)]
pub(super) struct SnapshotDir {
    disk: Disk,
    dir: PathBuf,
    counter: AtomicU64,
    /// The position of the current snapshot. Held while one takes the name: one is built here while another may arrive, and
    /// whichever is done last must not put an older one in the place of a newer.
    current: Mutex<Option<WireLogId>>,
}

impl SnapshotDir {
    /// Opens or creates the directory and removes what a crash left half written.
    pub(super) fn open(disk: &Disk, dir: &Path) -> io::Result<Self> {
        disk.files().create_dir_all(dir)?;
        for path in disk.files().list(dir)? {
            if path.to_string_lossy().ends_with(TEMPORARY_SUFFIX) {
                disk.files().remove(&path)?;
            }
        }
        let disk = disk.clone();
        let opened = Self { disk, dir: dir.to_owned(), counter: AtomicU64::new(0), current: Mutex::new(None) };
        let position = match opened.current()? {
            Some(mut current) => current.verify()?.last,
            None => None,
        };
        *opened.position() = position;
        Ok(opened)
    }

    fn position(&self) -> MutexGuard<'_, Option<WireLogId>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current snapshot, if there is one.
    pub(super) fn current(&self) -> io::Result<Option<SnapshotFile>> {
        let path = self.dir.join(CURRENT);
        match self.disk.files().open(&path) {
            Ok(file) => Ok(Some(SnapshotFile { file, path, disk: self.disk.clone() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a snapshot under a temporary name. It is synced, but not current yet.
    pub(super) fn write(&self, meta: &WireSnapshotMeta, state: &Frozen) -> io::Result<SnapshotFile> {
        let mut incoming = self.incoming()?;
        let head = codec::encode(meta);
        let head_bytes = u32::try_from(head.len()).map_err(io::Error::other)?;
        let mut out = Hashing {
            inner: BufWriter::new(BitByBit { file: &mut incoming.file, unsynced: 0 }),
            hasher: blake3::Hasher::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&[codec::FORMAT])?;
        out.write_all(&head_bytes.to_le_bytes())?;
        out.write_all(&head)?;
        state.write(&mut out)?;
        let hash = out.hasher.finalize();
        out.inner.write_all(hash.as_bytes())?;
        out.inner.flush()?;
        drop(out);
        incoming.file.sync()?;
        Ok(incoming)
    }

    /// An empty temporary file for bytes that arrive from a peer.
    pub(super) fn incoming(&self) -> io::Result<SnapshotFile> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}{TEMPORARY_SUFFIX}"));
        let file = self.disk.files().create(&path)?;
        Ok(SnapshotFile { file, path, disk: self.disk.clone() })
    }

    /// Makes a complete file the current snapshot, durably, unless a newer one is current already.
    pub(super) fn make_current(&self, snapshot: &mut SnapshotFile, last: Option<WireLogId>) -> io::Result<()> {
        let current = self.dir.join(CURRENT);
        let mut position = self.position();
        if snapshot.path == current || *position > last {
            return Ok(());
        }
        snapshot.file.sync()?;
        self.disk.files().rename(&snapshot.path, &current)?;
        self.disk.files().sync_dir(&self.dir)?;
        snapshot.path = current;
        *position = last;
        Ok(())
    }
}

impl SnapshotFile {
    /// Size of the file.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        self.file.size()
    }

    /// The file, from its beginning.
    pub(super) fn rewound(&mut self) -> io::Result<&mut dyn OpenFile> {
        self.file.seek(SeekFrom::Start(0))?;
        Ok(self.file.as_mut())
    }

    /// The file, where it stands.
    pub(super) fn file(&mut self) -> &mut dyn OpenFile {
        self.file.as_mut()
    }

    /// Checks the whole file against its hash and returns what it says of itself.
    pub(super) fn verify(&mut self) -> io::Result<WireSnapshotMeta> {
        let bytes = self.bytes()?;
        let body = bytes.checked_sub(HASH_BYTES as u64).ok_or_else(|| damaged("it is too short"))?;
        if bytes > SNAPSHOT_BYTES_MAX {
            return Err(damaged("it is larger than any snapshot may be"));
        }
        let mut input = BufReader::new(self.rewound()?);
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut (&mut input).take(body), &mut hasher)?;
        let mut hash = [0; HASH_BYTES];
        input.read_exact(&mut hash)?;
        if hasher.finalize() != blake3::Hash::from_bytes(hash) {
            return Err(damaged("its checksum does not match"));
        }
        read_head(&mut BufReader::new(self.rewound()?))
    }

    /// Checks the file and reads the state in it.
    pub(super) fn load(&mut self) -> io::Result<(WireSnapshotMeta, Machine)> {
        self.verify()?;
        let mut input = BufReader::new(self.rewound()?);
        let meta = read_head(&mut input)?;
        let machine = Machine::read(&mut input).map_err(|error| damaged(&error.to_string()))?;
        Ok((meta, machine))
    }
}

/// What never became current is of no use to anybody.
impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if self.path.to_string_lossy().ends_with(TEMPORARY_SUFFIX) {
            let _ = self.disk.files().remove(&self.path);
        }
    }
}

fn read_head(input: &mut impl Read) -> io::Result<WireSnapshotMeta> {
    let mut start = [0; MAGIC.len() + 1 + 4];
    input.read_exact(&mut start)?;
    let (magic, rest) = start.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(damaged("it does not begin like one"));
    }
    if rest[0] != codec::FORMAT {
        return Err(damaged(&format!("format {} is not known to this version", rest[0])));
    }
    let head_bytes = u32::from_le_bytes([rest[1], rest[2], rest[3], rest[4]]);
    if head_bytes > HEAD_BYTES_MAX {
        return Err(damaged("its head is too long"));
    }
    let mut head = vec![0; head_bytes as usize];
    input.read_exact(&mut head)?;
    codec::decode(&head)
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is no usable snapshot: {what}"))
}

/// Makes a file durable bit by bit. If all of it waited for one sync at the end, the log's would wait behind it.
struct BitByBit<'a> {
    file: &'a mut Box<dyn OpenFile>,
    unsynced: usize,
}

impl Write for BitByBit<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        if self.unsynced >= UNSYNCED_BYTES_MAX {
            self.file.sync()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Hashes what passes through.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LeaderId;
    use openraft::StoredMembership;
    use std::fs;

    fn at(index: u64) -> WireLogId {
        WireLogId { leader: LeaderId { term: 1, node: 1 }, index }
    }

    fn written(dir: &SnapshotDir, index: u64) -> SnapshotFile {
        let membership = StoredMembership::default();
        let meta = WireSnapshotMeta { last: Some(at(index)), membership: (&membership).into() };
        dir.write(&meta, &Machine::default().freeze()).unwrap()
    }

    #[test]
    fn a_snapshot_is_current_only_when_it_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let dir = SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        assert!(dir.current().unwrap().is_none());
        let mut first = written(&dir, 1);
        assert!(dir.current().unwrap().is_none(), "written, but not current");
        dir.make_current(&mut first, Some(at(1))).unwrap();
        let mut second = written(&dir, 2);
        dir.make_current(&mut second, Some(at(2))).unwrap();
        assert!(first.verify().is_ok(), "an open snapshot stays readable when another takes its name");
        assert!(dir.current().unwrap().unwrap().load().is_ok());
    }

    /// One is built here while another arrives: the older one must not win by being done last, also not after a restart.
    #[test]
    fn a_snapshot_never_goes_back() {
        let place = tempfile::tempdir().unwrap();
        let dir = SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        let (mut newer, mut older) = (written(&dir, 9), written(&dir, 4));
        dir.make_current(&mut newer, Some(at(9))).unwrap();
        dir.make_current(&mut older, Some(at(4))).unwrap();
        assert_eq!(dir.current().unwrap().unwrap().verify().unwrap().last, Some(at(9)));
        assert!(older.verify().is_ok(), "whoever built it may still read it");
        drop(older);
        let dir = SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        let mut older = written(&dir, 8);
        dir.make_current(&mut older, Some(at(8))).unwrap();
        assert_eq!(dir.current().unwrap().unwrap().verify().unwrap().last, Some(at(9)));
    }

    #[test]
    fn what_a_crash_left_half_written_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let dir = SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        drop(written(&dir, 1));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "what nobody wants goes by itself");
        std::mem::forget(written(&dir, 1));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let place = tempfile::tempdir().unwrap();
        let dir = SnapshotDir::open(&Disk::system(), place.path()).unwrap();
        let mut snapshot = written(&dir, 1);
        dir.make_current(&mut snapshot, Some(at(1))).unwrap();
        let path = place.path().join(CURRENT);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(997) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(&path, &flipped).unwrap();
            assert!(dir.current().unwrap().unwrap().load().is_err(), "a flipped bit at {at}");
        }
        for end in [0, 1, 31, 32, 40, whole.len() - 1] {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(dir.current().unwrap().unwrap().load().is_err(), "cut off at {end}");
        }
    }
}
