//! Randomness from one seed: the same seed gives the same history on every machine.

/// Real time moves in steps of this many nanoseconds. Clock rates are whole 2000ths (one of them is r, 500 ppm), so on this
/// grid every clock stands at a whole nanosecond and the checks need no tolerance.
pub const STEP_NS: u64 = 2_000;

pub const MS: u64 = 1_000_000;

/// Splitmix64: tiny, and good enough to pick faults.
pub struct Rng(u64);

impl Rng {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, not including, `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// From `low` to `high`, both included.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True this often in a hundred.
    pub const fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("an index")
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// A length of real time, on the grid.
    pub const fn span(&mut self, low_ns: u64, high_ns: u64) -> u64 {
        self.range(low_ns / STEP_NS, high_ns / STEP_NS) * STEP_NS
    }
}
