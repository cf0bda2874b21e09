//! `/policies` and `/policies/{name}`: stored rules, which say what the limit of a key is so that no request has to.
//!
//! Not here: which names and patterns are any good (`http/`), which of two patterns wins (`state/`).

use super::limit::Limit;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// What a policy shall be. The name is in the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Which keys it is for: a key, a prefix that ends in `*`, or `*` alone.
    #[serde(rename = "match")]
    #[schema(min_length = 1, example = "github:*")]
    pub pattern: String,
    /// Their limit.
    pub limit: Limit,
    /// Members of the limit that a request may bring itself.
    #[serde(rename = "override", skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(required = false)]
    pub overrides: BTreeSet<Override>,
}

impl PolicyRequest {
    /// A policy that no request may change anything of.
    pub fn new(pattern: impl Into<String>, limit: Limit) -> Self {
        Self { pattern: pattern.into(), limit, overrides: BTreeSet::new() }
    }
}

/// The policy as it arrives: absent and `null` mean the default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceivedPolicy {
    #[serde(rename = "match")]
    pattern: String,
    limit: Limit,
    #[serde(rename = "override")]
    overrides: Option<BTreeSet<Override>>,
}

/// By way of a map, because a derived struct would also take a JSON array for its members in order.
impl<'de> Deserialize<'de> for PolicyRequest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PolicyVisitor)
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = PolicyRequest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `match` and a `limit`")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<PolicyRequest, A::Error> {
        let ReceivedPolicy { pattern, limit, overrides } =
            ReceivedPolicy::deserialize(MapAccessDeserializer::new(members))?;
        Ok(PolicyRequest { pattern, limit, overrides: overrides.unwrap_or_default() })
    }
}

/// A member of a limit that a policy may leave to the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// How many in how long.
    Rate,
    /// How many at once.
    Burst,
    /// How many may lie ahead.
    MaxReserved,
    /// How long after its slot a permit may be used.
    StartWindow,
    /// How the rate grows.
    Ramp,
    /// How finely a window is counted.
    Resolution,
    /// Whether windows begin on whole multiples of their length.
    Aligned,
    /// How many may be in flight.
    Max,
    /// How long one of them may take.
    Lease,
    /// Everything: the policy is only there for requests that say nothing.
    Limit,
}

impl Override {
    /// All members that may be named.
    pub const ALL: [Self; 10] = [
        Self::Rate,
        Self::Burst,
        Self::MaxReserved,
        Self::StartWindow,
        Self::Ramp,
        Self::Resolution,
        Self::Aligned,
        Self::Max,
        Self::Lease,
        Self::Limit,
    ];
    const WORDS: [&'static str; 10] =
        ["rate", "burst", "max_reserved", "start_window", "ramp", "resolution", "aligned", "max", "lease", "limit"];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|member| member.as_str() == text);
        known.ok_or_else(|| format!("no member of a limit is called `{text}`; known are {}", Self::WORDS.join(", ")))
    }
}

impl<'de> Deserialize<'de> for Override {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(OverrideVisitor)
    }
}

struct OverrideVisitor;

impl Visitor<'_> for OverrideVisitor {
    type Value = Override;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member of a limit")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Override, E> {
        text.parse().map_err(E::custom)
    }
}

/// A stored policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyResponse {
    /// Its name.
    #[schema(example = "github")]
    pub name: String,
    /// Which keys it is for.
    #[serde(rename = "match")]
    #[schema(example = "github:*")]
    pub pattern: String,
    /// Their limit.
    pub limit: Limit,
    /// Members of the limit that a request may bring itself. Words, because a newer node may know more of them.
    #[serde(rename = "override", default)]
    pub overrides: Vec<String>,
    /// Grows with every change; also the `ETag`.
    pub revision: u64,
}

/// All stored policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoliciesResponse {
    /// Sorted by name.
    pub policies: Vec<PolicyResponse>,
    /// The revision of the last change of any policy.
    pub revision: u64,
}

/// A policy is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PolicyDeleted {
    /// Always true here; a policy that is not there is a problem.
    pub deleted: bool,
    /// Its name.
    pub name: String,
    /// The revision of this change.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PolicyRequest, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn limit(text: &str) -> Limit {
        serde_json::from_value(text.into()).unwrap()
    }

    #[test]
    fn the_documented_request_reads() {
        let policy = read(r#"{"match": "github:*", "limit": "1/6s", "override": ["rate", "max_reserved"]}"#).unwrap();
        let overrides = BTreeSet::from([Override::MaxReserved, Override::Rate]);
        assert_eq!(policy, PolicyRequest { overrides, ..PolicyRequest::new("github:*", limit("1/6s")) });
        assert_eq!(read(&serde_json::to_string(&policy).unwrap()), Ok(policy));
    }

    #[test]
    fn an_override_is_optional_and_a_set() {
        for text in [
            r#"{"match":"k","limit":"1/6s"}"#,
            r#"{"match":"k","limit":"1/6s","override":null}"#,
            r#"{"match":"k","limit":"1/6s","override":[]}"#,
        ] {
            assert_eq!(serde_json::to_string(&read(text).unwrap()).unwrap(), r#"{"match":"k","limit":"1/6s"}"#);
        }
        let twice = read(r#"{"match":"k","limit":"1/6s","override":["max","lease","max"]}"#).unwrap();
        assert_eq!(twice.overrides.len(), 2);
    }

    #[test]
    fn errors_name_the_member() {
        for (text, why) in [
            ("{}", "missing field `match`"),
            ("[]", "invalid type: sequence, expected an object with a `match` and a `limit`"),
            (r#"["k","1/6s",null]"#, "invalid type: sequence"),
            (r#"{"match":"k"}"#, "missing field `limit`"),
            (r#"{"match":"k","limit":null}"#, "invalid type: null"),
            (r#"{"match":"k","limit":"1/6s","name":"n"}"#, "unknown field `name`, expected one of `match`, `limit`"),
            (r#"{"match":"k","match":"k","limit":"1/6s"}"#, "duplicate field `match`"),
            (r#"{"match":"k","limit":"1/6s","override":["cost"]}"#, "no member of a limit is called `cost`"),
            (r#"{"match":"k","limit":"1/6s","override":"rate"}"#, "invalid type: string \"rate\", expected a sequence"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn every_override_has_its_word() {
        for member in Override::ALL {
            assert_eq!(member.as_str().parse(), Ok(member));
            assert_eq!(serde_json::to_value(member).unwrap(), member.as_str());
        }
    }

    #[test]
    fn a_policy_of_a_newer_node_still_reads() {
        let text = r#"{"name":"n","match":"k","limit":"1/6s","override":["tomorrow"],"revision":7,"colour":"new"}"#;
        let policy: PolicyResponse = serde_json::from_str(text).unwrap();
        assert_eq!((policy.overrides, policy.revision), (vec!["tomorrow".to_owned()], 7));
    }
}
