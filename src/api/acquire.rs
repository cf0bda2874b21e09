//! `POST /acquire`: the request and the answers of a grant.

use super::limit::Limit;
use super::millis::Millis;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// One request for a permit. Only `key` is required, or `all_of` in its place.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    /// What is limited: 1 to 256 bytes without control characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256, example = "github-token")]
    pub key: Option<String>,
    /// The limit, where no stored policy matches the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// How many permits' worth of capacity it takes; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
    pub cost: Option<u64>,
    /// Several limits in one decision, all or nothing, in place of `key`, `limit` and `cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 2, max_items = 16)]
    pub all_of: Option<Vec<PartRequest>>,
    /// The longest acceptable time until the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait_ms: Option<Millis>,
    /// Who waits for the slot.
    #[serde(skip_serializing_if = "Wait::is_client")]
    #[schema(required = false)]
    pub wait: Wait,
    /// The earliest useful slot is this far ahead: the answer still has to travel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead_ms: Option<Millis>,
    /// Names the request, so that a retry gets the same permit; 1 to 128 printable bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 128)]
    pub request_id: Option<String>,
    /// A label for the history, up to 64 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub worker: Option<String>,
}

impl AcquireRequest {
    /// A request for one permit of `key`, with everything else by default.
    pub fn new(key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..Self::default() }
    }

    /// A request for a permit of each of these.
    pub fn all_of(parts: impl IntoIterator<Item = PartRequest>) -> Self {
        Self { all_of: Some(parts.into_iter().collect()), ..Self::default() }
    }
}

/// One of several limits in one decision.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRequest {
    /// What is limited. No key comes twice.
    #[schema(min_length = 1, max_length = 256, example = "github-token")]
    pub key: String,
    /// The limit, where no stored policy matches the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// How many permits' worth of capacity it takes; 1 if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
    pub cost: Option<u64>,
}

/// The request as it arrives: absent and `null` mean the default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceivedAcquire {
    key: Option<String>,
    limit: Option<Limit>,
    cost: Option<u64>,
    all_of: Option<Vec<PartRequest>>,
    max_wait_ms: Option<Millis>,
    wait: Option<Wait>,
    lead_ms: Option<Millis>,
    request_id: Option<String>,
    worker: Option<String>,
}

/// By way of a map, because a derived struct would also take a JSON array for its members in order.
impl<'de> Deserialize<'de> for AcquireRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AcquireVisitor)
    }
}

struct AcquireVisitor;

impl<'de> Visitor<'de> for AcquireVisitor {
    type Value = AcquireRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `key`")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<AcquireRequest, A::Error> {
        let received = ReceivedAcquire::deserialize(MapAccessDeserializer::new(members))?;
        match (&received.key, &received.all_of) {
            (None, None) => return Err(A::Error::missing_field("key")),
            (Some(_), Some(_)) => return Err(A::Error::custom("`all_of` stands in place of `key`: leave one out")),
            _ => {}
        }
        if received.all_of.is_some() && (received.limit.is_some() || received.cost.is_some()) {
            return Err(A::Error::custom("with `all_of` each part has its own `limit` and `cost`"));
        }
        Ok(AcquireRequest::from(received))
    }
}

impl From<ReceivedAcquire> for AcquireRequest {
    fn from(received: ReceivedAcquire) -> Self {
        Self {
            key: received.key,
            limit: received.limit,
            cost: received.cost,
            all_of: received.all_of,
            max_wait_ms: received.max_wait_ms,
            wait: received.wait.unwrap_or_default(),
            lead_ms: received.lead_ms,
            request_id: received.request_id,
            worker: received.worker,
        }
    }
}

/// Who waits until the slot has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// The answer comes at once and says how long the worker waits.
    #[default]
    Client,
    /// The answer is held until the slot has come; where reservations are full, first come, first served.
    Server,
    /// Nobody: only a permit that is free now is taken.
    None,
}

impl Wait {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
    const fn is_client(&self) -> bool {
        matches!(self, Self::Client)
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(WaitVisitor)
    }
}

struct WaitVisitor;

impl Visitor<'_> for WaitVisitor {
    type Value = Wait;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`client`, `server` or `none`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Wait, E> {
        match text {
            "client" => Ok(Wait::Client),
            "server" => Ok(Wait::Server),
            "none" => Ok(Wait::None),
            _ => Err(E::unknown_variant(text, &["client", "server", "none"])),
        }
    }
}

/// A permit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcquireResponse {
    /// Always true here; a denial is a problem with `granted: false`.
    pub granted: bool,
    /// The key as it was asked for.
    pub key: String,
    /// The fencing number: strictly increasing over the whole cluster in grant order, never reused.
    pub permit: u64,
    /// The stored policy the limit came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<u64>,
    /// Cluster time of the slot. Never compare it with a wall clock.
    pub slot_ms: Millis,
    /// Start no earlier than this long after the answer was **received**. Rounded up.
    pub wait_ms: Millis,
    /// Discard the permit this long after the request was **first sent**; absent when it does not expire. Rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_before_ms: Option<Millis>,
    /// Permits of this key that now lie in the future.
    pub reserved: u64,
    /// How much is left; for all kinds but spacing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The limit it was decided by, as the request wrote it; a stored policy's in its shortest form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Remembered from an earlier request with the same id; nothing was consumed this time.
    #[serde(default)]
    pub replayed: bool,
}

/// A permit of each of several keys, all with one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllOfResponse {
    /// Always true here; a denial is a problem with `granted: false`.
    pub granted: bool,
    /// In the order of the request.
    pub permits: Vec<PermitResponse>,
    /// Cluster time of the slot. Never compare it with a wall clock.
    pub slot_ms: Millis,
    /// Start no earlier than this long after the answer was **received**. Rounded up.
    pub wait_ms: Millis,
    /// Discard the permits this long after the request was **first sent**; absent when none expires. Rounded down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_before_ms: Option<Millis>,
    /// Remembered from an earlier request with the same id; nothing was consumed this time.
    #[serde(default)]
    pub replayed: bool,
}

/// One permit of several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PermitResponse {
    /// The key as it was asked for.
    pub key: String,
    /// The fencing number.
    pub permit: u64,
    /// The stored policy the limit came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Its revision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_revision: Option<u64>,
    /// Permits of this key that now lie in the future.
    pub reserved: u64,
    /// How much is left; for all kinds but spacing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The limit it was decided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AcquireRequest, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_request_reads() {
        let request = read(
            r#"{"key": "github-token", "limit": "1/6s", "cost": 2, "max_wait_ms": 30000,
                "wait": "none", "lead_ms": 0.5, "request_id": "01JD", "worker": "w1"}"#,
        )
        .unwrap();
        assert_eq!(
            request,
            AcquireRequest {
                limit: Some(Limit::Text("1/6s".to_owned())),
                cost: Some(2),
                max_wait_ms: Some(Millis::up_from_ns(30_000_000_000)),
                wait: Wait::None,
                lead_ms: Some(Millis::up_from_ns(500_000)),
                request_id: Some("01JD".to_owned()),
                worker: Some("w1".to_owned()),
                ..AcquireRequest::new("github-token")
            }
        );
        assert_eq!(read(&serde_json::to_string(&request).unwrap()), Ok(request));
    }

    #[test]
    fn only_the_key_is_required_and_defaults_are_not_written() {
        let request = read(r#"{"key":"k","cost":null,"wait":null,"limit":null}"#).unwrap();
        assert_eq!(request, AcquireRequest::new("k"));
        assert_eq!(serde_json::to_string(&request).unwrap(), r#"{"key":"k"}"#);
    }

    #[test]
    fn errors_name_the_member() {
        for (text, why) in [
            ("{}", "missing field `key`"),
            ("[]", "invalid type: sequence, expected an object with a `key`"),
            (r#"["k",null,null,null,null,null,null,null,null]"#, "invalid type: sequence"),
            (r#"{"key":"k","kee":1}"#, "unknown field `kee`, expected one of `key`, `limit`, `cost`"),
            (r#"{"key":"k","key":"k"}"#, "duplicate field `key`"),
            (r#"{"key":"k","wait":"maybe"}"#, "unknown variant `maybe`, expected one of `client`, `server`, `none`"),
            (r#"{"key":"k","all_of":[{"key":"k"}]}"#, "`all_of` stands in place of `key`"),
            (r#"{"cost":1,"all_of":[{"key":"k"}]}"#, "each part has its own `limit` and `cost`"),
            (r#"{"all_of":[{"key":"k","wait":"none"}]}"#, "unknown field `wait`"),
            (r#"{"all_of":[{"limit":"1/s"}]}"#, "missing field `key`"),
            (r#"{"key":"k"} x"#, "trailing characters"),
            (r#"{"key":5}"#, "invalid type: integer `5`, expected a string"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_grant_reads_from_an_older_and_a_newer_node() {
        let text = r#"{"granted":true,"key":"k","permit":7,"slot_ms":1.5,"wait_ms":0,"reserved":0,"colour":"new"}"#;
        let grant: AcquireResponse = serde_json::from_str(text).unwrap();
        assert_eq!((grant.permit, grant.slot_ms.micros(), grant.replayed), (7, 1_500, false));
        assert_eq!(
            serde_json::to_string(&grant).unwrap(),
            r#"{"granted":true,"key":"k","permit":7,"slot_ms":1.5,"wait_ms":0,"reserved":0,"replayed":false}"#
        );
    }
}
