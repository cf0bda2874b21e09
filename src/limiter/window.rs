//! "At most N in any T", counted in sub-intervals of cluster time.
//!
//! Sliding: `T` is cut into cells of `resolution`. At an instant `t` the current cell and the `T/resolution - 1` before it count
//! in full, the one before those by the part of it that `(t - T, t]` still covers, rounded **up**. So against an exact log of
//! timestamps
//! - never more than `N` in any `T - resolution`, and in any `T` never more than `N` plus what the oldest cell held;
//! - a request is refused only if the last `T + resolution` held more than `N` with it, together with what is reserved less
//!   than `T` ahead.
//!
//! If requests come evenly within a cell, the count is exact.
//!
//! Aligned: one cell of `T`, and only the current one counts: never more than `N` in a cell, up to `2N` around its edge, which
//! is what "per minute" counters do.

use super::limit::LimitError;
use super::rate::Rate;
use super::time::Span;
use crate::limits::WINDOW_CELLS_MAX;
use serde::{Deserialize, Serialize};

/// Cells of a window that does not say.
const CELLS_DEFAULT: u64 = 10;

/// A window. Its fields are private because together they keep an invariant: see [`Window::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Window {
    rate: Rate,
    resolution: Span,
    aligned: bool,
}

type Parts = (Rate, Span, bool);

impl Window {
    /// A sliding window. Without a resolution it has ten cells.
    ///
    /// Invariant: the resolution divides the period into at most [`WINDOW_CELLS_MAX`] cells; aligned, it is the period.
    pub fn sliding(rate: Rate, resolution: Option<Span>) -> Result<Self, LimitError> {
        let per = rate.per();
        // A period is whole milliseconds, so that a tenth of it is whole nanoseconds.
        let resolution = resolution.unwrap_or(Span(per.0 / CELLS_DEFAULT));
        Self { rate, resolution, aligned: false }.checked()
    }

    /// A fixed window.
    pub fn aligned(rate: Rate) -> Self {
        Self { rate, resolution: rate.per(), aligned: true }
    }

    fn checked(self) -> Result<Self, LimitError> {
        let (per, resolution) = (self.rate.per(), self.resolution);
        if resolution.0 == 0 || !per.0.is_multiple_of(resolution.0) {
            return Err(LimitError::Absurd(format!("the resolution {resolution} does not divide {per}")));
        }
        if per.0 / resolution.0 > WINDOW_CELLS_MAX {
            return Err(LimitError::Absurd(format!(
                "{per} has {} sub-intervals of {resolution}, and at most {WINDOW_CELLS_MAX} are kept",
                per.0 / resolution.0
            )));
        }
        if self.aligned && resolution != per {
            return Err(LimitError::Absurd(format!(
                "an aligned window is one cell of {per}, so it has no resolution of {resolution}"
            )));
        }
        Ok(self)
    }

    /// `N` in every `T`.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// `N`.
    pub const fn count(&self) -> u64 {
        self.rate.count()
    }

    /// The length of a cell.
    pub const fn resolution(&self) -> Span {
        self.resolution
    }

    /// Whether only the current cell counts.
    pub const fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// Whole cells in the period.
    pub(super) const fn cells(&self) -> u64 {
        self.rate.per().0 / self.resolution.0
    }

    pub(super) fn never(&self, cost: u64) -> Option<String> {
        (cost > self.count()).then(|| format!("cost {cost} is more than the {} of the whole window", self.count()))
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<Parts> for Window {
    type Error = LimitError;
    fn try_from((rate, resolution, aligned): Parts) -> Result<Self, LimitError> {
        Self { rate, resolution, aligned }.checked()
    }
}

impl From<Window> for Parts {
    fn from(window: Window) -> Self {
        (window.rate, window.resolution, window.aligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolution_divides_the_period() {
        let sliding = |rate: &str, resolution_ms: u64| {
            let resolution = (resolution_ms > 0).then(|| Span::from_millis(resolution_ms));
            Window::sliding(rate.parse().unwrap(), resolution).map_err(|error| error.to_string())
        };
        assert_eq!(sliding("100/60s", 5_000).unwrap().cells(), 12);
        assert_eq!(sliding("100/60s", 60_000).unwrap().cells(), 1);
        assert_eq!(sliding("100/1ms", 0).unwrap().resolution(), Span(100_000));
        assert!(sliding("100/60s", 7_000).unwrap_err().contains("does not divide"));
        assert!(sliding("100/60s", 1).unwrap_err().contains("60000 sub-intervals"));
        assert!(Window::try_from(("1/s".parse().unwrap(), Span::from_millis(500), true)).is_err());
        assert!(Window::try_from(("1/s".parse().unwrap(), Span::ZERO, false)).is_err());
    }
}
