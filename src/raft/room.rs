//! Whether the disk has room for more: looked at all the time, so that a node takes no more entries before a write fails.
//!
//! A failed write is final (`log_store.rs`), also where the disk is only full. So below a reserve a leader takes no requests, and
//! a follower no entries. Into the reserve fit votes, and the snapshot that lets the log be purged. Once there is room again, the
//! node goes on by itself.

use super::disk::Disk;
use super::state_store::StateStore;
use super::work::blocking;
use crate::metric_names;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks: no log grows by a reserve within it.
const EVERY: Duration = Duration::from_millis(100);

/// The room on one node's disk. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    disk: Disk,
    dir: PathBuf,
    /// Zero turns it off.
    reserve_bytes: u64,
    free_bytes: AtomicU64,
    full: AtomicBool,
}

impl Room {
    pub(super) fn new(disk: &Disk, dir: &Path, reserve_bytes: u64) -> Self {
        let (free_bytes, full) = (AtomicU64::new(u64::MAX), AtomicBool::new(false));
        Self(Arc::new(Inner { disk: disk.clone(), dir: dir.to_owned(), reserve_bytes, free_bytes, full }))
    }

    /// Whether nothing more should be written.
    pub(super) fn is_full(&self) -> bool {
        self.0.full.load(Ordering::Relaxed)
    }

    /// Whether so many bytes could be written, the reserve included.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.0.reserve_bytes == 0 || bytes < self.0.free_bytes.load(Ordering::Relaxed)
    }

    /// Looks again and again, until the task is dropped.
    pub(super) async fn watch(self, state: StateStore) {
        if self.0.reserve_bytes == 0 {
            return;
        }
        loop {
            let (room, state) = (self.clone(), state.clone());
            let looked = blocking(move || Ok((room.0.disk.files().free_bytes(&room.0.dir)?, state.snapshot_bytes())));
            match looked.await {
                Ok((free, snapshot_bytes)) => self.found(free, snapshot_bytes),
                // A disk that cannot even say this fails at the next write, and then the node stops.
                Err(error) => tracing::debug!(%error, "cannot tell how much room the disk has"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn found(&self, free: u64, snapshot_bytes: u64) {
        let Inner { reserve_bytes, full, free_bytes, dir, .. } = &*self.0;
        free_bytes.store(free, Ordering::Relaxed);
        metrics::gauge!(metric_names::DISK_FREE_BYTES).set(metric_names::gauge_value(free));
        let needed = reserve_bytes.saturating_add(snapshot_bytes);
        let was_full = full.load(Ordering::Relaxed);
        // A little more than what made it full, so that it does not go back and forth with every file.
        let is_full = free < if was_full { needed.saturating_add(reserve_bytes / 4) } else { needed };
        full.store(is_full, Ordering::Relaxed);
        metrics::gauge!(metric_names::DISK_FULL).set(if is_full { 1.0 } else { 0.0 });
        let dir = dir.display();
        match (was_full, is_full) {
            (false, true) => {
                tracing::error!(free, needed, "the disk of {dir} is full: no entries are taken until there is room");
            }
            (true, false) => tracing::info!(free, needed, "there is room again on the disk of {dir}"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_below_its_reserve_and_has_room_a_little_above_it() {
        let room = Room::new(&Disk::system(), Path::new("."), 100);
        assert!(!room.is_full() && room.fits(u64::MAX - 1), "until it has been looked at");
        for (free, snapshot, full) in [
            (100, 0, false),
            (99, 0, true),
            (124, 0, true),
            (125, 0, false),
            (149, 50, true),
            (174, 50, true),
            (175, 50, false),
        ] {
            room.found(free, snapshot);
            assert_eq!(room.is_full(), full, "{free} free, {snapshot} for a snapshot");
            assert!(room.fits(free - 1) && !room.fits(free));
        }
    }

    #[test]
    fn the_system_says_how_much_is_free() {
        let free = Disk::system().files().free_bytes(Path::new(".")).unwrap();
        assert!(free > 0 && free < 1 << 60, "{free}");
        assert!(Disk::system().files().free_bytes(Path::new("/nowhere/at/all")).is_err());
    }
}
