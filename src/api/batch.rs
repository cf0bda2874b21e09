//! `POST /acquire/batch`: many requests in one call.

use super::acquire::AcquireRequest;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Many requests, decided in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// Each as for `POST /acquire`, but without `wait: "server"`.
    #[schema(min_items = 1, max_items = 1_000)]
    pub requests: Vec<AcquireRequest>,
    /// All or nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub atomic: bool,
}

/// What came of each, in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResponse {
    /// Each what `POST /acquire` would have answered: a permit, or a problem.
    #[schema(value_type = Vec<Object>)]
    pub results: Vec<serde_json::Value>,
}

/// By way of a map, because a derived struct would also take a JSON array for its members in order.
impl<'de> Deserialize<'de> for BatchRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BatchVisitor)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceivedBatch {
    requests: Vec<AcquireRequest>,
    atomic: Option<bool>,
}

struct BatchVisitor;

impl<'de> Visitor<'de> for BatchVisitor {
    type Value = BatchRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `requests`")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<BatchRequest, A::Error> {
        let ReceivedBatch { requests, atomic } = ReceivedBatch::deserialize(MapAccessDeserializer::new(members))?;
        Ok(BatchRequest { requests, atomic: atomic.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_place() {
        let read = |text: &str| serde_json::from_str::<BatchRequest>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#"{"requests":[{"key":"k"}],"atomic":true}"#).map(|batch| batch.atomic), Ok(true));
        assert!(read("[]").unwrap_err().contains("an object with `requests`"));
        assert!(read(r#"{"requests":[{}]}"#).unwrap_err().contains("missing field `key`"));
        assert!(read(r#"{"requests":[],"atomc":true}"#).unwrap_err().contains("unknown field `atomc`"));
    }
}
