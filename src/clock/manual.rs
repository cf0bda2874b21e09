//! The twin of [`SystemClocks`](super::SystemClocks) for tests: clocks that stand still until they are told otherwise.
//!
//! Not behind `cfg(test)`, because the tests of whole nodes live outside the crate. It tells no lie that a real clock could
//! not: each method is one of the faults that `docs/GUARANTEES.md` speaks of.

use super::reading::{ClockId, Clocks, Reading};
use crate::limiter::Span;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MILLION: u64 = 1_000_000;

/// A pair of clocks in the hand of a test. Clones share the same pair.
#[derive(Debug, Clone)]
pub struct ManualClocks(Arc<Mutex<Hands>>);

#[derive(Debug)]
struct Hands {
    mono: Hand,
    raw: Hand,
    clock_id: ClockId,
    frozen: bool,
}

/// One clock: how far it went and how fast it goes.
#[derive(Debug)]
struct Hand {
    ns: u64,
    /// Millionths of a nanosecond that did not make a whole one yet: many small steps come as far as one large one.
    rest: u64,
    rate_ppm: u64,
}

impl Hand {
    const fn new() -> Self {
        Self { ns: 0, rest: 0, rate_ppm: MILLION }
    }

    fn advance(&mut self, real: Span) {
        let millionths = u128::from(real.0) * u128::from(self.rate_ppm) + u128::from(self.rest);
        let million = u128::from(MILLION);
        self.rest = u64::try_from(millionths % million).expect("less than a million");
        self.ns = self.ns.saturating_add(u64::try_from(millionths / million).unwrap_or(u64::MAX));
    }
}

impl ManualClocks {
    /// Both clocks at zero, at the rate of real time.
    pub fn new(clock_id: ClockId) -> Self {
        Self(Arc::new(Mutex::new(Hands { mono: Hand::new(), raw: Hand::new(), clock_id, frozen: false })))
    }

    /// Lets this much real time pass: each clock goes on at its rate, neither while they are frozen.
    pub fn advance(&self, real: Span) {
        let mut hands = self.hands();
        if !hands.frozen {
            hands.mono.advance(real);
            hands.raw.advance(real);
        }
    }

    /// Stops both clocks, as in a virtual machine that its host has paused.
    pub fn freeze(&self) {
        self.hands().frozen = true;
    }

    /// Lets the clocks go on. The time in between is lost.
    pub fn thaw(&self) {
        self.hands().frozen = false;
    }

    /// Sets how fast each clock runs, in millionths of real time: chrony at full slew is `(1_083_333, 1_000_000)`.
    pub fn set_rate_ppm(&self, mono: u64, raw: u64) {
        let mut hands = self.hands();
        hands.mono.rate_ppm = mono;
        hands.raw.rate_ppm = raw;
    }

    /// Moves both clocks forward at once, without real time passing: the fault that is outside the proof.
    pub fn jump(&self, by: Span) {
        let mut hands = self.hands();
        hands.mono.ns = hands.mono.ns.saturating_add(by.0);
        hands.raw.ns = hands.raw.ns.saturating_add(by.0);
    }

    /// Another boot or another time namespace: the clocks keep their figures, which now mean something else.
    pub fn set_clock_id(&self, clock_id: ClockId) {
        self.hands().clock_id = clock_id;
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        // A test that panicked with the lock in its hand left two whole numbers behind: they are as good as any.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clocks for ManualClocks {
    fn read(&self) -> Reading {
        let hands = self.hands();
        Reading { mono_ns: hands.mono.ns, raw_ns: hands.raw.ns, clock_id: hands.clock_id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_clocks() {
        let clocks = ManualClocks::new(ClockId(7));
        let twin = clocks.clone();
        clocks.advance(Span(3));
        clocks.jump(Span(4));
        assert_eq!(twin.read(), Reading { mono_ns: 7, raw_ns: 7, clock_id: ClockId(7) });
    }

    #[test]
    fn small_steps_come_as_far_as_one_large_step() {
        let (steps, leap) = (ManualClocks::new(ClockId(1)), ManualClocks::new(ClockId(1)));
        for clocks in [&steps, &leap] {
            clocks.set_rate_ppm(1_000_500, 999_999);
        }
        for _ in 0..10_000 {
            steps.advance(Span(333));
        }
        leap.advance(Span(3_330_000));
        assert_eq!(steps.read(), leap.read());
        assert_eq!((leap.read().mono_ns, leap.read().raw_ns), (3_331_665, 3_329_996));
    }

    #[test]
    fn frozen_clocks_stand_still() {
        let clocks = ManualClocks::new(ClockId(1));
        clocks.freeze();
        clocks.advance(Span(5));
        clocks.thaw();
        clocks.advance(Span(2));
        assert_eq!(clocks.read().mono_ns, 2);
    }
}
