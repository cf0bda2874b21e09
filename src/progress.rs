//! What is going on, while it goes on: one line that changes on a terminal, a line now and then elsewhere.

use crate::clock::Stopwatch;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How often a line is written where lines stay.
const PLAIN_EVERY: Duration = Duration::from_secs(10);

/// Where progress is shown. Messages go to stderr, as everywhere.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    quiet: bool,
    last_plain: Option<Stopwatch>,
    drawn: bool,
}

impl Progress {
    /// On stderr.
    pub fn on_stderr() -> Self {
        Self { terminal: io::stderr().is_terminal(), quiet: false, last_plain: None, drawn: false }
    }

    /// Nowhere.
    pub const fn nowhere() -> Self {
        Self { terminal: false, quiet: true, last_plain: None, drawn: false }
    }

    /// The state of things, in one line.
    pub fn now(&mut self, line: &str) {
        if self.quiet {
            return;
        }
        if self.terminal {
            self.drawn = true;
            let _ = write!(io::stderr(), "\r\x1b[2K{line}");
        } else if self.last_plain.is_none_or(|last| last.elapsed() >= PLAIN_EVERY) {
            self.last_plain = Some(Stopwatch::start());
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    /// Something that stays.
    pub fn say(&mut self, line: &str) {
        if self.quiet {
            return;
        }
        self.end_line();
        let _ = writeln!(io::stderr(), "{line}");
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.drawn) {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end_line();
    }
}
