//! `POST /release`, `POST /renew` and `DELETE /keys/{key}`: what happens to a permit, or to a whole key, after the grant.

use super::millis::Millis;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Gives a permit back: a slot that has not come yet, or a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// The key it was granted for.
    #[schema(min_length = 1, max_length = 256, example = "github-token")]
    pub key: String,
    /// The permit, as the grant numbered it.
    pub permit: u64,
}

/// What came of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseResponse {
    /// Whether it was given back by this request; `false` if it was too late, or done before.
    pub released: bool,
    /// The key.
    pub key: String,
    /// The permit.
    pub permit: u64,
    /// Why nothing was given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Extends the lease of a permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The key it was granted for.
    #[schema(min_length = 1, max_length = 256, example = "github-token")]
    pub key: String,
    /// The permit, as the grant numbered it.
    pub permit: u64,
}

/// A lease that begins anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RenewResponse {
    /// Always true here; a lease that is over is a problem.
    pub renewed: bool,
    /// The key.
    pub key: String,
    /// The permit.
    pub permit: u64,
    /// How long a lease is.
    pub lease_ms: Millis,
    /// Be done, or renew again, this long after the request was **first sent**. Rounded down.
    pub start_before_ms: Millis,
}

/// A key is as if it had never been used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResetResponse {
    /// `false` when there was nothing to forget.
    pub reset: bool,
    /// The key.
    pub key: String,
}

/// Both requests name a permit in the same way.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    key: String,
    permit: u64,
}

/// By way of a map, because a derived struct would also take a JSON array for its members in order.
impl<'de> Deserialize<'de> for ReleaseRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Named { key, permit } = deserializer.deserialize_map(NamedVisitor)?;
        Ok(Self { key, permit })
    }
}

impl<'de> Deserialize<'de> for RenewRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Named { key, permit } = deserializer.deserialize_map(NamedVisitor)?;
        Ok(Self { key, permit })
    }
}

struct NamedVisitor;

impl<'de> Visitor<'de> for NamedVisitor {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `key` and a `permit`")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Named, A::Error> {
        Named::deserialize(MapAccessDeserializer::new(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_requests_read_what_they_write() {
        let text = r#"{"key":"k","permit":7}"#;
        let release: ReleaseRequest = serde_json::from_str(text).unwrap();
        let renew: RenewRequest = serde_json::from_str(text).unwrap();
        assert_eq!(
            (serde_json::to_string(&release).unwrap(), serde_json::to_string(&renew).unwrap()),
            (text.to_owned(), text.to_owned())
        );
    }

    #[test]
    fn errors_name_the_member() {
        for (text, why) in [
            (r#"{"key":"k"}"#, "missing field `permit`"),
            (r#"{"permit":7}"#, "missing field `key`"),
            (r#"["k",7]"#, "invalid type: sequence, expected an object with a `key` and a `permit`"),
            (r#"{"key":"k","permit":7,"cost":1}"#, "unknown field `cost`, expected `key` or `permit`"),
            (r#"{"key":"k","permit":-7}"#, "invalid value: integer `-7`, expected u64"),
            (r#"{"key":"k","permit":"7"}"#, "invalid type: string \"7\", expected u64"),
        ] {
            let error = serde_json::from_str::<ReleaseRequest>(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert_eq!(serde_json::from_str::<RenewRequest>(text).expect_err(text).to_string(), error);
        }
    }

    #[test]
    fn the_documented_answers_read() {
        let late: ReleaseResponse =
            serde_json::from_str(r#"{"released":false,"key":"k","permit":7,"detail":"the slot has come"}"#).unwrap();
        assert_eq!(late.detail.as_deref(), Some("the slot has come"));
        let released: ReleaseResponse = serde_json::from_str(r#"{"released":true,"key":"k","permit":7}"#).unwrap();
        assert_eq!(serde_json::to_string(&released).unwrap(), r#"{"released":true,"key":"k","permit":7}"#);
        let renewed: RenewResponse =
            serde_json::from_str(r#"{"renewed":true,"key":"k","permit":7,"lease_ms":30000,"start_before_ms":29970.0}"#)
                .unwrap();
        assert_eq!(renewed.start_before_ms.micros(), 29_970_000);
    }
}
