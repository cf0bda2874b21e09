//! What happened, counted: a model that passes because nothing happened in it proves nothing.

use std::fmt;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Histories,
    Failovers,
    SameTermFailovers,
    Freezes,
    Pauses,
    Slews,
    RateChanges,
    Restarts,
    Reboots,
    LateDeliveries,
    Truncations,
    Snapshots,
    Purges,
    StaleEntries,
    Commits,
    Grants,
    Denials,
    Retries,
    RetriesAnswered,
    AnswersLost,
    AnswersExpired,
    Discards,
    Starts,
    Stamps,
}

impl Count {
    pub const ALL: [Self; 24] = [
        Self::Histories,
        Self::Failovers,
        Self::SameTermFailovers,
        Self::Freezes,
        Self::Pauses,
        Self::Slews,
        Self::RateChanges,
        Self::Restarts,
        Self::Reboots,
        Self::LateDeliveries,
        Self::Truncations,
        Self::Snapshots,
        Self::Purges,
        Self::StaleEntries,
        Self::Commits,
        Self::Grants,
        Self::Denials,
        Self::Retries,
        Self::RetriesAnswered,
        Self::AnswersLost,
        Self::AnswersExpired,
        Self::Discards,
        Self::Starts,
        Self::Stamps,
    ];
}

/// The counts, and the closest that two starts came to the interval from above.
#[derive(Clone)]
pub struct Stats {
    counts: [u64; Count::ALL.len()],
    pub closest_ns: u64,
}

impl Stats {
    pub const fn new() -> Self {
        Self { counts: [0; Count::ALL.len()], closest_ns: u64::MAX }
    }

    pub const fn add(&mut self, count: Count) {
        self.counts[count as usize] += 1;
    }

    pub const fn get(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.closest_ns = self.closest_ns.min(other.closest_ns);
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for count in Count::ALL {
            write!(f, "{count:?} {}, ", self.get(count))?;
        }
        write!(f, "closest start {} ns above the interval", self.closest_ns)
    }
}
