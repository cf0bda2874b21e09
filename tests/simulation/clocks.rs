//! The clocks of one simulated machine: they follow simulated true time at rates of their own, and outlive its processes.
//!
//! Faults keep to what the proof allows: one of the two clocks, the same from one boot to the next, never runs more than
//! `DRIFT_PPM` fast. The other may run at any rate or jump ahead; both may run slow, stand still, or begin anew under
//! another id.

use quorate::clock::{ClockId, Clocks, ManualClocks, Reading};
use quorate::limiter::Span;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Clones are the same clocks.
#[derive(Clone)]
pub(crate) struct MachineClocks(Arc<Mutex<State>>);

struct State {
    hands: ManualClocks,
    /// How far they were moved.
    moved: Duration,
    boots: u64,
    machine: u64,
}

impl MachineClocks {
    pub(crate) fn new(machine: u64) -> Self {
        let hands = ManualClocks::new(ClockId(machine << 32));
        Self(Arc::new(Mutex::new(State { hands, moved: Duration::ZERO, boots: 0, machine })))
    }

    /// Changes something about the clocks, at this true time.
    pub(crate) fn at<T>(&self, now: Duration, change: impl FnOnce(&ManualClocks) -> T) -> T {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_sub(state.moved);
        state.moved = now.max(state.moved);
        state.hands.advance(Span(u64::try_from(passed.as_nanos()).expect("a simulation of less than 500 years")));
        change(&state.hands)
    }

    /// Sets the rates: of the one that keeps to the bound, and of the other.
    pub(crate) fn set_rates(&self, now: Duration, bounded_ppm: u64, other_ppm: u64) {
        let raw_is_bounded = {
            let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (state.machine + state.boots).is_multiple_of(2)
        };
        let (mono, raw) = if raw_is_bounded { (other_ppm, bounded_ppm) } else { (bounded_ppm, other_ppm) };
        self.at(now, |hands| hands.set_rate_ppm(mono, raw));
    }

    /// Another boot: the clocks begin anew, and no reading from before means anything.
    pub(crate) fn reboot(&self, now: Duration, begin: Span) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.boots += 1;
        state.hands = ManualClocks::new(ClockId((state.machine << 32) + state.boots));
        state.hands.jump(begin);
        state.moved = now;
    }
}

impl Clocks for MachineClocks {
    fn read(&self) -> Reading {
        let now = turmoil::sim_elapsed().expect("clocks are read on a simulated host");
        self.at(now, Clocks::read)
    }
}
