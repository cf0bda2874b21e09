//! `/keys/{key}`: one key as it stands, linearizable, without consuming anything; and forgetting it.

use super::app::App;
use super::{acquire, answer, ask, limit, respond};
use crate::api::{Code, KeyResponse, Millis, Problem, ResetResponse};
use crate::node::{Failure, Look};
use crate::state::{Command, Outcome, request_id_hash};
use axum::extract::State;
use axum::response::Response;
use http::Uri;
use percent_encoding::percent_decode_str;
use std::sync::Arc;
use tokio::time::timeout;

/// Look at a key.
///
/// Linearizable, like a decision, but nothing is consumed.
#[utoipa::path(
    get,
    path = "/keys/{key}",
    tag = "permits",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("request_id" = Option<String>, Query, description = "A request that waits: its place in line is `position`")
    ),
    responses(
        (status = 200, description = "The key as it stands", body = KeyResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 404,
            description = "`no_limit`: never used, or idle and forgotten: the next acquire finds it fresh.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 413, description = "`too_large`: the key", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn key(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let key = match decoded(uri.path()).and_then(|text| ask::key(&text)) {
        Ok(key) => key,
        Err(problem) => return respond::problem(&problem),
    };
    let waiter = match waiter(uri.query()) {
        Ok(waiter) => waiter,
        Err(problem) => return respond::problem(&problem),
    };
    match timeout(app.options.request_timeout, app.upstream.look(key.clone(), waiter)).await {
        Ok(Ok(look)) => found(key.as_str(), &look),
        Ok(Err(failure)) => respond::problem(&unseen(failure).about(key.as_str())),
        Err(_) => {
            let silent = Failure::Unknown { detail: "the node did not get a majority to answer in time".to_owned() };
            respond::problem(&unseen(silent).about(key.as_str()))
        }
    }
}

/// Forget a key.
///
/// As if it had never been used: what was granted before no longer counts, so the next permit may come at once. Permits that
/// were granted stay granted. For operators.
#[utoipa::path(
    delete,
    path = "/keys/{key}",
    tag = "permits",
    params(("key" = String, Path, description = "The key, percent-encoded")),
    responses(
        (status = 200, description = "Forgotten, or there was nothing to forget", body = ResetResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "`too_large`: the key", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`: not applied",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 504, description = "`outcome_unknown`", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn reset(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let key = match decoded(uri.path()).and_then(|text| ask::key(&text)) {
        Ok(key) => key,
        Err(problem) => return respond::problem(&problem),
    };
    let decided = timeout(app.options.request_timeout, app.upstream.decide(Command::Reset(key.clone()))).await;
    match decided.unwrap_or_else(|_| Err(acquire::no_word())) {
        Ok(verdict) => {
            let reset = verdict.outcome == Outcome::Reset(true);
            respond::json(&ResetResponse { reset, key: key.as_str().to_owned() })
        }
        Err(failure) => answer::failure(key.as_str(), failure),
    }
}

/// The request whose place in line is wanted.
fn waiter(query: Option<&str>) -> Result<Option<u128>, Box<Problem>> {
    let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(None) };
    let Some(encoded) = query.strip_prefix("request_id=").filter(|rest| !rest.contains('&')) else {
        let detail = format!("the only parameter is request_id, not {:?}", respond::shortened(query));
        return Err(ask::bad_request(detail));
    };
    match percent_decode_str(encoded).decode_utf8() {
        Ok(text) => Ok(Some(request_id_hash(&text))),
        Err(error) => Err(ask::bad_request(format!("request_id: not UTF-8 when decoded: {error}"))),
    }
}

/// The key in the path. By hand, because the router's own decoding refuses in words that are not a problem.
fn decoded(path: &str) -> Result<String, Box<Problem>> {
    let encoded = path.strip_prefix("/keys/").unwrap_or_default();
    // The decoder lets a lone percent sign stand for itself; then two paths would name one key.
    let broken = encoded.match_indices('%').find(|(at, _)| {
        let digits = encoded.as_bytes().get(at + 1..at + 3);
        digits.is_none_or(|digits| !digits.iter().all(u8::is_ascii_hexdigit))
    });
    if let Some((at, _)) = broken {
        let detail =
            format!("key: the percent sign at byte {} of the path is not followed by two hexadecimal digits", at + 7);
        return Err(Box::new(Problem::new(Code::BadRequest, detail)));
    }
    match percent_decode_str(encoded).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(error) => Err(Box::new(Problem::new(Code::BadRequest, format!("key: not UTF-8 when decoded: {error}")))),
    }
}

/// A look changes nothing, so not having seen it is never an unknown outcome.
pub(super) fn unseen(failure: Failure) -> Problem {
    match failure {
        Failure::Unknown { detail } => Problem::new(Code::NoQuorum, detail),
        refused @ Failure::Refused { .. } => answer::failure_problem(refused),
    }
}

fn found(key: &str, look: &Look) -> Response {
    let Some(view) = &look.key else {
        let detail = "nothing is known of this key: no stored policy matches it, and it was never used or is idle, and idle \
                      keys are forgotten";
        return respond::problem(&Problem::new(Code::NoLimit, detail).about(key));
    };
    let standing = &view.standing;
    respond::json(&KeyResponse {
        key: key.to_owned(),
        limit: limit::canonical(&view.limit),
        policy: view.rule.as_ref().map(|rule| rule.policy.to_string()),
        policy_revision: view.rule.as_ref().map(|rule| rule.revision),
        now_ms: Millis::down_from_ns(look.now.0),
        next_ms: Millis::up_from_ns(standing.next.0),
        reserved: standing.reserved,
        remaining: standing.remaining,
        in_flight: standing.in_flight,
        waiting: look.waiting,
        position: look.position,
        permit: view.permit,
        retry_after_ms: Millis::up_from_ns(standing.retry_after.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Limit, Spacing, Span, Standing, Time};
    use crate::node::Refusal;
    use crate::state::{KeyView, Rule};
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    async fn body(response: Response) -> (u16, Value) {
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    fn limit(max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, max_reserved).unwrap())
    }

    #[tokio::test]
    async fn a_look_says_what_an_acquire_would_meet() {
        let standing = Standing {
            next: Time(12_000_000_001),
            reserved: 1,
            remaining: 0,
            in_flight: 0,
            retry_after: Span(5_999_999_000),
            reset_after: Span(0),
        };
        let rule = Rule { policy: "github".into(), revision: 7, limit: limit(1) };
        let view = KeyView { limit: limit(1), rule: Some(Arc::new(rule)), standing, permit: 7 };
        let look = Look { now: Time(1_999), key: Some(view), waiting: 5, position: Some(2) };
        let (status, found) = body(found("k", &look)).await;
        assert_eq!(status, 200);
        assert_eq!(
            found,
            json!({"key": "k", "limit": {"kind": "spacing", "rate": "1/6s", "max_reserved": 1}, "policy": "github",
                   "policy_revision": 7, "now_ms": 0.001, "next_ms": 12000.001, "reserved": 1, "remaining": 0,
                   "in_flight": 0, "waiting": 5, "position": 2, "permit": 7, "retry_after_ms": 5999.999})
        );
    }

    #[test]
    fn the_place_in_line_is_asked_for_by_request_id() {
        assert_eq!(waiter(None), Ok(None));
        assert_eq!(waiter(Some("request_id=a%20b")), Ok(Some(request_id_hash("a b"))));
        for query in ["x=1", "request_id=a&b", "request_id=%FF"] {
            assert_eq!(waiter(Some(query)).unwrap_err().code, Code::BadRequest, "{query}");
        }
    }

    #[tokio::test]
    async fn an_idle_key_is_no_key() {
        let (status, found) = body(found("k", &Look { now: Time(1), key: None, waiting: 0, position: None })).await;
        assert_eq!((status, &found["code"], &found["key"]), (404, &json!("no_limit"), &json!("k")));
        assert!(found["detail"].as_str().unwrap().contains("idle keys are forgotten"), "{found}");
    }

    #[test]
    fn a_look_never_has_an_unknown_outcome() {
        assert_eq!(unseen(Failure::Unknown { detail: String::new() }).code, Code::NoQuorum);
        let refused = Failure::Refused { refusal: Refusal::NoLeader, detail: String::new(), retry_after: Span::ZERO };
        assert_eq!(unseen(refused).code, Code::NoLeader);
    }

    #[test]
    fn keys_in_paths_are_percent_encoded() {
        assert_eq!(decoded("/keys/a%2Fb%20c+%C3%BC").unwrap(), "a/b c+ü");
        assert_eq!(decoded("/keys/%FF").unwrap_err().code, Code::BadRequest);
        for lone in ["/keys/100%", "/keys/%zz", "/keys/%2"] {
            let problem = decoded(lone).unwrap_err();
            assert_eq!(problem.code, Code::BadRequest);
            assert!(problem.detail.contains("percent sign"), "{}", problem.detail);
        }
        assert_eq!(decoded("/keys/100%25").unwrap(), "100%");
    }
}
