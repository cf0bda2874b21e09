//! What the history counts.

use crate::metric_names::{HISTORY_BYTES, HISTORY_DROPPED_TOTAL, HISTORY_EVENTS_TOTAL, HISTORY_RESETS_TOTAL};
use metrics::{Counter, Gauge, counter, gauge};

/// Created after the recorder was installed, or it counts into nothing.
pub(super) struct Meters {
    pub(super) events: Counter,
    pub(super) dropped: Counter,
    pub(super) resets: Counter,
    pub(super) bytes: Gauge,
}

impl Meters {
    pub(super) fn new() -> Self {
        Self {
            events: counter!(HISTORY_EVENTS_TOTAL),
            dropped: counter!(HISTORY_DROPPED_TOTAL),
            resets: counter!(HISTORY_RESETS_TOTAL),
            bytes: gauge!(HISTORY_BYTES),
        }
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}
