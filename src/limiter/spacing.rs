//! "One every interval, all of us together": the register `next` and its arithmetic.
//!
//! ```text
//! unit = interval + start_window
//! S    = max(now + lead, next)
//! S > now and ceil((S - now) / unit) > max_reserved  ->  denied
//! S - now > max_wait                                 ->  denied
//! next = S + cost * unit                             ->  granted at S
//! ```
//! Slots are a whole unit apart so that a worker that starts at the very end of its window and the next one that starts
//! at the very beginning of its own are still an interval apart.

use super::decision::{Ask, Decision, Denial, Reason};
use super::limit::LimitError;
use super::rate::Rate;
use super::time::{Span, Time};
use crate::limits::{COST_MAX, DRIFT_PPM, HORIZON_NS_MAX, MAX_RESERVED_MAX};
use serde::{Deserialize, Serialize};

/// A spacing limit. Its fields are private because together they keep an invariant: see [`Spacing::new`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(Rate, Span, u32)", into = "(Rate, Span, u32)")]
pub struct Spacing {
    rate: Rate,
    start_window: Span,
    max_reserved: u32,
}

impl Spacing {
    /// Checks that the limit can keep its promises.
    ///
    /// Invariant: the farthest reservation lies within the horizon, and a start window, if there is one, stays open
    /// after the allowance for clock drift even for that reservation.
    pub fn new(rate: Rate, start_window: Span, max_reserved: u32) -> Result<Self, LimitError> {
        if max_reserved > MAX_RESERVED_MAX {
            return Err(LimitError::Absurd(format!(
                "max_reserved is at most {MAX_RESERVED_MAX}, this one is {max_reserved}"
            )));
        }
        let spacing = Self { rate, start_window, max_reserved };
        let horizon = Span(HORIZON_NS_MAX);
        let Some(farthest) = spacing.unit().times(u64::from(max_reserved)).filter(|far| *far <= horizon) else {
            return Err(LimitError::Absurd(format!(
                "max_reserved {max_reserved} times {} reaches farther than {horizon}: lower max_reserved or the interval",
                spacing.unit()
            )));
        };
        if start_window > Span::ZERO && spacing.window_left(farthest).is_none() {
            return Err(LimitError::Absurd(format!(
                "start_window {start_window} is too short to be kept: a reservation may lie {farthest} ahead, and clocks \
                 that drift by {DRIFT_PPM} ppm use up {} of the window by then; raise start_window, or lower \
                 max_reserved ({max_reserved}) or the interval ({})",
                spacing.drift(farthest),
                rate.interval()
            )));
        }
        Ok(spacing)
    }

    /// The rate as it was written.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How long after its slot a worker may still start; zero when the limit has no window.
    pub const fn start_window(&self) -> Span {
        self.start_window
    }

    /// Most permits that may lie in the future.
    pub const fn max_reserved(&self) -> u32 {
        self.max_reserved
    }

    /// The distance of two slots.
    pub const fn unit(&self) -> Span {
        self.rate.interval().plus(self.start_window)
    }

    /// Permits that lie in the future if the last one lies at `slot`, that one included. Rounds **up**: rounding down would
    /// let one more through than `max_reserved`. Where earlier ones cost more than 1 or left a gap for a lead, the places
    /// they take count, not their number.
    pub const fn outstanding(&self, slot: Time, now: Time) -> u64 {
        slot.since(now).0.div_ceil(self.unit().0)
    }

    /// Why no state of the register could grant this request, if that is so.
    pub fn never(&self, ask: &Ask) -> Option<String> {
        if ask.cost == 0 || ask.cost > COST_MAX {
            return Some(format!("cost {} lies outside 1 to {COST_MAX}", ask.cost));
        }
        let taken = self.unit().times(ask.cost);
        if taken.is_none_or(|taken| taken.0 > HORIZON_NS_MAX) {
            return Some(format!(
                "cost {} times {} is more time than the {} a permit may take",
                ask.cost,
                self.unit(),
                Span(HORIZON_NS_MAX)
            ));
        }
        let ahead = ask.lead.0.div_ceil(self.unit().0);
        if ahead > u64::from(self.max_reserved) {
            return Some(format!(
                "a lead of {} is {ahead} slots of {} ahead, and max_reserved is {}",
                ask.lead,
                self.unit(),
                self.max_reserved
            ));
        }
        let longest = if ask.free_now_only { Some(Span::ZERO) } else { ask.max_wait };
        if longest.is_some_and(|longest| ask.lead > longest) {
            return Some(format!("a lead of {} is longer than the longest wait asked for", ask.lead));
        }
        None
    }

    /// Decides one request against the register. Pure.
    pub fn decide(&self, next: Time, now: Time, ask: &Ask) -> Decision {
        if let Some(why) = self.never(ask) {
            return Decision::Never(why);
        }
        let slot = now.after(ask.lead).max(next);
        let wait = slot.since(now);
        let too_long_by = |longest: Span| wait.minus(longest);
        if wait > Span::ZERO {
            if ask.free_now_only {
                return Decision::Denied(Denial { reason: Reason::NotFreeNow, retry_after: wait });
            }
            let over_wait = ask.max_wait.map_or(Span::ZERO, too_long_by);
            if self.outstanding(slot, now) > u64::from(self.max_reserved) {
                // `never` has seen to it that the lead alone fits, so here the register is what lies too far ahead.
                let full_reach = Span(self.unit().0 * u64::from(self.max_reserved));
                let retry_after = too_long_by(full_reach).max(over_wait);
                return Decision::Denied(Denial { reason: Reason::ReservationsFull, retry_after });
            }
            if over_wait > Span::ZERO {
                return Decision::Denied(Denial { reason: Reason::WouldWaitTooLong, retry_after: over_wait });
            }
        }
        Decision::Granted { slot, next: slot.after(Span(self.unit().0 * ask.cost)) }
    }

    /// How long after the **first send** of the request a worker may start at the latest, rounded down.
    pub fn start_before(&self, slot: Time, stamp: Time) -> Option<Span> {
        if self.start_window == Span::ZERO {
            return None;
        }
        let ahead = slot.since(stamp);
        // A slot farther ahead than this limit would reserve was granted under an older one: no window is left of it.
        Some(self.window_left(ahead).map_or(Span::ZERO, |left| ahead.plus(left)))
    }

    /// The instant after which an answer with this slot is too late to be used.
    pub fn expires_at(&self, slot: Time) -> Option<Time> {
        (self.start_window > Span::ZERO).then(|| slot.after(self.start_window))
    }

    /// `W' = W - 2r(D + W) - rI` for a permit `D` ahead, if anything is left of the window.
    fn window_left(&self, ahead: Span) -> Option<Span> {
        let left = self.start_window.minus(self.drift(ahead));
        (left > Span::ZERO).then_some(left)
    }

    /// `2r(D + W) + rI`, rounded **up**: what drifting clocks may eat of the window.
    fn drift(&self, ahead: Span) -> Span {
        let parts = |span: Span, ppm: u64| (u128::from(span.0) * u128::from(ppm)).div_ceil(1_000_000);
        let ns = parts(ahead.plus(self.start_window), 2 * DRIFT_PPM) + parts(self.rate.interval(), DRIFT_PPM);
        Span(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<(Rate, Span, u32)> for Spacing {
    type Error = LimitError;
    fn try_from((rate, start_window, max_reserved): (Rate, Span, u32)) -> Result<Self, LimitError> {
        Self::new(rate, start_window, max_reserved)
    }
}

impl From<Spacing> for (Rate, Span, u32) {
    fn from(spacing: Spacing) -> Self {
        (spacing.rate, spacing.start_window, spacing.max_reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    fn every_six_seconds(max_reserved: u32) -> Spacing {
        Spacing::new("1/6s".parse().unwrap(), Span::ZERO, max_reserved).unwrap()
    }

    fn granted(slot: u64, next: u64) -> Decision {
        Decision::Granted { slot: Time(slot), next: Time(next) }
    }

    fn denied(reason: Reason, retry_after: u64) -> Decision {
        Decision::Denied(Denial { reason, retry_after: Span(retry_after) })
    }

    #[test]
    fn a_free_permit_is_granted_whatever_max_reserved_says() {
        let now = Time(100 * SEC);
        assert_eq!(every_six_seconds(0).decide(Time(0), now, &Ask::default()), granted(100 * SEC, 106 * SEC));
        assert_eq!(every_six_seconds(0).decide(now, now, &Ask::default()), granted(100 * SEC, 106 * SEC));
    }

    #[test]
    fn pessimistic_mode_denies_one_nanosecond_early() {
        let decision = every_six_seconds(0).decide(Time(SEC + 1), Time(SEC), &Ask::default());
        assert_eq!(decision, denied(Reason::ReservationsFull, 1));
    }

    #[test]
    fn outstanding_counts_exactly_and_rounds_up() {
        let limit = every_six_seconds(2);
        // Two in the future: at 6 s and 12 s. A third would lie at 18 s.
        assert_eq!(limit.decide(Time(12 * SEC), Time(0), &Ask::default()), granted(12 * SEC, 18 * SEC));
        assert_eq!(limit.decide(Time(18 * SEC), Time(0), &Ask::default()), denied(Reason::ReservationsFull, 6 * SEC));
        assert_eq!(
            limit.decide(Time(18 * SEC), Time(6 * SEC - 1), &Ask::default()),
            denied(Reason::ReservationsFull, 1)
        );
        assert_eq!(limit.decide(Time(18 * SEC), Time(6 * SEC), &Ask::default()), granted(18 * SEC, 24 * SEC));
        assert_eq!(limit.outstanding(Time(12 * SEC), Time(0)), 2);
        assert_eq!(limit.outstanding(Time(12 * SEC), Time(6 * SEC - 1)), 2);
        assert_eq!(limit.outstanding(Time(12 * SEC), Time(12 * SEC)), 0);
    }

    #[test]
    fn waiting_rules_name_the_one_that_refused() {
        let limit = every_six_seconds(10);
        let patient = Ask { max_wait: Some(Span::from_secs(5)), ..Ask::default() };
        assert_eq!(limit.decide(Time(6 * SEC), Time(0), &patient), denied(Reason::WouldWaitTooLong, SEC));
        assert_eq!(limit.decide(Time(6 * SEC), Time(SEC), &patient), granted(6 * SEC, 12 * SEC));
        let now_only = Ask { free_now_only: true, ..Ask::default() };
        assert_eq!(limit.decide(Time(6 * SEC), Time(0), &now_only), denied(Reason::NotFreeNow, 6 * SEC));
    }

    #[test]
    fn lead_and_cost_move_the_register() {
        let limit = every_six_seconds(10);
        let ask = Ask { lead: Span::from_secs(1), cost: 3, ..Ask::default() };
        assert_eq!(limit.decide(Time(0), Time(SEC), &ask), granted(2 * SEC, 20 * SEC));
    }

    #[test]
    fn what_can_never_be_granted_says_why() {
        let limit = every_six_seconds(1);
        let never = |ask: Ask| limit.never(&ask).unwrap();
        assert!(never(Ask { cost: 0, ..Ask::default() }).contains("outside 1 to 1000000"));
        assert!(never(Ask { cost: COST_MAX + 1, ..Ask::default() }).contains("outside 1 to 1000000"));
        assert!(never(Ask { lead: Span::from_secs(7), ..Ask::default() }).contains("2 slots of 6s ahead"));
        let hasty = Ask { lead: Span::from_secs(2), max_wait: Some(Span::from_secs(1)), ..Ask::default() };
        assert!(never(hasty).contains("longer than the longest wait"));
        let yearly = Spacing::new("1/366d".parse().unwrap(), Span::ZERO, 1).unwrap();
        assert!(yearly.never(&Ask { cost: 11, ..Ask::default() }).unwrap().contains("more time than"));
    }

    #[test]
    fn a_window_that_drift_would_close_is_refused() {
        let rate: Rate = "1/6s".parse().unwrap();
        let error = Spacing::new(rate, Span::from_millis(50), 10).unwrap_err().to_string();
        assert!(error.contains("start_window 50ms is too short") && error.contains("max_reserved (10)"), "{error}");
        assert!(Spacing::new(rate, Span::from_millis(250), 10).is_ok());
        assert!(Spacing::new(rate, Span::from_millis(50), 0).is_ok());
        assert!(Spacing::new("1/366d".parse().unwrap(), Span::ZERO, 100).is_err());
        assert!(Spacing::new(rate, Span::ZERO, MAX_RESERVED_MAX + 1).is_err());
    }

    #[test]
    fn the_deadline_shrinks_with_the_distance() {
        let limit = Spacing::new("1/6s".parse().unwrap(), Span::from_millis(250), 10).unwrap();
        // W' = 250 ms - 0.001 * (6.25 s + 0.25 s) - 0.0005 * 6 s = 240.5 ms
        assert_eq!(limit.start_before(Time(6_250_000_000), Time(0)), Some(Span(6_490_500_000)));
        assert_eq!(limit.expires_at(Time(SEC)), Some(Time(SEC + 250_000_000)));
        assert_eq!(every_six_seconds(3).start_before(Time(SEC), Time(0)), None);
    }
}
