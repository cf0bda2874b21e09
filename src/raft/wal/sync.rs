//! Getting blocks onto the disk: a thread of its own, in order, one sync for all that wait.
//!
//! Invariants
//! - Blocks are written in the order they came, and waiters told in it, after the sync that covers them.
//! - An error is final: everybody who waits or comes later is told.

use super::super::journal::Flushed;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes for a place in a file.
pub(super) struct Write {
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// The way to the disk. Whoever lets go of it waits for everything that was submitted.
pub(super) struct Syncer {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// Between the log and the thread.
struct Desk {
    jobs: Mutex<Jobs>,
    called: Condvar,
    /// The number of the last block that is on the disk for certain.
    durable: AtomicU64,
}

#[derive(Default)]
struct Jobs {
    writes: Vec<Write>,
    /// The number of the last block among them.
    upto: u64,
    waiters: Vec<Flushed>,
    /// The thread waits for a call. While it works it looks by itself.
    idle: bool,
    failed: Option<(io::ErrorKind, String)>,
    closed: bool,
}

impl Syncer {
    /// Starts the thread. `durable` is the number of the last block that is on the disk.
    pub(super) fn start(durable: u64) -> io::Result<Self> {
        let jobs = Mutex::new(Jobs { upto: durable, ..Jobs::default() });
        let desk = Arc::new(Desk { jobs, called: Condvar::new(), durable: AtomicU64::new(durable) });
        let for_thread = Arc::clone(&desk);
        let thread = thread::Builder::new().name("log".to_owned()).spawn(move || {
            let _last_word = LastWord(&for_thread);
            for_thread.work();
        })?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// The number of the last block that is on the disk for certain.
    pub(super) fn durable(&self) -> u64 {
        self.desk.durable.load(Ordering::Acquire)
    }

    /// Writes and syncs a block, the one with this number, and tells the waiter.
    pub(super) fn submit(&self, number: u64, write: Write, waiter: Option<Flushed>) -> io::Result<()> {
        let mut jobs = self.desk.lock();
        if let Some((kind, why)) = &jobs.failed {
            return Err(io::Error::new(*kind, why.clone()));
        }
        jobs.writes.push(write);
        jobs.upto = number;
        jobs.waiters.extend(waiter);
        let call = std::mem::take(&mut jobs.idle);
        drop(jobs);
        if call {
            self.desk.called.notify_one();
        }
        Ok(())
    }
}

/// Tells everybody if the thread ends before its time.
struct LastWord<'a>(&'a Desk);

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut jobs = self.0.lock();
            jobs.failed = Some((io::ErrorKind::Other, "the thread that syncs the log panicked".to_owned()));
            // Whoever waits on the other end of these is told by their going.
            jobs.waiters.clear();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.desk.lock().closed = true;
        self.desk.called.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Desk {
    /// The thread: writes and syncs what there is, until the log is closed and there is no more.
    fn work(&self) {
        let mut jobs = self.lock();
        loop {
            if jobs.writes.is_empty() {
                if jobs.closed {
                    return;
                }
                jobs.idle = true;
                jobs = self.called.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (writes, waiters) = (std::mem::take(&mut jobs.writes), std::mem::take(&mut jobs.waiters));
            let (upto, failed) = (jobs.upto, jobs.failed.clone());
            drop(jobs);
            // After an error nothing more is written, also not what came while it happened.
            let failed =
                failed.or_else(|| write_and_sync(&writes).err().map(|error| (error.kind(), error.to_string())));
            if failed.is_none() {
                self.durable.store(upto, Ordering::Release);
            } else {
                self.lock().failed.clone_from(&failed);
            }
            for waiter in waiters {
                waiter.done(failed.clone().map_or(Ok(()), |(kind, why)| Err(io::Error::new(kind, why))));
            }
            jobs = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        // Every change to it is whole, whoever panicked.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_and_sync(writes: &[Write]) -> io::Result<()> {
    for (at, Write { file, offset, bytes }) in writes.iter().enumerate() {
        file.write_all_at(bytes, *offset)?;
        let next = writes.get(at + 1);
        if next.is_none_or(|next| !Arc::ptr_eq(&next.file, file)) {
            file.sync_data()?;
        }
    }
    Ok(())
}
