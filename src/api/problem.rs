//! Everything that is not a success: RFC 9457 problem details.

use super::code::Code;
use super::millis::Millis;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// What every `type` begins with; the code follows. A URN, because it names a problem and leads nowhere.
const TYPE_PREFIX: &str = "urn:quorate:error:";

/// A problem, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:quorate:error:<code>`.
    #[serde(rename = "type")]
    #[schema(example = "urn:quorate:error:denied")]
    pub type_uri: String,
    /// The same for every occurrence.
    #[schema(value_type = String)]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time, for a person.
    pub detail: String,
    /// The stable word that programs go by.
    pub code: Code,
    /// When asking again makes sense. Rounded up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<Millis>,
    /// `false` on a denial, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<bool>,
    /// The key it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which rule refused, on a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The key that refused, where several were asked for at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied_by: Option<String>,
    /// The stored policy that refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<u64>,
    /// Which request of a batch it is about, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
}

impl Problem {
    /// A problem with what every one has.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            type_uri: format!("{TYPE_PREFIX}{code}"),
            title: Cow::Borrowed(code.title()),
            status: code.status(),
            detail: detail.into(),
            code,
            retry_after_ms: None,
            granted: None,
            key: None,
            reason: None,
            denied_by: None,
            policy: None,
            policy_revision: None,
            index: None,
        }
    }

    /// The same, saying when to ask again.
    #[must_use]
    pub fn retry_after(self, retry_after: Millis) -> Self {
        Self { retry_after_ms: Some(retry_after), ..self }
    }

    /// The same, saying which key it is about.
    #[must_use]
    pub fn about(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The denial of `key` by one rule of its limit.
    pub fn denied(key: impl Into<String>, reason: Reason, retry_after: Millis, detail: impl Into<String>) -> Self {
        let problem = Self::new(Code::Denied, detail).about(key).retry_after(retry_after);
        Self { granted: Some(false), reason: Some(reason), ..problem }
    }
}

/// For logs and terminals: `429 denied: …`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code, self.detail)
    }
}

/// Which rule denied a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// `max_reserved` permits lie ahead already.
    ReservationsFull,
    /// The slot lies farther ahead than `max_wait_ms`.
    WouldWaitTooLong,
    /// Only a permit free now was wanted.
    NotFreeNow,
    /// The window holds as many as it may.
    WindowFull,
    /// As many are in flight as may be.
    InFlightFull,
    /// A word of a newer node; only ever read, never written.
    #[serde(other)]
    Unrecognized,
}

impl Reason {
    /// All reasons a node writes, as they are written.
    const WRITTEN: [&'static str; 5] =
        ["reservations_full", "would_wait_too_long", "not_free_now", "window_full", "in_flight_full"];
}

/// By hand, because the word for what is only read does not belong into the contract.
impl PartialSchema for Reason {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("Which rule denied a request"))
            .enum_values(Some(Self::WRITTEN))
            .build()
            .into()
    }
}

impl ToSchema for Reason {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_reasons_read() {
        for text in Reason::WRITTEN {
            let reason: Reason = serde_json::from_value(text.into()).unwrap();
            assert_ne!(reason, Reason::Unrecognized, "{text}");
            assert_eq!(serde_json::to_value(reason).unwrap(), text);
        }
    }

    #[test]
    fn a_denial_has_all_it_needs_and_nothing_else() {
        let denied = Problem::denied("k", Reason::ReservationsFull, Millis::up_from_ns(6_000_000_001), "10 lie ahead");
        let text = serde_json::to_string(&denied).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"type":"urn:quorate:error:denied","title":"Over the limit","status":429,"detail":"10 lie ahead","#,
                r#""code":"denied","retry_after_ms":6000.001,"granted":false,"key":"k","reason":"reservations_full"}"#
            )
        );
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), denied);
    }

    #[test]
    fn problems_of_a_newer_node_still_read() {
        let text = r#"{"type":"urn:x","title":"t","status":429,"detail":"d","code":"soon","reason":"later","more":1}"#;
        let problem: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((problem.code, problem.reason), (Code::Unrecognized, Some(Reason::Unrecognized)));
        assert_eq!(problem.to_string(), "429 unrecognized: d");
    }
}
