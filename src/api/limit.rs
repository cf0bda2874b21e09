//! A limit as a request writes it: `"1/6s"`, or an object with all its members.
//!
//! Only the shape is checked here. The texts of rates and durations are kept as they were written, because an answer
//! echoes them.

use super::not_yet::NotYet;
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
    /// `{"rate": "1/6s", "max_reserved": 3}`.
    Spacing(SpacingLimit),
}

/// A spacing limit with its members.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(from = "ReceivedLimit", deny_unknown_fields)]
pub struct SpacingLimit {
    /// Which kind of limit; `spacing` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The rate, such as `1/6s`, `10/s` or `100/1m`.
    #[schema(example = "1/6s")]
    pub rate: String,
    /// Most permits that may lie in the future; 10 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_reserved: Option<u64>,
    /// How long after its slot a permit may still be used, such as `250ms`; without it, it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "250ms")]
    pub start_window: Option<String>,
}

/// The kinds of limits this version knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One permit every interval, no burst.
    Spacing,
}

/// The object as it arrives: with the members that are refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceivedLimit {
    kind: Option<Kind>,
    rate: String,
    max_reserved: Option<u64>,
    start_window: Option<String>,
    #[serde(rename = "ramp")]
    _ramp: Option<NotYet>,
    #[serde(rename = "burst")]
    _burst: Option<NotYet>,
    #[serde(rename = "resolution")]
    _resolution: Option<NotYet>,
    #[serde(rename = "aligned")]
    _aligned: Option<NotYet>,
    #[serde(rename = "max")]
    _max: Option<NotYet>,
    #[serde(rename = "lease")]
    _lease: Option<NotYet>,
}

impl From<ReceivedLimit> for SpacingLimit {
    fn from(received: ReceivedLimit) -> Self {
        let ReceivedLimit { kind, rate, max_reserved, start_window, .. } = received;
        Self { kind, rate, max_reserved, start_window }
    }
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
        SpacingLimit::deserialize(MapAccessDeserializer::new(members)).map(Limit::Spacing)
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
            "bucket" | "window" | "concurrency" => {
                Err(E::custom(format_args!("this version does not know the kind `{text}` yet, only `spacing`")))
            }
            _ => Err(E::unknown_variant(text, &["spacing"])),
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
    fn both_forms_read_and_echo_as_they_were_written() {
        for text in [
            r#""1/6s""#,
            r#"{"rate":"1/6s"}"#,
            r#"{"kind":"spacing","rate":"10/s","max_reserved":0,"start_window":"250ms"}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), text);
        }
        assert_eq!(read(r#""1\/6s""#), Ok(Limit::Text("1/6s".to_owned())), "escapes are decoded");
        let nulls = r#"{"rate":"1/6s","max_reserved":null,"ramp":null}"#;
        assert_eq!(
            read(nulls),
            Ok(Limit::Spacing(SpacingLimit { rate: "1/6s".to_owned(), ..SpacingLimit::default() }))
        );
    }

    #[test]
    fn what_comes_in_the_next_release_says_so() {
        for (text, why) in [
            (r#"{"kind":"bucket","rate":"1/s","burst":5}"#, "does not know the kind `bucket` yet"),
            (r#"{"kind":"concurrency","max":5}"#, "does not know the kind `concurrency` yet"),
            (r#"{"rate":"1/s","ramp":{"from":"1/s","over":"60s"}}"#, "does not know this member yet"),
            (r#"{"rate":"1/s","burst":5,"kind":"bucket"}"#, "does not know this member yet"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn errors_stay_precise() {
        for (text, why) in [
            ("6", "invalid type: integer `6`, expected a rate such as \"1/6s\" or an object with a `rate`"),
            ("{}", "missing field `rate`"),
            (r#"{"rate":"1/s","rate":"2/s"}"#, "duplicate field `rate`"),
            (r#"{"rate":"1/s","colour":1}"#, "unknown field `colour`"),
            (r#"{"rate":"1/s","max_reserved":-1}"#, "invalid value: integer `-1`, expected u64"),
            (r#"{"kind":"leaky","rate":"1/s"}"#, "unknown variant `leaky`, expected `spacing`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
