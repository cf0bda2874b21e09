//! A rate that grows: from a slow one to the limit's own over some time of cluster time.
//!
//! The rate grows linearly, in [`STEPS`] steps; a permit's interval is the one at its slot. Both round the slow way.

use super::limit::LimitError;
use super::rate::Rate;
use super::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Steps of a ramp. Few enough that the product of two longest intervals and this fits 128 bits.
const STEPS: u128 = 1 << 16;

/// Where a ramp begins and how long it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ramp {
    /// The rate at the beginning.
    pub from: Rate,
    /// Until the limit's own rate is reached; also how long a key has to rest before it begins anew.
    pub over: Span,
}

impl Ramp {
    /// Checks a ramp that ends in `rate`.
    pub(super) fn check(&self, rate: Rate) -> Result<(), LimitError> {
        if self.over == Span::ZERO {
            return Err(LimitError::Absurd("a ramp over no time at all is no ramp: leave it out".to_owned()));
        }
        if self.from.interval() < rate.interval() {
            return Err(LimitError::Absurd(format!(
                "a ramp begins slower than it ends: from {} to {rate} would slow down",
                self.from
            )));
        }
        Ok(())
    }

    /// The interval of a permit at `slot`, of a ramp that ends in `fast` and began at `began`; rounded **up**.
    pub(super) fn interval(&self, fast: Span, began: Time, slot: Time) -> Span {
        let elapsed = slot.since(began).0.min(self.over.0);
        // Rounded down: the ramp is never ahead of its time.
        let step = u128::from(elapsed) * STEPS / u128::from(self.over.0);
        let (slow_ns, fast_ns) = (u128::from(self.from.interval().0), u128::from(fast.0));
        // Rates are the inverse of intervals: 1 / (a/slow + b/fast).
        let interval = (slow_ns * fast_ns * STEPS).div_ceil(fast_ns * (STEPS - step) + slow_ns * step);
        Span(u64::try_from(interval).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::INTERVAL_NS_MAX;

    fn ramp(from: &str, over: Span) -> Ramp {
        Ramp { from: from.parse().unwrap(), over }
    }

    #[test]
    fn the_rate_grows_linearly() {
        let minute = ramp("10/s", Span::from_secs(60));
        let fast = Span::from_millis(10);
        let at = |secs: u64| minute.interval(fast, Time(5), Time(5 + secs * 1_000_000_000));
        assert_eq!(at(0), Span::from_millis(100), "10/s");
        assert_eq!(at(30), Span(18_181_819), "55/s, rounded up");
        assert_eq!(at(60), Span::from_millis(10), "100/s");
        assert_eq!(at(6_000), Span::from_millis(10), "for ever");
        assert_eq!(minute.interval(fast, Time(5), Time(0)), Span::from_millis(100), "not before it began");
    }

    #[test]
    fn it_never_gets_slower_and_never_overflows() {
        let longest = ramp("1/366d", Span(INTERVAL_NS_MAX));
        let mut last = Span(u64::MAX);
        for part in 0..=1_000 {
            let now = longest.interval(Span(1_000), Time(0), Time(INTERVAL_NS_MAX / 1_000 * part));
            assert!(now <= last);
            last = now;
        }
        assert_eq!(last, Span(1_000));
        assert_eq!(longest.interval(Span(INTERVAL_NS_MAX), Time(0), Time(7)), Span(INTERVAL_NS_MAX));
    }

    #[test]
    fn a_ramp_leads_up() {
        let rate = "10/s".parse().unwrap();
        assert!(ramp("10/s", Span(1)).check(rate).is_ok());
        assert!(ramp("11/s", Span(1)).check(rate).unwrap_err().to_string().contains("slow down"));
        assert!(ramp("1/s", Span::ZERO).check(rate).unwrap_err().to_string().contains("no time"));
    }
}
