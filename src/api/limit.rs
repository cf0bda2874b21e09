//! A limit as a request writes it: `"1/6s"`, or an object with all its members.
//!
//! Only the shape is checked here. The texts of rates and durations are kept as they were written, because an answer
//! echoes them. Which members go with which kind is checked where limits are understood.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A limit: a rate alone, or an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Limit {
    /// `"1/6s"`: spacing with the defaults.
    #[schema(title = "Rate", example = "1/6s")]
    Text(String),
    /// `{"kind": "bucket", "rate": "100/s", "burst": 50}`.
    Members(Box<LimitMembers>),
}

/// A limit with its members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitMembers {
    /// Which kind of limit; `spacing` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The rate, such as `1/6s`, `10/s` or `100/1m`; all kinds but `concurrency` have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "1/6s")]
    pub rate: Option<String>,
    /// `bucket`: most permits that may start at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub burst: Option<u64>,
    /// `spacing` and `bucket`: most permits that may lie in the future; 10 for `spacing`, 0 for `bucket` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 10_000)]
    pub max_reserved: Option<u64>,
    /// `spacing` and `bucket`: how long after its slot a permit may still be used, such as `250ms`; without it, it does not
    /// expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "250ms")]
    pub start_window: Option<String>,
    /// `spacing` and `bucket`: begin slowly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
    /// `window`: the length of a sub-interval, such as `5s`; a tenth of the period if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "5s")]
    pub resolution: Option<String>,
    /// `window`: fixed windows, counted from zero each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aligned: Option<bool>,
    /// `concurrency`: most that may be in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub max: Option<u64>,
    /// `concurrency`: how long a permit lasts unless it is renewed or released; `30s` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s")]
    pub lease: Option<String>,
}

/// A rate that grows to the limit's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// The rate at the beginning.
    #[schema(example = "10/s")]
    pub from: String,
    /// Until the limit's own rate is reached.
    #[schema(example = "60s")]
    pub over: String,
}

/// The kinds of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One permit every interval, no burst.
    Spacing,
    /// So many at once, then one every interval.
    Bucket,
    /// So many in any period.
    Window,
    /// So many in flight.
    Concurrency,
}

/// Written out so that an error inside the object keeps its own words; an untagged enum would say "no variant matched".
impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitVisitor)
    }
}

struct LimitVisitor;

impl<'de> Visitor<'de> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rate such as \"1/6s\" or an object with a `rate`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Limit, E> {
        Ok(Limit::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Limit, A::Error> {
        LimitMembers::deserialize(MapAccessDeserializer::new(members)).map(|members| Limit::Members(Box::new(members)))
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KindVisitor)
    }
}

struct KindVisitor;

impl Visitor<'_> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a kind of limit")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Kind, E> {
        match text {
            "spacing" => Ok(Kind::Spacing),
            "bucket" => Ok(Kind::Bucket),
            "window" => Ok(Kind::Window),
            "concurrency" => Ok(Kind::Concurrency),
            _ => Err(E::unknown_variant(text, &["spacing", "bucket", "window", "concurrency"])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Limit, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn all_forms_read_and_echo_as_they_were_written() {
        for text in [
            r#""1/6s""#,
            r#"{"rate":"1/6s"}"#,
            r#"{"kind":"spacing","rate":"10/s","max_reserved":0,"start_window":"250ms"}"#,
            r#"{"kind":"bucket","rate":"100/s","burst":50,"ramp":{"from":"10/s","over":"60s"}}"#,
            r#"{"kind":"window","rate":"100/60s","resolution":"5s","aligned":false}"#,
            r#"{"kind":"concurrency","max":5,"lease":"30s"}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), text);
        }
        assert_eq!(read(r#""1\/6s""#), Ok(Limit::Text("1/6s".to_owned())), "escapes are decoded");
        let nulls = r#"{"rate":"1/6s","max_reserved":null,"ramp":null}"#;
        let members = LimitMembers { rate: Some("1/6s".to_owned()), ..LimitMembers::default() };
        assert_eq!(read(nulls), Ok(Limit::Members(Box::new(members))));
    }

    #[test]
    fn errors_name_the_member() {
        for (text, why) in [
            ("7", "invalid type: integer `7`, expected a rate such as"),
            (r#"{"rate":"1/s","colour":1}"#, "unknown field `colour`"),
            (r#"{"kind":"leaky"}"#, "unknown variant `leaky`, expected one of `spacing`, `bucket`"),
            (r#"{"ramp":{"from":"1/s"}}"#, "missing field `over`"),
            (r#"{"ramp":{"from":"1/s","over":"1s","to":"2/s"}}"#, "unknown field `to`"),
            (r#"{"burst":-1}"#, "invalid value: integer `-1`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
