//! What the machine itself takes for the two things that every decision has to do: sync a disk and cross the loopback.

use crate::clock::Stopwatch;
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

const SYNCS: usize = 200;
const ROUND_TRIPS: usize = 2_000;
/// About what one log entry is long.
const ENTRY: [u8; 1_024] = [b'q'; 1_024];

/// Medians, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Baseline {
    /// Append a KiB to a file and sync it.
    pub fdatasync_ms: f64,
    /// A byte there and back between two threads.
    pub round_trip_ms: f64,
}

impl Baseline {
    /// Measures both, the disk in this directory.
    pub fn measure(dir: &Path) -> io::Result<Self> {
        Ok(Self { fdatasync_ms: fdatasync(dir)?, round_trip_ms: round_trip()? })
    }

    /// The middle one of several, of each.
    pub(super) fn middle(of: &[Self]) -> Self {
        let middle = |each: fn(&Self) -> f64| {
            let mut all: Vec<_> = of.iter().map(each).collect();
            all.sort_unstable_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
        };
        Self { fdatasync_ms: middle(|one| one.fdatasync_ms), round_trip_ms: middle(|one| one.round_trip_ms) }
    }
}

fn fdatasync(dir: &Path) -> io::Result<f64> {
    let path = dir.join("baseline");
    let mut file = File::create(&path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let since = Stopwatch::start();
        file.write_all(&ENTRY)?;
        file.sync_data()?;
        times.push(since.elapsed());
    }
    std::fs::remove_file(&path)?;
    Ok(median(times))
}

fn round_trip() -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    near.set_nodelay(true)?;
    let (mut far, _) = listener.accept()?;
    far.set_nodelay(true)?;
    let echo = thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() && far.write_all(&byte).is_ok() {}
    });
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    let mut byte = [1];
    for _ in 0..ROUND_TRIPS {
        let since = Stopwatch::start();
        near.write_all(&byte)?;
        near.read_exact(&mut byte)?;
        times.push(since.elapsed());
    }
    drop(near);
    echo.join().map_err(|_| io::Error::other("the echo panicked"))?;
    Ok(median(times))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_moment_does_not_count() {
        let of = [(9.0, 0.1), (0.2, 0.3), (0.1, 0.2)]
            .map(|(fdatasync_ms, round_trip_ms)| Baseline { fdatasync_ms, round_trip_ms });
        assert_eq!(Baseline::middle(&of), Baseline { fdatasync_ms: 0.2, round_trip_ms: 0.2 });
    }

    #[test]
    fn both_take_time() {
        let dir = tempfile::tempdir().unwrap();
        let baseline = Baseline::measure(dir.path()).unwrap();
        assert!(baseline.fdatasync_ms > 0.0 && baseline.round_trip_ms > 0.0, "{baseline:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
