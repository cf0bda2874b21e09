//! What a proxy counts.

use super::hold::Held;
use crate::metric_names::{PROXY_HELD_SECONDS, PROXY_OVERHEAD_SECONDS, PROXY_REQUESTS_TOTAL, PROXY_WAITING};
use metrics::{Gauge, Histogram, counter, gauge, histogram};

/// The instruments. To be made after the recorder is installed.
#[derive(Clone)]
pub(super) struct Meters {
    waiting: Gauge,
    held: Histogram,
    overhead: Histogram,
}

/// One request that waits, for as long as it does.
pub(super) struct Waiting(Gauge);

impl Meters {
    pub(super) fn new() -> Self {
        let meters = Self {
            waiting: gauge!(PROXY_WAITING),
            held: histogram!(PROXY_HELD_SECONDS),
            overhead: histogram!(PROXY_OVERHEAD_SECONDS),
        };
        meters.waiting.set(0.0);
        meters
    }

    /// A request begins to wait.
    pub(super) fn waits(&self) -> Waiting {
        self.waiting.increment(1.0);
        Waiting(self.waiting.clone())
    }

    /// A request was held and goes on.
    pub(super) fn held(&self, held: &Held) {
        self.held.record(held.all.as_secs_f64());
        self.overhead.record(held.overhead().as_secs_f64());
    }
}

/// How a request comes to its end: one whose handling was dropped without a word has lost its client.
pub(super) struct Ending(&'static str);

impl Ending {
    pub(super) const fn new() -> Self {
        Self("client_gone")
    }

    /// It ends like this.
    pub(super) fn with(mut self, outcome: &'static str) {
        self.0 = outcome;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        counter!(PROXY_REQUESTS_TOTAL, "outcome" => self.0).increment(1);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
