//! Cluster time: an instant and a length, both in nanoseconds, never mixed up.
//!
//! Not here: anything that reads a clock.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An instant of cluster time: nanoseconds since the cluster was formed. It has no relation to any wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(pub u64);

/// A length of time in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Span(pub u64);

impl Time {
    /// The instant the cluster was formed.
    pub const ZERO: Self = Self(0);

    /// The instant `span` later. Saturates at the end of time (584 years), which no bounded input reaches.
    #[must_use]
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The instant `span` earlier, or the beginning of time.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// How long it takes from `earlier` to here; nothing if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Both together, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This without `other`, or nothing.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This many times over, or `None` past the end of time.
    #[must_use]
    pub const fn times(self, count: u64) -> Option<Self> {
        match self.0.checked_mul(count) {
            Some(ns) => Some(Self(ns)),
            None => None,
        }
    }

    /// Microseconds, rounded **up**: for waits, which may only get longer.
    pub const fn micros_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Microseconds, rounded **down**: for deadlines, which may only come sooner.
    pub const fn micros_down(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole seconds, rounded **up**.
    pub const fn secs_up(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }
}

/// The shortest exact text of a duration: `250ms`, `6s`, `1m`, `1h`, `1d`, else `…us` or `…ns`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400_000_000_000, "d"),
            (3_600_000_000_000, "h"),
            (60_000_000_000, "m"),
            (1_000_000_000, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        if self.0 == 0 {
            return f.write_str("0s");
        }
        match UNITS.iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}ns", self.0),
        }
    }
}

/// Seconds with all their digits, for logs and scripts: `12.5s`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        write!(f, "{}s", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_the_safe_way() {
        assert_eq!(Span(1_001).micros_up(), 2);
        assert_eq!(Span(1_999).micros_down(), 1);
        assert_eq!(Span(1_000_000_001).secs_up(), 2);
        assert_eq!(Span(0).secs_up(), 0);
    }

    #[test]
    fn spans_print_in_the_largest_exact_unit() {
        for (span, text) in [
            (Span::from_millis(250), "250ms"),
            (Span::from_secs(6), "6s"),
            (Span::from_secs(60), "1m"),
            (Span::from_secs(90), "90s"),
            (Span::from_secs(86_400), "1d"),
            (Span(1_500), "1500ns"),
            (Span(2_000), "2us"),
            (Span::ZERO, "0s"),
        ] {
            assert_eq!(span.to_string(), text);
        }
        assert_eq!(Time(12_500_000_000).to_string(), "12.5s");
        assert_eq!(Time(100_000_000_000).to_string(), "100s");
    }
}
