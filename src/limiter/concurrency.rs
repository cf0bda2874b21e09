//! "At most N in flight": leases that end when they are released, or by themselves in cluster time.

use super::limit::LimitError;
use super::start;
use super::time::Span;
use crate::limits::{IN_FLIGHT_MAX, LEASE_NS_MAX};
use serde::{Deserialize, Serialize};

/// A limit on what is in flight. Its fields are private because together they keep an invariant: see [`Concurrency::new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Concurrency {
    max: u64,
    lease: Span,
}

type Parts = (u64, Span);

impl Concurrency {
    /// Invariant: something may be in flight, and a lease is long enough to be of use when clocks drift.
    pub fn new(max: u64, lease: Span) -> Result<Self, LimitError> {
        if max == 0 || max > IN_FLIGHT_MAX {
            return Err(LimitError::Absurd(format!("max lies between 1 and {IN_FLIGHT_MAX}, this one is {max}")));
        }
        if lease > Span(LEASE_NS_MAX) || start::left(lease, Span::ZERO, Span::ZERO).is_none() {
            return Err(LimitError::Absurd(format!(
                "a lease is longer than nothing and at most {}, this one is {lease}",
                Span(LEASE_NS_MAX)
            )));
        }
        Ok(Self { max, lease })
    }

    /// Most that may be in flight.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// How long a permit lasts unless it is renewed.
    pub const fn lease(&self) -> Span {
        self.lease
    }

    pub(super) fn never(&self, cost: u64) -> Option<String> {
        (cost > self.max).then(|| format!("cost {cost} is more than the {} that may be in flight", self.max))
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<Parts> for Concurrency {
    type Error = LimitError;
    fn try_from((max, lease): Parts) -> Result<Self, LimitError> {
        Self::new(max, lease)
    }
}

impl From<Concurrency> for Parts {
    fn from(concurrency: Concurrency) -> Self {
        (concurrency.max, concurrency.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_members_are_bounded() {
        assert!(Concurrency::new(1, Span::from_secs(30)).is_ok());
        assert!(Concurrency::new(IN_FLIGHT_MAX, Span(LEASE_NS_MAX)).is_ok());
        assert!(Concurrency::new(0, Span::from_secs(30)).is_err());
        assert!(Concurrency::new(IN_FLIGHT_MAX + 1, Span::from_secs(30)).is_err());
        assert!(Concurrency::new(1, Span::ZERO).is_err());
        assert!(Concurrency::new(1, Span(LEASE_NS_MAX + 1)).is_err());
    }
}
