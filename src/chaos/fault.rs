//! The kinds of faults, their names, and how often each of them strikes.

use std::fmt;
use std::str::FromStr;

/// A kind of fault. Each has a schedule of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// kill -9 of the leader.
    Kill,
    /// kill -9 of any one, two or all nodes at once.
    Crash,
    /// SIGSTOP for 0.05 to 10 s, then SIGCONT: the leader as a rule, which wakes up as a stale one.
    Pause,
    /// The leader alone, a follower alone, one way only, or a ring.
    Partition,
    /// 75 ± 50 ms or half a second on every chunk.
    Delay,
    /// The leader is killed, and nobody's connection to it closes.
    HalfOpen,
    /// Answers to workers vanish, and their connections with them.
    Answers,
    /// A node starts again on clocks that run slower, down to half, or ±500 ppm.
    Clock,
    /// A node starts again on clocks up to twice as fast: outside of what is promised, and judged accordingly.
    ClockFast,
    /// A node's wall clock is stepped by hours.
    Wall,
    /// Syncs take 0.1 to 2 s.
    SlowDisk,
    /// A sync fails: the node has to stop.
    DiskError,
    /// The power of one, two or all nodes fails: what was not synced is gone.
    Power,
    /// The process dies at a point in the code that was chosen for it.
    Failpoint,
    /// A node joins, gets its vote, is removed, and a fresh one takes its place; leadership is handed over.
    Members,
}

/// How a kind is paced, in milliseconds: between the end of one and the beginning of the next, and how long one lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) gap_ms: (u64, u64),
    pub(super) hold_ms: (u64, u64),
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::Kill,
        Self::Crash,
        Self::Pause,
        Self::Partition,
        Self::Delay,
        Self::HalfOpen,
        Self::Answers,
        Self::Clock,
        Self::ClockFast,
        Self::Wall,
        Self::SlowDisk,
        Self::DiskError,
        Self::Power,
        Self::Failpoint,
        Self::Members,
    ];

    /// What a run injects unless it is told otherwise: all that is promised to be survived.
    pub fn usual() -> Vec<Self> {
        Self::ALL.into_iter().filter(|kind| *kind != Self::ClockFast).collect()
    }

    /// How many nodes it takes.
    pub(super) const fn nodes_min(self) -> u64 {
        match self {
            Self::Partition | Self::Delay => 2,
            _ => 1,
        }
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Crash => "crash",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Delay => "delay",
            Self::HalfOpen => "half-open",
            Self::Answers => "answers",
            Self::Clock => "clock",
            Self::ClockFast => "clock-fast",
            Self::Wall => "wall",
            Self::SlowDisk => "slow-disk",
            Self::DiskError => "disk-error",
            Self::Power => "power",
            Self::Failpoint => "failpoint",
            Self::Members => "members",
        }
    }

    pub(super) const fn pace(self) -> Pace {
        let (gap_ms, hold_ms) = match self {
            Self::Kill => ((1_200, 3_600), (50, 700)),
            Self::Crash => ((8_000, 20_000), (100, 1_500)),
            Self::Pause => ((2_500, 7_000), (50, 10_000)),
            Self::Partition => ((4_000, 10_000), (300, 4_000)),
            Self::Delay => ((6_000, 14_000), (1_000, 5_000)),
            Self::HalfOpen => ((10_000, 20_000), (300, 3_000)),
            Self::Answers => ((3_000, 9_000), (200, 1_500)),
            Self::Clock | Self::ClockFast => ((3_500, 7_000), (0, 0)),
            Self::Wall => ((1_000, 4_000), (500, 3_000)),
            Self::SlowDisk => ((4_000, 10_000), (1_000, 4_000)),
            Self::DiskError => ((8_000, 20_000), (100, 1_000)),
            Self::Power => ((1_500, 4_000), (50, 500)),
            Self::Failpoint => ((4_000, 10_000), (100, 600)),
            Self::Members => ((600, 2_400), (0, 0)),
        };
        Pace { gap_ms, hold_ms }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            format!("no fault is called {text:?}: there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse::<Kind>(), Ok(kind));
        }
        assert!("kil".parse::<Kind>().unwrap_err().contains("kill, crash"));
    }
}
