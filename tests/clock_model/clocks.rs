//! The clocks of the model: what real time looks like to a node and to a worker.
//!
//! Not the manual twin of the crate: here a clock is a function of real time, so that the oracle can be asked about both.

use crate::rng::Rng;
use quorate::clock::{ClockId, Reading};
use quorate::limits::DRIFT_PPM;

/// Rates are counted in these.
pub const PAR: u64 = 2_000;
/// The fastest a clock may run: 1 + r.
pub const FAST: u64 = PAR + PAR * DRIFT_PPM / 1_000_000;
/// The slowest a *worker's* clock may run: 1 - r. A node's may stand still.
pub const SLOW: u64 = PAR - PAR * DRIFT_PPM / 1_000_000;
/// Chrony's largest slew: 8.3 %.
const SLEW_MAX: u64 = 166;

// The grid only works for an r that is a whole number of these.
const _: () = assert!((PAR * DRIFT_PPM).is_multiple_of(1_000_000) && FAST > PAR);

/// Both clocks of a node, as functions of real time since they last changed their rate.
#[derive(Clone, Copy)]
pub struct NodeClock {
    id: u64,
    since_ns: u64,
    mono_ns: u64,
    raw_ns: u64,
    mono_rate: u64,
    raw_rate: u64,
    /// The rates to go back to when a freeze is over.
    thawed: (u64, u64),
}

impl NodeClock {
    pub fn new(id: u64, now_ns: u64, rng: &mut Rng) -> Self {
        Self {
            id,
            since_ns: now_ns,
            mono_ns: rng.range(0, 20_000_000_000),
            raw_ns: rng.range(0, 20_000_000_000),
            mono_rate: PAR,
            raw_rate: PAR,
            thawed: (PAR, PAR),
        }
    }

    pub fn read(&self, now_ns: u64) -> Reading {
        let passed = now_ns - self.since_ns;
        Reading {
            mono_ns: self.mono_ns + passed * self.mono_rate / PAR,
            raw_ns: self.raw_ns + passed * self.raw_rate / PAR,
            clock_id: ClockId(self.id),
        }
    }

    /// Another drift, the same on both: often as fast as allowed, for that is where the bound is tight.
    pub fn change_rate(&mut self, now_ns: u64, rng: &mut Rng) {
        let rate = match rng.below(8) {
            0..4 => FAST,
            4 => PAR,
            5 => SLOW,
            6 => rng.range(0, FAST),
            _ => rng.range(PAR / 2, FAST),
        };
        self.set(now_ns, rate, rate);
    }

    /// Chrony takes hold of the monotonic clock; the raw one goes on as it did.
    pub fn slew(&mut self, now_ns: u64, rng: &mut Rng) {
        let raw = self.thawed.1;
        let mono = if rng.percent(70) { raw + SLEW_MAX } else { raw.saturating_sub(rng.range(1, SLEW_MAX)) };
        self.set(now_ns, mono, raw);
    }

    pub fn freeze(&mut self, now_ns: u64) {
        let thawed = self.thawed;
        self.set(now_ns, 0, 0);
        self.thawed = thawed;
    }

    pub fn thaw(&mut self, now_ns: u64) {
        let (mono, raw) = self.thawed;
        self.set(now_ns, mono, raw);
    }

    fn set(&mut self, now_ns: u64, mono_rate: u64, raw_rate: u64) {
        let reading = self.read(now_ns);
        (self.mono_ns, self.raw_ns, self.since_ns) = (reading.mono_ns, reading.raw_ns, now_ns);
        (self.mono_rate, self.raw_rate) = (mono_rate, raw_rate);
        self.thawed = (mono_rate, raw_rate);
    }
}

/// A worker's monotonic clock: one rate until the answer comes, one after it, both within 1 ± r.
#[derive(Clone, Copy)]
pub struct WorkerClock {
    pub waiting: u64,
    pub starting: u64,
}

impl WorkerClock {
    pub fn new(rng: &mut Rng) -> Self {
        let mut rate = || rng.pick(&[SLOW, SLOW, PAR, FAST, FAST]);
        Self { waiting: rate(), starting: rate() }
    }

    /// The first real instant at which `wait_ns` have passed on this clock since the answer.
    pub const fn earliest(self, answered_ns: u64, wait_ns: u64) -> u64 {
        answered_ns + (wait_ns * PAR).div_ceil(self.starting)
    }

    /// The last real instant at which no more than `within_ns` have passed on this clock since the request was sent.
    pub const fn latest(self, sent_ns: u64, answered_ns: u64, within_ns: u64) -> Option<u64> {
        match within_ns.checked_sub((answered_ns - sent_ns) * self.waiting / PAR) {
            Some(left_ns) => Some(answered_ns + left_ns * PAR / self.starting),
            None => None,
        }
    }
}
