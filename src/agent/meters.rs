//! What an agent counts.

use crate::metric_names::{
    AGENT_ACQUIRE_DURATION_SECONDS, AGENT_ACQUIRES_TOTAL, AGENT_BLOCKS_TOTAL, AGENT_KEYS, AGENT_PASSED_TOTAL,
    AGENT_SLOTS_HELD, AGENT_SLOTS_TOTAL, AGENT_WAITING, gauge_value,
};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::time::Duration;

/// The instruments. To be made after the recorder is installed.
#[derive(Clone)]
pub(super) struct Meters {
    pub(super) reserved: Counter,
    pub(super) handed_out: Counter,
    pub(super) given_back: Counter,
    pub(super) wasted: Counter,
    pub(super) passed: Counter,
    duration: Histogram,
    held: Gauge,
    keys: Gauge,
    waiting: Gauge,
}

impl Meters {
    pub(super) fn new() -> Self {
        let slots = |what: &'static str| counter!(AGENT_SLOTS_TOTAL, "what" => what);
        let meters = Self {
            reserved: slots("reserved"),
            handed_out: slots("handed_out"),
            given_back: slots("given_back"),
            wasted: slots("wasted"),
            passed: counter!(AGENT_PASSED_TOTAL),
            duration: histogram!(AGENT_ACQUIRE_DURATION_SECONDS),
            held: gauge!(AGENT_SLOTS_HELD),
            keys: gauge!(AGENT_KEYS),
            waiting: gauge!(AGENT_WAITING),
        };
        for counter in [&meters.reserved, &meters.handed_out, &meters.given_back, &meters.wasted, &meters.passed] {
            // Shown from the beginning, so that a rate has a beginning.
            counter.increment(0);
        }
        meters
    }

    /// How much there is of everything now.
    pub(super) fn sizes(&self, held: usize, keys: usize, waiting: usize) {
        self.held.set(gauge_value(held as u64));
        self.keys.set(gauge_value(keys as u64));
        self.waiting.set(gauge_value(waiting as u64));
    }

    /// An acquire was answered.
    pub(super) fn answered(&self, outcome: &'static str, took: Duration) {
        counter!(AGENT_ACQUIRES_TOTAL, "outcome" => outcome).increment(1);
        self.duration.record(took.as_secs_f64());
    }
}

/// A block came to its end.
pub(super) fn block(outcome: &'static str) {
    counter!(AGENT_BLOCKS_TOTAL, "outcome" => outcome).increment(1);
}
