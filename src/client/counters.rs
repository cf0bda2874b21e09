//! What a client did, in figures: nothing that it decides by itself goes uncounted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a client and its clones did so far.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same while it grows.
        #[derive(Debug, Default)]
        pub(super) struct Tally {
            $(pub(super) $name: Count,)*
        }

        impl Tally {
            pub(super) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests that were sent, every attempt for itself.
    sent,
    /// Permits that the cluster granted.
    granted,
    /// Denials by the cluster.
    denied,
    /// Denials from memory, before it was worth asking again.
    denied_from_memory,
    /// Permits that came too late to be used; each was dropped and another one asked for.
    dead,
    /// Permits that were not used and went back to the cluster, as far as it took them.
    given_back,
    /// Permits that were not used and could not be given back: their slots are wasted.
    not_given_back,
    /// Leases that were given back after the work under them, as far as the cluster took them.
    released,
    /// Leases that could not be given back after the work: their places are taken until they end by themselves.
    not_released,
    /// Leases that were lost while work was done under them.
    leases_lost,
    /// Calls that ended because nobody decided.
    unavailable,
    /// Calls that ended without anybody knowing their outcome.
    outcome_unknown,
    /// Let through without a permit because the cluster was out of reach ([`OnUnavailable::Open`](super::OnUnavailable)).
    open,
    /// Let through by the local limiter for the same reason ([`OnUnavailable::Local`](super::OnUnavailable)).
    local,
    /// Denied by the local limiter.
    local_denied,
}

/// One figure.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn one(&self) {
        self.many(1);
    }

    pub(super) fn many(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_add_up() {
        let tally = Tally::default();
        tally.dead.one();
        tally.sent.many(3);
        assert_eq!(tally.snapshot(), Counters { dead: 1, sent: 3, ..Counters::default() });
    }
}
