//! The stable words for everything that can go wrong, with the status, the title and the certainty of each.

use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// What a problem is about. The text of each never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// Over the limit; a decision like any other.
    Denied,
    /// Not JSON, an unknown member, a wrong type.
    BadRequest,
    /// Neither the request nor a policy says what the limit is.
    NoLimit,
    /// No such policy.
    NoPolicy,
    /// No such permit.
    NoPermit,
    /// No such node.
    NoNode,
    /// No such route.
    NotFound,
    /// The route exists, the method does not.
    MethodNotAllowed,
    /// Committed too late to be used.
    Expired,
    /// Another policy has the same pattern.
    PolicyConflict,
    /// The cluster cannot be changed like that, or not now.
    MembershipConflict,
    /// The policy has another revision than the request asks for.
    RevisionMismatch,
    /// A body, key or batch over its bound.
    TooLarge,
    /// No state of the cluster could ever grant it.
    Never,
    /// The request id was used for another request.
    RequestIdReused,
    /// A new policy, and no room for one.
    TooManyPolicies,
    /// A node that was to be added or to lead does not answer.
    NodeUnreachable,
    /// Who is asking?
    Unauthenticated,
    /// Known, but not allowed.
    Forbidden,
    /// A fault of this node itself.
    Internal,
    /// The leader does not reach a majority.
    NoQuorum,
    /// No leader is known.
    NoLeader,
    /// The leader's disk has no room, or those of most nodes.
    DiskFull,
    /// More work than this node takes on.
    Overloaded,
    /// The node is on its way down.
    ShuttingDown,
    /// A new key, and no room for one.
    TooManyKeys,
    /// The node keeps no history, or has none just now.
    HistoryUnavailable,
    /// May or may not have been applied.
    OutcomeUnknown,
    /// A word of a newer node; only ever read, never written.
    Unrecognized,
}

/// What an answer says about the capacity that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Certainty {
    /// Nothing was consumed: asking again is safe, with or without a request id.
    NothingConsumed,
    /// The slot is spent and of no use.
    SlotSpent,
    /// Nobody knows: only a retry with the same request id is safe.
    Unknown,
}

impl Code {
    /// All codes a node writes.
    pub const ALL: [Self; 28] = [
        Self::Denied,
        Self::BadRequest,
        Self::NoLimit,
        Self::NoPolicy,
        Self::NoPermit,
        Self::NoNode,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Expired,
        Self::PolicyConflict,
        Self::MembershipConflict,
        Self::RevisionMismatch,
        Self::TooLarge,
        Self::Never,
        Self::RequestIdReused,
        Self::TooManyPolicies,
        Self::NodeUnreachable,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Internal,
        Self::NoQuorum,
        Self::NoLeader,
        Self::DiskFull,
        Self::Overloaded,
        Self::ShuttingDown,
        Self::TooManyKeys,
        Self::HistoryUnavailable,
        Self::OutcomeUnknown,
    ];

    /// Text, HTTP status and title: the one table.
    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::Denied => ("denied", 429, "Over the limit"),
            Self::BadRequest => ("bad_request", 400, "The request cannot be read"),
            Self::NoLimit => ("no_limit", 404, "The key has no limit"),
            Self::NoPolicy => ("no_policy", 404, "No such policy"),
            Self::NoPermit => ("no_permit", 404, "No such permit"),
            Self::NoNode => ("no_node", 404, "No such node"),
            Self::NotFound => ("not_found", 404, "No such route"),
            Self::MethodNotAllowed => ("method_not_allowed", 405, "The route does not know this method"),
            Self::Expired => ("expired", 409, "Decided too late to be used"),
            Self::PolicyConflict => ("policy_conflict", 409, "Another policy has the same pattern"),
            Self::MembershipConflict => ("membership_conflict", 409, "The cluster cannot be changed like that now"),
            Self::RevisionMismatch => ("revision_mismatch", 412, "The policy has another revision"),
            Self::TooLarge => ("too_large", 413, "Larger than allowed"),
            Self::Never => ("never", 422, "Can never be granted"),
            Self::RequestIdReused => ("request_id_reused", 422, "The request id belongs to another request"),
            Self::TooManyPolicies => ("too_many_policies", 422, "No room for another policy"),
            Self::NodeUnreachable => ("node_unreachable", 422, "The node does not answer as itself"),
            Self::Unauthenticated => ("unauthenticated", 401, "Not authenticated"),
            Self::Forbidden => ("forbidden", 403, "Not allowed"),
            Self::Internal => ("internal", 500, "The node failed"),
            Self::NoQuorum => ("no_quorum", 503, "No majority of the cluster answers"),
            Self::NoLeader => ("no_leader", 503, "The cluster has no leader"),
            Self::DiskFull => ("disk_full", 503, "No room on the disks of the cluster"),
            Self::Overloaded => ("overloaded", 503, "Too much at once"),
            Self::ShuttingDown => ("shutting_down", 503, "The node is shutting down"),
            Self::TooManyKeys => ("too_many_keys", 503, "No room for another key"),
            Self::HistoryUnavailable => ("history_unavailable", 503, "The node has no history to show"),
            Self::OutcomeUnknown => ("outcome_unknown", 504, "May or may not have been applied"),
            Self::Unrecognized => ("unrecognized", 500, "A code this version does not know"),
        }
    }

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status that goes with it.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// The same for every occurrence of the problem.
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    /// The code of this text, if this version knows it.
    pub fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }

    /// What the answer says about the capacity that was asked for.
    pub const fn certainty(self) -> Certainty {
        match self {
            Self::Expired => Certainty::SlotSpent,
            // A node that failed while it worked on a request cannot say how far it got.
            Self::OutcomeUnknown | Self::Internal | Self::Unrecognized => Certainty::Unknown,
            _ => Certainty::NothingConsumed,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(CodeVisitor)
    }
}

struct CodeVisitor;

impl Visitor<'_> for CodeVisitor {
    type Value = Code;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the code of a problem")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Code, E> {
        Ok(Code::of(text).unwrap_or(Code::Unrecognized))
    }
}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("A stable word for what went wrong"))
            .enum_values(Some(Self::ALL.map(Self::as_str)))
            .build()
            .into()
    }
}

impl ToSchema for Code {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_text_and_reads_back() {
        for code in Code::ALL {
            assert_eq!(Code::of(code.as_str()), Some(code));
            assert!((400..600).contains(&code.status()), "{code}");
            assert!(!code.title().ends_with('.'), "{code}");
        }
        assert_eq!(serde_json::from_str::<Code>("\"no_quorum\"").unwrap(), Code::NoQuorum);
        assert_eq!(serde_json::from_str::<Code>("\"of_tomorrow\"").unwrap(), Code::Unrecognized);
        assert!(serde_json::from_str::<Code>("5").is_err());
    }

    #[test]
    fn every_code_has_its_line_in_the_documentation() {
        let page = include_str!("../../docs/ERRORS.md");
        for code in Code::ALL {
            let line = page.lines().find(|line| line.starts_with('|') && line.contains(&format!("`{code}`")));
            let line = line.unwrap_or_else(|| panic!("{code} is not in docs/ERRORS.md"));
            assert!(line.contains(&code.status().to_string()), "{line}");
        }
    }

    #[test]
    fn the_documented_statuses() {
        for (code, status) in [
            (Code::Denied, 429),
            (Code::BadRequest, 400),
            (Code::NoLimit, 404),
            (Code::Expired, 409),
            (Code::PolicyConflict, 409),
            (Code::RevisionMismatch, 412),
            (Code::TooManyPolicies, 422),
            (Code::TooLarge, 413),
            (Code::Never, 422),
            (Code::RequestIdReused, 422),
            (Code::NoQuorum, 503),
            (Code::NoLeader, 503),
            (Code::DiskFull, 503),
            (Code::Overloaded, 503),
            (Code::ShuttingDown, 503),
            (Code::TooManyKeys, 503),
            (Code::HistoryUnavailable, 503),
            (Code::OutcomeUnknown, 504),
        ] {
            assert_eq!(code.status(), status, "{code}");
        }
    }

    #[test]
    fn only_what_is_certain_is_called_certain() {
        for code in Code::ALL.into_iter().filter(|code| code.status() == 503 || code.status() == 429) {
            assert_eq!(code.certainty(), Certainty::NothingConsumed, "{code}");
        }
        assert_eq!(Code::OutcomeUnknown.certainty(), Certainty::Unknown);
        assert_eq!(Code::Internal.certainty(), Certainty::Unknown);
        assert_eq!(Code::Unrecognized.certainty(), Certainty::Unknown);
        assert_eq!(Code::Expired.certainty(), Certainty::SlotSpent);
    }
}
