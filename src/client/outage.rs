//! Whether the cluster is out of reach, for clients that go on without it, and whose turn it is to see whether it is back.
//!
//! Invariants
//! - While an outage is known, one call at a time asks the cluster; nobody else waits for it.
//! - Only the cluster itself, by an answer, ends an outage.
//!
//! Pure but for the lock: time is the caller's, since the client began.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a client knows of an outage.
#[derive(Debug, Default)]
pub(super) struct Outage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: bool,
    /// The next call to come asks from this instant on.
    probe_at: Duration,
    /// Outages so far.
    count: u64,
}

/// What to do with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Ask: nothing is known to be wrong.
    Usual,
    /// Ask: somebody has to see whether the cluster is back.
    Probe,
    /// Do not: it is known to be out of reach.
    Spared,
}

impl Outage {
    /// Whether to ask. Who is told to probe is the only one for `probe_lasts`.
    pub(super) fn asking(&self, now: Duration, probe_lasts: Duration) -> Asking {
        let mut state = self.lock();
        if !state.known {
            return Asking::Usual;
        }
        if now < state.probe_at {
            return Asking::Spared;
        }
        state.probe_at = now.saturating_add(probe_lasts);
        Asking::Probe
    }

    /// A question was not decided. The next one is asked `probe_every` from now.
    pub(super) fn met(&self, now: Duration, probe_every: Duration) {
        let mut state = self.lock();
        state.count += u64::from(!state.known);
        state.known = true;
        state.probe_at = now.saturating_add(probe_every);
    }

    /// The cluster has decided something.
    pub(super) fn over(&self) {
        self.lock().known = false;
    }

    pub(super) fn is_known(&self) -> bool {
        self.lock().known
    }

    /// How long until the cluster is asked again.
    pub(super) fn next_probe(&self, now: Duration) -> Duration {
        self.lock().probe_at.saturating_sub(now)
    }

    /// Which outage this is, from 1.
    pub(super) fn count(&self) -> u64 {
        self.lock().count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_at_a_time_sees_whether_it_is_over() {
        let outage = Outage::default();
        let asking = |now: u32| outage.asking(now * MS, 3_000 * MS);
        assert_eq!(asking(1), Asking::Usual);
        outage.met(10 * MS, 1_000 * MS);
        assert_eq!((asking(1_009), outage.next_probe(510 * MS)), (Asking::Spared, 500 * MS));
        assert_eq!((asking(1_010), asking(1_010), asking(4_009)), (Asking::Probe, Asking::Spared, Asking::Spared));
        assert_eq!(asking(4_010), Asking::Probe, "the last one never came back");
        outage.met(4_100 * MS, 1_000 * MS);
        assert_eq!((outage.count(), outage.is_known()), (1, true), "still the same one");
        outage.over();
        assert_eq!((asking(4_101), outage.is_known()), (Asking::Usual, false));
        outage.met(5_000 * MS, 1_000 * MS);
        assert_eq!(outage.count(), 2);
    }
}
