//! The wire: what goes over HTTP between a worker and a node, as types and nothing else.
//!
//! Invariants
//! - What is not known is refused by name, on the way in; on the way out, readers skip members they do not know, so
//!   that a node may say more than an older client understands.
//! - Times are milliseconds as JSON numbers with up to three decimals, kept as whole microseconds ([`Millis`]).
//! - Nothing is read by way of `untagged` or `flatten`: with them serde can no longer say what was wrong and where.
//! - A request has a fixed, shallow shape: no value of it is ever skipped over, so a deeply nested body fails at the
//!   first bracket that has no business there, long before any limit on nesting.
//!
//! Not here: what the texts of rates and durations mean (`limiter/`), whether a number is sensible (`http/`), how a
//! problem becomes an HTTP response (`http/`).

mod acquire;
mod batch;
mod cluster;
mod code;
mod history;
mod key;
mod limit;
mod millis;
mod policy;
mod problem;
mod release;

pub use acquire::{AcquireRequest, AcquireResponse, AllOfResponse, PartRequest, PermitResponse, Wait};
pub use batch::{BatchRequest, BatchResponse};
pub use cluster::{
    AddNodeRequest, AddNodeResponse, Check, ClusterResponse, DigestResponse, Health, MemberResponse,
    RemoveNodeResponse, TransferRequest, TransferResponse,
};
pub use code::{Certainty, Code};
pub use history::{
    AuditEvent, AuditResponse, DenialLine, HistoryResponse, KeyHistoryResponse, KeyUsage, PermitLine, PermitOutcome,
    PolicyUsage, UsageBucket, UsageTotal,
};
pub use key::KeyResponse;
pub use limit::{Kind, Limit, LimitMembers, Ramp};
pub use millis::Millis;
pub use policy::{Override, PoliciesResponse, PolicyDeleted, PolicyRequest, PolicyResponse};
pub use problem::{Problem, Reason};
pub use release::{ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse, ResetResponse};

/// Media type of every answer that is not a success.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The header that carries a `request_id` instead of the body.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The header by which a follower names the leader's client address.
pub const QUORATE_LEADER: &str = "quorate-leader";
