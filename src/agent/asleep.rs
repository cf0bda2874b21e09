//! Whether the machine slept: the monotonic clock stands still meanwhile, the world does not.
//!
//! A slot's last instant is kept on that clock, so after a sleep it would be handed out too late. The boot-time clock counts on
//! while the machine sleeps. Nothing is decided by its reading, which may jump: that it moved ahead of the other one is enough.

use super::block::Ns;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};

/// Less than this is no sleep.
const SLEEP_NS_MIN: Ns = 1_000_000;

/// How far the boot-time clock is ahead of the monotonic one.
#[derive(Debug, Default)]
pub(super) struct Asleep {
    /// It was not more than this, in nanoseconds, when it was last looked at.
    ahead_most: AtomicU64,
}

impl Asleep {
    /// From now on.
    pub(super) fn new() -> Self {
        let asleep = Self::default();
        let [before, boot, _] = readings();
        asleep.ahead_most.store(boot.saturating_sub(before), Ordering::Relaxed);
        asleep
    }

    /// Whether the machine slept since this was last asked, by anybody.
    pub(super) fn slept(&self) -> bool {
        self.look(readings())
    }

    /// The monotonic clock was read before and after the other one: whatever comes between the readings, the truth lies in between.
    fn look(&self, [before, boot, after]: [Ns; 3]) -> bool {
        let (least, most) = (boot.saturating_sub(after), boot.saturating_sub(before));
        let known = self.ahead_most.load(Ordering::Relaxed);
        let slept = least > known.saturating_add(SLEEP_NS_MIN);
        if slept {
            self.ahead_most.store(most, Ordering::Relaxed);
        }
        slept
    }
}

fn readings() -> [Ns; 3] {
    [ClockId::Monotonic, ClockId::Boottime, ClockId::Monotonic].map(|clock| ns(clock_gettime(clock)))
}

fn ns(time: Timespec) -> Ns {
    let (secs, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Ns = 1_000_000_000;

    #[test]
    fn only_a_sleep_counts_as_one() {
        let asleep = Asleep { ahead_most: AtomicU64::new(5 * S) };
        assert!(!asleep.look([10 * S, 15 * S, 10 * S]), "awake");
        assert!(!asleep.look([11 * S, 18 * S, 13 * S]), "kept from running for two seconds between two readings");
        assert!(asleep.look([14 * S, 22 * S, 14 * S]), "three seconds asleep");
        assert!(!asleep.look([15 * S, 23 * S, 15 * S]), "said once");
    }

    #[test]
    fn this_machine_is_awake() {
        let asleep = Asleep::new();
        assert!((0..1_000).all(|_| !asleep.slept()));
    }
}
