//! The files that the log is made of, and what is found in them.
//!
//! `00000000000000000001.log` and so on, without gaps. A segment is filled with zeros before it is used, so that a sync has only
//! data to write and no change of the file system; the first ones are small. It is there with its name, for good, before the
//! first block goes into it. Beside them lies the salt of all checksums.

use super::super::journal::State;
use super::block::{self, ALIGN, Change, Head, Salt};
use crate::clock::Stopwatch;
use crate::priority;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const EXTENSION: &str = "log";
const FIRST_BYTES: u64 = 256 * 1024;
const BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Zeros are synced so many at a time: whoever else waits for the disk does not wait for all of them.
const FILL_BYTES: usize = 1024 * 1024;
/// Four bytes that nobody else knows.
const SALT: &str = "salt";
/// A file that is not ready yet.
const UNREADY: &str = "next.tmp";

/// How large the segment of this number is made.
pub(super) fn bytes_of(number: u64) -> u64 {
    let doublings = u32::try_from(number.saturating_sub(1)).unwrap_or(u32::MAX);
    FIRST_BYTES.checked_shl(doublings).filter(|bytes| *bytes > 0).unwrap_or(BYTES_MAX).min(BYTES_MAX)
}

pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.{EXTENSION}"))
}

/// The number of the segment with this name, if it is one.
fn number_of(name: &OsStr) -> Option<u64> {
    let stem = name.to_str()?.strip_suffix(EXTENSION)?.strip_suffix('.')?;
    stem.parse().ok().filter(|number| path(Path::new(""), *number) == Path::new(name))
}

/// The numbers of all segments in a directory, in order. A file that is none of ours is an error, and so is a gap.
pub(super) fn list(dir: &Path, lock: &str) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for file in fs::read_dir(dir)? {
        let name = file?.file_name();
        match number_of(&name) {
            Some(number) => numbers.push(number),
            _ if name == lock || name == UNREADY || name == SALT => {}
            _ => return Err(damaged(&format!("{} is no file of this version's log", name.display()))),
        }
    }
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[1] != pair[0] + 1) {
        Some(pair) => Err(damaged(&format!("the files between {} and {} are missing", pair[0], pair[1]))),
        None => Ok(numbers),
    }
}

/// The salt of this log. One that has no segments yet gets a new one, which is there for good before the first of them.
pub(super) fn salt(dir: &Path, is_new: bool) -> io::Result<Salt> {
    match fs::read(dir.join(SALT)) {
        Ok(bytes) => {
            let bytes = bytes.try_into().map_err(|_| damaged("its salt is not four bytes long"))?;
            Ok(Salt(u32::from_le_bytes(bytes)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_new => {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
            let unready = dir.join(UNREADY);
            let mut file = File::create(&unready)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&unready, dir.join(SALT))?;
            File::open(dir)?.sync_all()?;
            Ok(Salt(u32::from_le_bytes(bytes)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(damaged("its salt is missing")),
        Err(error) => Err(error),
    }
}

/// Removes all segments before this one, the oldest first and each for good, so that no crash leaves a gap. One that could not be
/// removed by an earlier call goes too.
pub(super) fn remove_before(dir: &Path, keep: u64) -> io::Result<()> {
    let mut numbers = Vec::new();
    for file in fs::read_dir(dir)? {
        numbers.extend(number_of(&file?.file_name()).filter(|number| *number < keep));
    }
    numbers.sort_unstable();
    numbers.into_iter().try_for_each(|number| remove(dir, number))
}

fn remove(dir: &Path, number: u64) -> io::Result<()> {
    match fs::remove_file(path(dir, number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::open(dir)?.sync_all(),
    }
}

pub(super) fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Makes a segment, for good.
pub(super) fn create(dir: &Path, number: u64) -> io::Result<File> {
    create_resting(dir, number, &|_| {})
}

fn create_resting(dir: &Path, number: u64, rest: &dyn Fn(Duration)) -> io::Result<File> {
    let unready = dir.join(UNREADY);
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&unready)?;
    if let Err(error) = fill(&mut file, bytes_of(number), rest) {
        // Half of a segment is of no use on a disk that is full.
        let _ = fs::remove_file(&unready);
        return Err(error);
    }
    fs::rename(&unready, path(dir, number))?;
    File::open(dir)?.sync_all()?;
    Ok(file)
}

/// A segment that is made for later, by a thread that stands back: for half of the time it leaves the disk to others.
pub(super) struct Ahead {
    thread: JoinHandle<io::Result<File>>,
    hurries: Arc<AtomicBool>,
}

impl Ahead {
    pub(super) fn begin(dir: &Path, number: u64) -> io::Result<Self> {
        let (dir, hurries) = (dir.to_owned(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&hurries);
        let thread = thread::Builder::new().name("log-next".to_owned()).spawn(move || {
            priority::stand_back();
            create_resting(&dir, number, &|took| {
                if !told.load(Ordering::Acquire) {
                    thread::park_timeout(took);
                }
            })
        })?;
        Ok(Self { thread, hurries })
    }

    /// It is needed soon.
    pub(super) fn hurry(&self) {
        self.hurries.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    #[cfg(test)]
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for it.
    pub(super) fn finish(self) -> io::Result<File> {
        self.hurry();
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that made a file of the log panicked")))
    }
}

/// Writes zeros, for good, from where the file stands. In between it rests as it is told to, from how long a part took.
fn fill(file: &mut File, mut bytes: u64, rest: &dyn Fn(Duration)) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES];
    while bytes > 0 {
        let watch = Stopwatch::start();
        let some = bytes.min(FILL_BYTES as u64);
        file.write_all(&zeros[..usize::try_from(some).map_err(io::Error::other)?])?;
        file.sync_all()?;
        bytes -= some;
        rest(watch.elapsed());
    }
    Ok(())
}

/// What is found when the blocks are read one after the other.
pub(super) trait Finder {
    fn change(&mut self, at: Place, change: Change) -> io::Result<()>;
}

/// Where an entry stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    /// The number of its block, and where that begins.
    pub(super) number: u64,
    pub(super) block: u64,
    /// Where its change begins in the block.
    pub(super) change: u32,
}

/// Where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) segment: u64,
    pub(super) offset: u64,
    /// The number of the last block, zero if there is none.
    pub(super) block: u64,
}

/// Reads all segments to the end of the log. Nothing is changed: a torn end is cut off by [`cut`].
///
/// The end is where no block with the next number stands. What comes behind it was never acknowledged, unless it says that the
/// missing block had been on the disk: then it was damaged, and this is an error.
pub(super) fn read(
    dir: &Path,
    (salt, numbers): (Salt, &[u64]),
    state: &mut State,
    finder: &mut dyn Finder,
) -> io::Result<End> {
    let first = *numbers.first().ok_or_else(|| damaged("a log without files"))?;
    let mut end = End { segment: first, offset: 0, block: 0 };
    let mut ended = false;
    for &number in numbers {
        let bytes = fs::read(path(dir, number))?;
        let mut offset = 0;
        if !ended {
            while let Some((head, body)) = next(salt, bytes.get(offset..).unwrap_or(&[]), (first, end)) {
                let block = offset as u64;
                block::read(body, state, &mut |change_at, change| {
                    finder.change(Place { segment: number, number: head.number, block, change: change_at }, change)
                })
                .map_err(|error| damaged(&format!("block {}: {error}", head.number)))?;
                // Past the end of the file, where it lacks only zeros that fill the block up.
                offset += head.block_bytes();
                end = End { segment: number, offset: offset as u64, block: head.number };
            }
        }
        // A segment is begun after the one before it was synced, all of it.
        let skipped = offset == 0 && end.segment < number && block::whole(salt, &bytes).is_some();
        let (witness, foreign) = left_over(salt, bytes.get(offset..).unwrap_or(&[]), (first, end));
        if witness || skipped {
            let what = format!(
                "block {} in or after {number:020}.{EXTENSION} is damaged: later ones are there",
                end.block + 1
            );
            return Err(damaged(&what));
        }
        // A next segment may be in use only when this one has nothing that should not be there.
        ended |= foreign;
    }
    if first > 1 && end.block == 0 {
        return Err(damaged("the files of the log are empty, and earlier ones are gone"));
    }
    Ok(end)
}

/// The next block of the log, if the bytes begin with it.
fn next(salt: Salt, bytes: &[u8], (first, end): (u64, End)) -> Option<(Head, &[u8])> {
    let (head, body) = block::whole(salt, bytes)?;
    // What came before the oldest segment is not there any more, unless it is the very first.
    let follows = head.number == end.block + 1 || (end.block == 0 && first > 1);
    follows.then_some((head, body))
}

/// Whether a block among what is left over bears witness that the one after `end` had been written for good; and whether there
/// is anything but zeros.
fn left_over(salt: Salt, bytes: &[u8], (first, end): (u64, End)) -> (bool, bool) {
    let mut anything = false;
    for at in (0..bytes.len()).step_by(ALIGN) {
        let rest = &bytes[at..];
        if rest.iter().take(ALIGN).all(|byte| *byte == 0) {
            continue;
        }
        anything = true;
        // The oldest segment of an old log begins with a block that was written for good.
        let known =
            |head: Head| head.durable < head.number && (head.durable > end.block || (end.block == 0 && first > 1));
        if block::head(salt, rest).is_some_and(|head| known(head) && head.body(salt, rest).is_some()) {
            return (true, true);
        }
    }
    (false, anything)
}

/// Cuts off what lies behind the end of the log, for good: zeros take its place, and later segments go.
///
/// What was found counts as written from here on, so it is written again and synced: a process that was killed may have left it in
/// the system's memory only, and one whose sync failed may have left it there marked as written.
pub(super) fn cut(dir: &Path, numbers: &[u64], end: End) -> io::Result<File> {
    for &number in numbers.iter().rev().take_while(|number| **number > end.segment) {
        remove(dir, number)?;
    }
    File::open(dir)?.sync_all()?;
    let mut file = File::options().read(true).write(true).open(path(dir, end.segment))?;
    let bytes = fs::read(path(dir, end.segment))?;
    let found = usize::try_from(end.offset).map_err(io::Error::other)?.min(bytes.len());
    let (found, tail) = bytes.split_at(found);
    file.write_all(found)?;
    let wanted = bytes_of(end.segment);
    if tail.iter().any(|byte| *byte != 0) || (bytes.len() as u64) < wanted {
        // In place: what the file has of a disk that is full stays its own.
        file.seek(SeekFrom::Start(end.offset))?;
        fill(&mut file, wanted.max(bytes.len() as u64).saturating_sub(end.offset), &|_| {})?;
    }
    file.sync_all()?;
    Ok(file)
}
