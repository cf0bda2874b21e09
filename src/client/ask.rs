//! What a worker wants: a key, and the terms of it.

use crate::api::{AcquireRequest, Limit, LimitMembers, Millis, Wait};
use crate::limits::WAIT_NS_MAX;
use std::time::Duration;

/// Longest wait that can be asked for. Nothing is granted farther ahead, so no more is the same.
const WAIT_MAX: Duration = Duration::from_nanos(WAIT_NS_MAX);

/// A permit of one key, as a worker asks for it. A key alone is enough where a stored policy says what its limit is.
///
/// ```
/// use quorate::client::Ask;
/// use std::time::Duration;
///
/// let ask = Ask::new("github-token").limit("1/6s").max_wait(Duration::from_secs(30));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub(super) key: String,
    pub(super) limit: Option<Limit>,
    pub(super) cost: u64,
    pub(super) max_wait: Option<Duration>,
    pub(super) at_once: bool,
}

impl Ask {
    /// One permit of this key, however long that takes.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: key.into(), limit: None, cost: 1, max_wait: None, at_once: false }
    }

    /// The limit, where no stored policy has one: `"1/6s"`, or [`LimitMembers`].
    #[must_use]
    pub fn limit(self, limit: impl Into<Limit>) -> Self {
        Self { limit: Some(limit.into()), ..self }
    }

    /// How many permits' worth of capacity it takes.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Give up ([`Error::Timeout`](super::Error::Timeout)) rather than wait longer than this for the permit. A decision may take a
    /// second all the same, or [`Options::timeout`](super::Options::timeout) if that is less.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: Some(max_wait), ..self }
    }

    /// Take only a permit that is free now; be denied otherwise.
    #[must_use]
    pub fn at_once(self) -> Self {
        Self { at_once: true, ..self }
    }

    /// The key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The same for the wire, with what is left of the patience.
    pub(super) fn request(
        &self,
        left: Option<Duration>,
        lead: Option<Duration>,
        worker: Option<&str>,
    ) -> AcquireRequest {
        AcquireRequest {
            limit: self.limit.clone(),
            cost: (self.cost != 1).then_some(self.cost),
            max_wait_ms: left.filter(|_| !self.at_once).map(|left| Millis::up_from(left.min(WAIT_MAX))),
            wait: if self.at_once { Wait::None } else { Wait::Client },
            lead_ms: lead.map(Millis::up_from),
            worker: worker.map(str::to_owned),
            ..AcquireRequest::new(&self.key)
        }
    }
}

impl From<&str> for Ask {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

impl From<String> for Ask {
    fn from(key: String) -> Self {
        Self::new(key)
    }
}

impl From<&Ask> for Ask {
    fn from(ask: &Ask) -> Self {
        ask.clone()
    }
}

impl From<&str> for Limit {
    fn from(rate: &str) -> Self {
        Self::Text(rate.to_owned())
    }
}

impl From<String> for Limit {
    fn from(rate: String) -> Self {
        Self::Text(rate)
    }
}

impl From<LimitMembers> for Limit {
    fn from(members: LimitMembers) -> Self {
        Self::Members(Box::new(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_said_goes_over_the_wire() {
        let json = |request: &AcquireRequest| serde_json::to_string(request).unwrap();
        assert_eq!(json(&Ask::from("k").request(None, None, None)), r#"{"key":"k"}"#);
        let ask = Ask::new("k").limit("1/6s").cost(2).max_wait(Duration::from_secs(9));
        let (left, lead) = (Some(Duration::from_millis(250)), Some(Duration::from_millis(3)));
        assert_eq!(
            json(&ask.request(left, lead, Some("w"))),
            r#"{"key":"k","limit":"1/6s","cost":2,"max_wait_ms":250,"lead_ms":3,"worker":"w"}"#
        );
        assert_eq!(
            json(&Ask::new("k").request(Some(Duration::MAX), None, None)),
            r#"{"key":"k","max_wait_ms":31622400000}"#
        );
        assert_eq!(
            json(&ask.at_once().request(left, None, None)),
            r#"{"key":"k","limit":"1/6s","cost":2,"wait":"none"}"#
        );
    }
}
