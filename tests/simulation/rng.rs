//! Randomness from one seed: the same seed gives the same run.

use std::time::Duration;

/// Splitmix64: tiny, and good enough to pick faults.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A generator of its own for somebody else.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// From `low` to `high`, both included.
    pub(crate) const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) const fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.range(low, high))
    }

    /// True this often in a hundred.
    pub(crate) const fn percent(&mut self, chance: u64) -> bool {
        self.range(0, 99) < chance
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.range(0, from.len() as u64 - 1)).expect("an index")]
    }
}
