//! A node's clocks as it is made to see them: too slow, too fast, or with a wall clock that jumps.
//!
//! A monotonic clock may run at a wrong rate, but it never jumps: that would be another fault, and one that no limiter can
//! survive. The faking library counts from the start of a process, so the face of the clock is carried over from one process
//! to the next, and only ever falls behind in between.

use super::ticks::now_ns;
use std::path::{Path, PathBuf};

/// What a restart may lose of a faked clock: the time between working out its offset and the start of the process.
const SLACK_NS: u64 = 5_000_000;

/// How one node sees time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClockFace {
    /// As it is.
    True,
    /// Monotonic and wall clocks at a rate, in parts per million.
    Rated { library: PathBuf, ppm: u64, shown_ns: u64, since_ns: u64 },
    /// The wall clock follows what stands in a file; the monotonic one is true.
    Wall { library: PathBuf, file: PathBuf },
}

impl ClockFace {
    pub(super) fn rated(library: &Path) -> Self {
        let now = now_ns();
        Self::Rated { library: library.to_owned(), ppm: 1_000_000, shown_ns: now, since_ns: now }
    }

    /// Changes the rate, from the next start on.
    pub(super) fn set_rate(&mut self, to_ppm: u64) {
        if let Self::Rated { ppm, shown_ns, since_ns, .. } = self {
            let now = now_ns();
            let passed = u128::from(now.saturating_sub(*since_ns)) * u128::from(*ppm) / 1_000_000;
            *shown_ns += u64::try_from(passed).unwrap_or(0);
            (*since_ns, *ppm) = (now, to_ppm);
        }
    }

    /// The variables that a process starts with.
    pub(super) fn start(&mut self) -> Vec<(&'static str, String)> {
        match self {
            Self::True => Vec::new(),
            Self::Wall { library, file } => vec![
                ("LD_PRELOAD", library.display().to_string()),
                ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ],
            Self::Rated { ppm, .. } => {
                let ppm = *ppm;
                // Brings the face up to now, at the rate it had.
                self.set_rate(ppm);
                let Self::Rated { library, shown_ns, since_ns, .. } = self else { return Vec::new() };
                *shown_ns = shown_ns.saturating_sub(SLACK_NS);
                let sign = if *shown_ns < *since_ns { '-' } else { '+' };
                let offset = shown_ns.abs_diff(*since_ns);
                let rate = format!("x{}.{:06}", ppm / 1_000_000, ppm % 1_000_000);
                let (secs, nanos) = (offset / 1_000_000_000, offset % 1_000_000_000);
                vec![
                    ("LD_PRELOAD", library.display().to_string()),
                    ("FAKETIME", format!("{sign}{secs}.{nanos:09} {rate}")),
                ]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_face_never_jumps_ahead() {
        let mut face = ClockFace::rated(Path::new("lib"));
        face.set_rate(500_000);
        std::thread::sleep(std::time::Duration::from_millis(40));
        let slow = face.start();
        assert!(slow[1].1.starts_with("-0.0") && slow[1].1.ends_with(" x0.500000"), "{slow:?}");
        face.set_rate(1_000_500);
        let fast = face.start();
        assert!(fast[1].1.starts_with("-0.0") && fast[1].1.ends_with(" x1.000500"), "{fast:?}");
    }
}
