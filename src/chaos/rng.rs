//! Chance that a seed decides: the same seed, the same draws, on every machine.

/// A small generator (`SplitMix64`). Each schedule and each worker has its own, so that none shifts another's draws.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rng(u64);

impl Rng {
    /// The stream of `seed` that belongs to `name`.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let mixed = name.bytes().fold(seed ^ 0x9E37_79B9_7F4A_7C15, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17)
        });
        let mut rng = Self(mixed);
        rng.next();
        rng
    }

    /// The next 64 bits.
    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; zero if there is none.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { u64::try_from((u128::from(self.next()) * u128::from(end)) >> 64).unwrap_or(0) }
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in so many of a hundred draws.
    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// One of these.
    pub(super) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(from.len() as u64)).unwrap_or(0);
        &from[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_names_are_apart() {
        let draws = |seed, name: &str| {
            let mut rng = Rng::new(seed, name);
            (0..8).map(|_| rng.next()).collect::<Vec<_>>()
        };
        assert_eq!(draws(7, "kill"), draws(7, "kill"));
        assert_ne!(draws(7, "kill"), draws(8, "kill"));
        assert_ne!(draws(7, "kill"), draws(7, "pause"));
    }

    #[test]
    fn draws_stay_in_their_bounds() {
        let mut rng = Rng::new(1, "bounds");
        assert!((0..10_000).all(|_| (3..=9).contains(&rng.between(3, 9))));
        assert_eq!(rng.below(0), 0);
        let heads = (0..10_000).filter(|_| rng.percent(30)).count();
        assert!((2_700..3_300).contains(&heads), "{heads}");
    }
}
