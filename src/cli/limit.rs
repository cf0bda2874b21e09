//! Limits on the command line and in files: read, checked as far as that goes without a node, compared, shown.
//!
//! A node may give a limit back in other words than it got it in: `100/1m` as `100/m`, an object with a rate alone as a
//! text. So limits are compared in a normal form. The members of all kinds are known here by name only, and what is not
//! known is left as it is: a difference too many costs a request that changes nothing.
//!
//! Not here: whether the numbers are any good (the nodes judge that).

use crate::api::Limit;
use crate::limiter::{Rate, RateError, Span, parse_duration};
use serde_json::{Map, Value};

/// Members of a limit that are rates, `from` being part of a `ramp`.
const RATES: [&str; 2] = ["rate", "from"];
/// Members of a limit that are durations, `over` being part of a `ramp`.
const DURATIONS: [&str; 4] = ["start_window", "resolution", "lease", "over"];
/// What a member is that is not there, by kind; the others may as well be absent.
const DEFAULTS: [(&str, &str, u64); 2] = [("spacing", "max_reserved", 10), ("bucket", "max_reserved", 0)];

/// A limit as an argument: the text of a rate, or a JSON object. A typing error needs no cluster to be found.
pub(super) fn read(text: &str) -> Result<Limit, String> {
    let value = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        Value::String(text.to_owned())
    };
    let limit = serde_json::from_value(value).map_err(|error| error.to_string())?;
    check(&limit)?;
    Ok(limit)
}

/// Finds rates and durations that are none.
pub(super) fn check(limit: &Limit) -> Result<(), String> {
    normal(limit).map(|_| ())
}

/// Whether two limits mean the same.
pub(super) fn same(one: &Limit, other: &Limit) -> bool {
    // What a newer node wrote may be beyond us; then only the same words are the same.
    one == other || normal(one).is_ok_and(|one| normal(other).is_ok_and(|other| one == other))
}

/// As it was written: `1/6s`, or the object.
pub(super) fn shown(limit: &Limit) -> String {
    // The text and not a value, which would put the members into another order.
    let json = serde_json::to_string(limit).unwrap_or_else(|error| error.to_string());
    serde_json::from_str::<String>(&json).unwrap_or(json)
}

fn normal(limit: &Limit) -> Result<Value, String> {
    let mut members = match serde_json::to_value(limit).map_err(|error| error.to_string())? {
        Value::String(rate) => {
            // Said without the name of a member, because nobody wrote one.
            rate.parse::<Rate>().map_err(|error| error.to_string())?;
            Map::from_iter([("rate".to_owned(), Value::String(rate))])
        }
        Value::Object(members) => members,
        other => return Ok(other),
    };
    normalize(&mut members)?;
    let kind = members.entry("kind").or_insert_with(|| "spacing".into()).clone();
    for (_, member, default) in DEFAULTS.into_iter().filter(|(of, ..)| kind == *of) {
        members.entry(member).or_insert_with(|| default.into());
    }
    Ok(Value::Object(members))
}

fn normalize(members: &mut Map<String, Value>) -> Result<(), String> {
    let named = |name: &str, error: &RateError| format!("{name}: {error}");
    members.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)));
    for (name, value) in members.iter_mut() {
        match value {
            Value::Object(inner) => normalize(inner)?,
            Value::String(text) if RATES.contains(&name.as_str()) => {
                *text = text.parse::<Rate>().map_err(|error| named(name, &error))?.to_string();
            }
            Value::String(text) if DURATIONS.contains(&name.as_str()) => {
                *text = parse_duration(text).map_err(|error| named(name, &error))?.to_string();
            }
            _ => {}
        }
    }
    // No window at all is no window.
    members.retain(|name, value| name != "start_window" || *value != Span::ZERO.to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn limits_are_read_before_anybody_is_asked() {
        assert_eq!(read("1/6s"), Ok(limit(r#""1/6s""#)));
        assert_eq!(read(r#" {"rate":"1/6s","max_reserved":3}"#), Ok(limit(r#"{"rate":"1/6s","max_reserved":3}"#)));
        for (text, why) in [
            ("1/6", "expected a unit"),
            (r#"{"rate":"1/6s","maxreserved":3}"#, "unknown field `maxreserved`"),
            (r#"{"rate":"1/6"}"#, "rate: expected a unit"),
            (r#"{"rate":"1/6s","start_window":"soon"}"#, "start_window: expected a number"),
            ("{", "EOF"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn other_words_for_the_same_are_the_same() {
        for (one, other) in [
            (r#""100/1m""#, r#""100/60s""#),
            (r#""1/6s""#, r#"{"rate":"1/6s"}"#),
            (r#""1/6s""#, r#"{"kind":"spacing","rate":"1/6000ms","max_reserved":10,"start_window":"0s"}"#),
            (r#"{"rate":"1/s","start_window":"1s"}"#, r#"{"rate":"1/s","start_window":"1000ms"}"#),
        ] {
            assert!(same(&limit(one), &limit(other)), "{one} {other}");
        }
        for (one, other) in [
            (r#""1/6s""#, r#""1/3s""#),
            (r#""1/s""#, r#"{"rate":"1/s","max_reserved":0}"#),
            (r#"{"rate":"1/s","start_window":"1s"}"#, r#""1/s""#),
        ] {
            assert!(!same(&limit(one), &limit(other)), "{one} {other}");
        }
    }

    #[test]
    fn members_of_every_kind_have_a_normal_form() {
        let normal = |text: &str| {
            let mut members = serde_json::from_str(text).unwrap();
            normalize(&mut members).map(|()| Value::Object(members).to_string())
        };
        assert_eq!(
            normal(r#"{"aligned":false,"kind":"window","rate":"100/60s","resolution":"5000ms"}"#).unwrap(),
            r#"{"kind":"window","rate":"100/m","resolution":"5s"}"#
        );
        assert_eq!(
            normal(r#"{"ramp":{"from":"10/1s","over":"60s"}}"#).unwrap(),
            r#"{"ramp":{"from":"10/s","over":"1m"}}"#
        );
        assert!(normal(r#"{"ramp":{"from":"10/1s","over":"60"}}"#).unwrap_err().starts_with("over: "));
    }

    #[test]
    fn limits_are_shown_as_they_were_written() {
        assert_eq!(shown(&limit(r#""1/6s""#)), "1/6s");
        let object = r#"{"rate":"1/6s","max_reserved":3}"#;
        assert_eq!(shown(&limit(object)), object);
    }
}
