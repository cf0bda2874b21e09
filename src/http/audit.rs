//! `GET /audit`: changes of policies, members and leaders, as this node remembers them.

use super::app::App;
use super::history::{count, read};
use super::query::Query;
use super::respond;
use super::utc::rfc3339;
use crate::api::{AuditEvent, AuditResponse, Millis, Problem};
use crate::history::{Audit, AuditLine};
use axum::extract::State;
use axum::response::Response;
use http::Uri;
use std::sync::Arc;

/// Most lines in an answer.
const LIMIT_MAX: u64 = 1_000;
const LIMIT_DEFAULT: u64 = 100;

/// What was changed in the cluster, and when.
///
/// This node's own memory: not linearizable, and another node may have seen other changes of leader.
#[utoipa::path(
    get,
    path = "/audit",
    tag = "history",
    params(
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "Most events; 100 unless said")
    ),
    responses(
        (status = 200, description = "The newest events, newest first", body = AuditResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`history_unavailable`, `overloaded`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn audit(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let limit =
        Query::read(uri.query(), &["limit"]).and_then(|query| query.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX));
    let limit = match limit {
        Ok(limit) => limit,
        Err(problem) => return respond::problem(&problem),
    };
    match read(&app, move |history| history.audit(count(limit))).await {
        Ok(lines) => respond::json(&AuditResponse { events: lines.into_iter().map(rendered).collect() }),
        Err(problem) => respond::problem(&problem),
    }
}

fn rendered(line: AuditLine) -> AuditEvent {
    let event = AuditEvent {
        number: line.number,
        recorded: rfc3339(line.wall_ms),
        at_ms: line.entry.map(|(at, _)| Millis::down_from_ns(at.0)),
        index: line.entry.map(|(_, index)| index),
        ..AuditEvent::default()
    };
    match line.event {
        Audit::PolicyPut { name, revision, summary } => AuditEvent {
            kind: "policy_put".to_owned(),
            policy: Some(name),
            revision: Some(revision),
            summary: Some(summary),
            ..event
        },
        Audit::PolicyDeleted { name, revision } => {
            AuditEvent { kind: "policy_deleted".to_owned(), policy: Some(name), revision: Some(revision), ..event }
        }
        Audit::KeyReset { key } => AuditEvent { kind: "key_reset".to_owned(), key: Some(key), ..event },
        Audit::Membership { voters, learners } => {
            AuditEvent { kind: "membership".to_owned(), voters: Some(voters), learners: Some(learners), ..event }
        }
        Audit::Leader { node, term } => {
            AuditEvent { kind: "leader".to_owned(), node: Some(node), term: Some(term), ..event }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Time;
    use serde_json::json;

    #[test]
    fn every_kind_has_its_own_members_and_no_others() {
        let line = |event| AuditLine { number: 3, entry: Some((Time(1_500_000), 9)), wall_ms: 0, event };
        let members = |event| {
            let rendered = serde_json::to_value(rendered(line(event))).unwrap();
            let base = ["number", "recorded", "at_ms", "index"];
            let own = rendered.as_object().unwrap().iter().filter(|(name, _)| !base.contains(&name.as_str()));
            serde_json::Value::Object(own.map(|(name, value)| (name.clone(), value.clone())).collect())
        };
        let put = Audit::PolicyPut { name: "p".to_owned(), revision: 2, summary: "1/6s".to_owned() };
        assert_eq!(members(put), json!({"kind": "policy_put", "policy": "p", "revision": 2, "summary": "1/6s"}));
        let deleted = Audit::PolicyDeleted { name: "p".to_owned(), revision: 2 };
        assert_eq!(members(deleted), json!({"kind": "policy_deleted", "policy": "p", "revision": 2}));
        assert_eq!(members(Audit::KeyReset { key: "k".to_owned() }), json!({"kind": "key_reset", "key": "k"}));
        let membership = Audit::Membership { voters: vec![1, 2], learners: Vec::new() };
        assert_eq!(members(membership), json!({"kind": "membership", "voters": [1, 2], "learners": []}));
        assert_eq!(members(Audit::Leader { node: 1, term: 2 }), json!({"kind": "leader", "node": 1, "term": 2}));
        let whole = serde_json::to_value(rendered(line(Audit::Leader { node: 1, term: 2 }))).unwrap();
        assert_eq!((&whole["at_ms"], &whole["index"], &whole["number"]), (&json!(1.5), &json!(9), &json!(3)));
    }
}
