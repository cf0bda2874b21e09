//! When faults strike and what they are like: decided by the seed, kind by kind, before anything runs.

use super::fault::Kind;
use super::rng::Rng;
use std::time::Duration;

/// One fault to come. What `dice` mean is the fault's business; who leads at that moment is not decided here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draw {
    /// From the end of the one before.
    pub(super) gap: Duration,
    /// How long it lasts.
    pub(super) hold: Duration,
    pub(super) dice: Rng,
}

/// The endless list of faults of one kind.
#[derive(Debug)]
pub(super) struct Schedule {
    kind: Kind,
    rng: Rng,
    hold_max: Duration,
}

impl Schedule {
    pub(super) fn new(seed: u64, kind: Kind, hold_max: Duration) -> Self {
        Self { kind, rng: Rng::new(seed, kind.name()), hold_max }
    }
}

impl Iterator for Schedule {
    type Item = Draw;

    fn next(&mut self) -> Option<Draw> {
        let pace = self.kind.pace();
        let gap = Duration::from_millis(self.rng.between(pace.gap_ms.0, pace.gap_ms.1));
        let hold = Duration::from_millis(skewed(&mut self.rng, pace.hold_ms)).min(self.hold_max);
        Some(Draw { gap, hold, dice: Rng::new(self.rng.next(), "dice") })
    }
}

/// Each doubling of the length is as likely as the next, so that short ones are not drowned by long ones.
fn skewed(rng: &mut Rng, (low, high): (u64, u64)) -> u64 {
    if low == 0 || high <= low {
        return low;
    }
    let doublings = (high / low).ilog2();
    let from = low << rng.below(u64::from(doublings) + 1);
    rng.between(from, (2 * from).min(high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_kinds_do_not_disturb_each_other() {
        let draws = |seed, kind| Schedule::new(seed, kind, Duration::MAX).take(50).collect::<Vec<_>>();
        assert_eq!(draws(1, Kind::Kill), draws(1, Kind::Kill));
        assert_ne!(draws(1, Kind::Kill), draws(2, Kind::Kill));
        assert_ne!(draws(1, Kind::Kill)[0].dice, draws(1, Kind::Pause)[0].dice);
    }

    #[test]
    fn pauses_are_short_and_long() {
        let holds: Vec<_> = Schedule::new(3, Kind::Pause, Duration::MAX).take(400).map(|draw| draw.hold).collect();
        assert!(holds.iter().all(|hold| (50..=10_000).contains(&hold.as_millis())));
        assert!(holds.iter().any(|hold| hold.as_millis() < 120) && holds.iter().any(|hold| hold.as_secs() >= 6));
        assert!(Schedule::new(3, Kind::Pause, Duration::from_secs(1)).take(400).all(|draw| draw.hold.as_secs() <= 1));
    }
}
