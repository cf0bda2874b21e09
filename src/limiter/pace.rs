//! What spacing and buckets have in common: permits take time on one axis, each its cost times an interval.
//!
//! ```text
//! S  = max(from, f - tolerance)          f: where free time begins on the axis; from = now + lead
//! to = max(f, S) + cost * unit(S)        the permit takes [f, to)
//! ```
//! Spacing has no tolerance: a permit starts where its time on the axis begins. A bucket has `(burst - cost) * interval`.
//! Why that keeps the promise: of all permits with slots in `[x, x + t]`, let `i` be the first and `j` the last on the axis.
//! `to_i >= S_i + cost_i * I`, regions do not overlap, and `to_j <= S_j + burst * I`; so the costs add up to at most
//! `burst + t / I`. The order in which slots were given does not matter.
//!
//! For starts it does: see `chain.rs` for what a start window changes.

use super::limit::LimitError;
use super::ramp::Ramp;
use super::rate::Rate;
use super::start;
use super::time::{Span, Time};
use crate::limits::{DRIFT_PPM, HORIZON_NS_MAX, MAX_RESERVED_MAX};

/// The figures of a spacing limit or a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) rate: Rate,
    /// Lies between any two slots of a spacing limit; nothing in a bucket, whose permits may come together anyway.
    pub(super) between: Span,
    /// `None` for spacing.
    pub(super) burst: Option<u64>,
    pub(super) max_reserved: u32,
    pub(super) start_window: Span,
    pub(super) ramp: Option<Ramp>,
}

impl Pace {
    /// Checks that the limit can keep its promises.
    ///
    /// Invariant: the farthest reservation lies within the horizon, and a start window, if there is one, stays open
    /// after the allowance for clock drift even for that reservation.
    pub(super) fn check(&self) -> Result<(), LimitError> {
        let max_reserved = self.max_reserved;
        if max_reserved > MAX_RESERVED_MAX {
            return Err(LimitError::Absurd(format!(
                "max_reserved is at most {MAX_RESERVED_MAX}, this one is {max_reserved}"
            )));
        }
        if let Some(ramp) = &self.ramp {
            ramp.check(self.rate)?;
        }
        let (unit, horizon) = (self.unit_max(), Span(HORIZON_NS_MAX));
        let Some(farthest) = unit.times(u64::from(max_reserved)).filter(|far| *far <= horizon) else {
            return Err(LimitError::Absurd(format!(
                "max_reserved {max_reserved} times {unit} reaches farther than {horizon}: lower max_reserved or the interval",
            )));
        };
        let window = self.start_window;
        if window > Span::ZERO && start::left(window, self.interval(), farthest).is_none() {
            return Err(LimitError::Absurd(format!(
                "start_window {window} is too short to be kept: a reservation may lie {farthest} ahead, and clocks \
                 that drift by {DRIFT_PPM} ppm use up {} of the window by then; raise start_window, or lower \
                 max_reserved ({max_reserved}) or the interval ({})",
                start::drift(window, self.interval(), farthest),
                self.interval()
            )));
        }
        Ok(())
    }

    /// The interval of the full rate.
    pub(super) const fn interval(&self) -> Span {
        self.rate.interval()
    }

    /// The distance of two slots at the full rate.
    pub(super) const fn unit(&self) -> Span {
        self.interval().plus(self.between)
    }

    /// The longest distance of two slots: at the beginning of a ramp.
    pub(super) fn unit_max(&self) -> Span {
        self.ramp.map_or(self.interval(), |ramp| ramp.from.interval()).plus(self.between)
    }

    /// What a permit at `slot` takes on the axis, with a ramp that began at `began`, or begins with this very permit.
    pub(super) fn extent(&self, cost: u64, began: Option<Time>, slot: Time) -> Span {
        let interval =
            self.ramp.map_or(self.interval(), |ramp| ramp.interval(self.interval(), began.unwrap_or(slot), slot));
        // `never` has refused costs that reach beyond the horizon.
        Span(interval.plus(self.between).0.saturating_mul(cost))
    }

    /// How much earlier than its time on the axis a permit may start.
    pub(super) fn tolerance(&self, cost: u64) -> Span {
        self.burst.map_or(Span::ZERO, |burst| Span(self.interval().0.saturating_mul(burst.saturating_sub(cost))))
    }

    /// Why no state could grant this, if that is so.
    pub(super) fn never(&self, cost: u64, lead: Span) -> Option<String> {
        if let Some(burst) = self.burst.filter(|burst| cost > *burst) {
            return Some(format!("cost {cost} is more than the burst of {burst}"));
        }
        let unit = self.unit_max();
        if unit.times(cost).is_none_or(|taken| taken.0 > HORIZON_NS_MAX) {
            return Some(format!(
                "cost {cost} times {unit} is more time than the {} a permit may take",
                Span(HORIZON_NS_MAX)
            ));
        }
        // A bucket's slot that lies ahead only by the lead is no reservation: the permit was there.
        let ahead = if self.burst.is_some() { 0 } else { lead.0.div_ceil(unit.0) };
        if ahead > u64::from(self.max_reserved) {
            return Some(format!(
                "a lead of {lead} is {ahead} slots of {unit} ahead, and max_reserved is {}",
                self.max_reserved
            ));
        }
        None
    }
}
