//! What a node reads off its clocks, and who may be asked for it.
//!
//! Invariant: two readings are comparable only if their `clock_id` is the same.

use serde::{Deserialize, Serialize};

/// Names the pair of clocks a reading comes from. Another id means that the two have no common zero: another boot, or
/// another time namespace under the same boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClockId(pub u64);

/// Both monotonic clocks of one node, read one right after the other.
///
/// The two need not be of the same instant: every rule takes the smaller elapsed time of the two, so it holds for the
/// instants at which the clock was read that keeps to its bound, whichever of the two that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// The monotonic clock, which NTP may slew: chrony by up to 8.3 %.
    pub mono_ns: u64,
    /// The raw monotonic clock, which nobody slews but which runs as the hardware does.
    pub raw_ns: u64,
    /// Where the two come from.
    pub clock_id: ClockId,
}

impl Reading {
    /// Whether this was read on the same clocks as `later` and stands before it, or at it, on both of them.
    pub const fn precedes(&self, later: &Self) -> bool {
        self.clock_id.0 == later.clock_id.0 && self.mono_ns <= later.mono_ns && self.raw_ns <= later.raw_ns
    }
}

/// A source of readings: the system's, or the manual twin in tests.
pub trait Clocks: Send + Sync + 'static {
    /// Reads both clocks now. Nothing is cached: an observation must be younger than the entry it belongs to.
    fn read(&self) -> Reading;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedes_needs_both_clocks_and_the_same_id() {
        let reading = |mono_ns, raw_ns, id| Reading { mono_ns, raw_ns, clock_id: ClockId(id) };
        let now = reading(10, 20, 1);
        assert!(now.precedes(&now));
        assert!(reading(9, 20, 1).precedes(&now));
        assert!(!reading(11, 20, 1).precedes(&now));
        assert!(!reading(10, 21, 1).precedes(&now));
        assert!(!reading(9, 19, 2).precedes(&now));
    }
}
