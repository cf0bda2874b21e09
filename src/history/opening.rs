//! Opening the database within a deadline, and moving aside what cannot be opened.
//!
//! The store may hang, panic, or take the whole process down when its files are damaged. So it is opened on a thread of its
//! own, behind a file that counts the attempts: a database that killed the process while it was opened is not tried for ever.
//!
//! ```text
//! DATA/history/opening               how many times opening began and did not end
//! DATA/history/volume-<wall clock>/  the database (`store.rs`); a fresh one never has the path of an old one, because a
//!                                    thread that hangs in the old one may wake up and write by path
//! DATA/history.damaged-<wall clock>/ what was moved aside, the newest two
//! ```
//!
//! Not here: what to do without a database (`writer.rs`).

use super::store::{Bounds, Broken, Store};
use crate::clock::Deadline;
use std::any::Any;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Damaged databases that are kept for whoever wants to know; older ones are deleted.
const DAMAGED_KEPT: usize = 2;
/// Times that opening may begin and not end before the database is given up without trying.
const ATTEMPTS_MAX: u32 = 2;
/// How long to wait between two looks at a database that somebody else has open.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);

const ATTEMPTS_FILE: &str = "opening";

/// Why there is no database.
#[derive(Debug)]
pub(super) enum Closed {
    /// What is there is of no use: it goes aside.
    Damaged(String),
    /// It may be good, or the disk may not let us: nothing is moved.
    Unavailable(String),
}

/// Runs something of the store's. A panic is an error like any other.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Broken>) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(Broken::Content(format!("it panicked: {}", panic_text(&*panic)))))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

/// Opens the database in `dir`, or begins one there.
pub(super) fn open(dir: &Path, bounds: Bounds, within: Duration, wall_ms: u64) -> Result<Store, Closed> {
    let unavailable = |error: io::Error| Closed::Unavailable(format!("{}: {error}", dir.display()));
    fs::create_dir_all(dir).map_err(unavailable)?;
    let attempts = dir.join(ATTEMPTS_FILE);
    let begun = fs::read_to_string(&attempts).ok().and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0);
    if begun >= ATTEMPTS_MAX {
        return Err(Closed::Damaged(format!("opening it began {begun} times and never ended")));
    }
    fs::write(&attempts, (begun + 1).to_string()).map_err(unavailable)?;
    let deadline = Deadline::after(within);
    let mut locked = false;
    let opened = loop {
        match open_apart(dir, bounds, deadline.remaining(), wall_ms) {
            Err(Failed::Broken(broken)) if broken.is_locked() && !deadline.passed() => {
                locked = true;
                thread::sleep(LOCKED_PAUSE);
            }
            // Running out of time over somebody else's lock says nothing about the files.
            Err(Failed::Silent) if locked => break Err(elsewhere(dir)),
            Err(Failed::Broken(broken)) if broken.is_locked() => break Err(elsewhere(dir)),
            Err(Failed::Broken(broken)) if broken.is_of_the_disk() => {
                break Err(Closed::Unavailable(format!("{}: {broken}", dir.display())));
            }
            Err(Failed::Broken(broken)) => break Err(Closed::Damaged(broken.to_string())),
            Err(Failed::Silent) => break Err(Closed::Damaged(format!("it did not open within {within:?}"))),
            Err(Failed::NoThread(error)) => break Err(Closed::Unavailable(format!("no thread to open it: {error}"))),
            Ok(store) => break Ok(store),
        }
    };
    // It ended, well or badly: what follows does not depend on the count.
    if let Err(error) = fs::remove_file(&attempts) {
        tracing::warn!(%error, path = %attempts.display(), "cannot remove the count of attempts to open the history");
    }
    opened
}

fn elsewhere(dir: &Path) -> Closed {
    Closed::Unavailable(format!("{} is open elsewhere", dir.display()))
}

enum Failed {
    Broken(Broken),
    Silent,
    NoThread(io::Error),
}

/// Opens on a thread of its own, and waits no longer than that. A thread that hangs is left behind.
fn open_apart(dir: &Path, bounds: Bounds, within: Duration, wall_ms: u64) -> Result<Store, Failed> {
    let (done, opened) = mpsc::sync_channel(1);
    let dir = dir.to_owned();
    let opening = move || {
        // Nobody waits any more if this fails; the store is closed again with it.
        let _ = done.send(guarded(|| Store::open(&dir, bounds, wall_ms)));
    };
    thread::Builder::new().name("history-open".to_owned()).spawn(opening).map_err(Failed::NoThread)?;
    match opened.recv_timeout(within) {
        Ok(opened) => opened.map_err(Failed::Broken),
        Err(RecvTimeoutError::Timeout) => Err(Failed::Silent),
        Err(RecvTimeoutError::Disconnected) => Err(Failed::Broken(Broken::Content("its opening ended".to_owned()))),
    }
}

/// Directories of this prefix and a number, by number.
fn numbered(dir: &Path, prefix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Moves a directory out of the way and says where to; of those moved earlier only the newest stay.
pub(super) fn move_aside(dir: &Path, wall_ms: u64) -> io::Result<PathBuf> {
    let name = dir.file_name().and_then(OsStr::to_str).unwrap_or("history");
    let prefix = format!("{name}.damaged-");
    let beside = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let free = |number: &u64| !beside.join(format!("{prefix}{number}")).exists();
    let number = (wall_ms..wall_ms.saturating_add(1_000)).find(free).unwrap_or(wall_ms);
    let aside = beside.join(format!("{prefix}{number}"));
    fs::rename(dir, &aside)?;
    let damaged = numbered(beside, &prefix)?;
    for (_, older) in damaged.iter().rev().skip(DAMAGED_KEPT) {
        if let Err(error) = fs::remove_dir_all(older) {
            tracing::warn!(%error, path = %older.display(), "cannot delete an old damaged history");
        }
    }
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bytes_max: 1 << 20, age_max: Duration::from_secs(60) };
    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_database_is_found_again() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("history");
        drop(open(&dir, BOUNDS, SOON, 5).unwrap());
        drop(open(&dir, BOUNDS, SOON, 9).unwrap());
        let there: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there, ["volume-5"]);
    }

    #[test]
    fn a_database_that_kills_whoever_opens_it_is_not_tried_for_ever() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("history");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(ATTEMPTS_FILE), "1").unwrap();
        drop(open(&dir, BOUNDS, SOON, 1).unwrap());
        fs::write(dir.join(ATTEMPTS_FILE), "2").unwrap();
        assert!(matches!(open(&dir, BOUNDS, SOON, 1), Err(Closed::Damaged(why)) if why.contains("2 times")));
    }

    #[test]
    fn what_somebody_else_has_open_is_not_damaged() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("history");
        let first = open(&dir, BOUNDS, SOON, 1).unwrap();
        let second = open(&dir, BOUNDS, Duration::from_millis(50), 1);
        assert!(matches!(&second, Err(Closed::Unavailable(why)) if why.contains("open elsewhere")), "{second:?}");
        drop(first);
        assert!(open(&dir, BOUNDS, SOON, 1).is_ok());
    }

    #[test]
    fn the_newest_two_damaged_ones_stay() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("history");
        for wall_ms in [7, 7, 100, 99] {
            fs::create_dir(&dir).unwrap();
            move_aside(&dir, wall_ms).unwrap();
        }
        let mut left: Vec<_> = fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["history.damaged-100", "history.damaged-99"]);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_nobodys_damage() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("file"), "").unwrap();
        let opened = open(&data.path().join("file/history"), BOUNDS, SOON, 1);
        assert!(matches!(opened, Err(Closed::Unavailable(_))), "{opened:?}");
    }
}
