//! Elapsed time, for deadlines and histograms only: no decision depends on it.

use std::time::Duration;
use tokio::time::Instant;

/// Measures from where it was started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
