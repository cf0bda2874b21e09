//! The log of a child: a file that it writes by itself, so that no node ever waits for the terminal of `quorate up`.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Past this many bytes a log is set aside when its node starts.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most bytes looked at in one go; what is beyond is still in the file.
const LOOK_BYTES_MAX: u64 = 256 * 1024;
/// Most warnings shown in one go.
const WARNINGS_MAX: usize = 10;

/// Opens the log for a child to append to, and sets an old one aside once it is long.
pub(super) fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    if fs::metadata(path).is_ok_and(|file| file.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// How long a log is now; 0 if there is none.
pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

/// The last lines of a log from a position on; from its beginning if it is not as long.
pub(super) fn tail(path: &Path, from: u64, lines_max: usize) -> Vec<String> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let from = if from > length { 0 } else { from };
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(LOOK_BYTES_MAX))))?;
        let mut bytes = Vec::new();
        file.take(LOOK_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let mut last = VecDeque::new();
    for line in read().unwrap_or_default().lines() {
        if last.len() == lines_max {
            last.pop_front();
        }
        last.push_back(line.to_owned());
    }
    last.into()
}

/// Reads what a child has newly written and picks out what a person should see.
#[derive(Debug)]
pub(super) struct Follower {
    path: PathBuf,
    at: u64,
}

impl Follower {
    /// Begins at the end of what is there now.
    pub(super) fn new(path: PathBuf) -> Self {
        Self { at: length(&path), path }
    }

    /// Warnings and errors since the last time, bounded. A log that cannot be read right now is read the next time.
    pub(super) fn warnings(&mut self) -> Vec<String> {
        let fresh = self.fresh().unwrap_or_default();
        let mut warnings: Vec<_> = fresh.lines().filter(|line| is_warning(line)).map(str::to_owned).collect();
        if warnings.len() > WARNINGS_MAX {
            let more = warnings.len() - WARNINGS_MAX;
            warnings.truncate(WARNINGS_MAX);
            warnings.push(format!("… and {more} more in {}", self.path.display()));
        }
        warnings
    }

    /// Whole lines only; half a line waits for its end.
    fn fresh(&mut self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        if length < self.at {
            self.at = 0; // a new file under the old name
        }
        file.seek(SeekFrom::Start(self.at))?;
        let mut bytes = Vec::new();
        file.take(LOOK_BYTES_MAX).read_to_end(&mut bytes)?;
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if bytes.len() as u64 == LOOK_BYTES_MAX => bytes.len(),
            None => 0,
        };
        self.at += whole as u64;
        Ok(String::from_utf8_lossy(&bytes[..whole]).into_owned())
    }
}

/// The level is the second word of a log line. A line without a time in front is no log line but a last word: a panic,
/// or why the node could not start.
fn is_warning(line: &str) -> bool {
    let logged = line.starts_with(|c: char| c.is_ascii_digit());
    if logged { matches!(line.split_whitespace().nth(1), Some("WARN" | "ERROR")) } else { !line.trim().is_empty() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn only_warnings_and_last_words_are_shown_once_and_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node1/node.log");
        let mut log = open(&path).unwrap();
        writeln!(log, "2026-01-01T00:00:00Z  WARN old: news").unwrap();
        let mut follower = Follower::new(path.clone());
        write!(log, "2026-01-01T00:00:01Z  INFO quorate: started\n2026-01-01T00:00:02Z  WARN quorate: slow ").unwrap();
        assert_eq!(follower.warnings(), [] as [String; 0]);
        write!(log, "disk\nthread 'main' panicked\n").unwrap();
        assert_eq!(follower.warnings(), ["2026-01-01T00:00:02Z  WARN quorate: slow disk", "thread 'main' panicked"]);
        assert_eq!(follower.warnings(), [] as [String; 0]);
        for _ in 0..50 {
            writeln!(log, "2026-01-01T00:00:02Z ERROR quorate: again").unwrap();
        }
        assert_eq!(follower.warnings().len(), WARNINGS_MAX + 1);
        assert_eq!(tail(&path, 0, 2).len(), 2);
        assert_eq!(tail(&path, length(&path), 2), [] as [String; 0]);
        assert_eq!(tail(Path::new("/nonexistent"), 0, 2), [] as [String; 0]);
    }
}
