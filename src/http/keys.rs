//! `GET /keys/{key}`: one key as it stands, linearizable, without consuming anything.

use super::app::App;
use super::{answer, ask, rate_limit, respond};
use crate::api::{self, Code, KeyResponse, Kind, Millis, Problem, SpacingLimit};
use crate::limiter::{Ask, Decision, Limit, Span};
use crate::limits::MAX_RESERVED_DEFAULT;
use crate::node::{Failure, Look};
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
    params(("key" = String, Path, description = "The key, percent-encoded")),
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
            description = "`no_quorum`, `no_leader`, `overloaded`, `shutting_down`",
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
    match timeout(app.options.request_timeout, app.upstream.look(key.clone())).await {
        Ok(Ok(look)) => found(key.as_str(), &look),
        Ok(Err(failure)) => respond::problem(&unseen(failure).about(key.as_str())),
        Err(_) => {
            let silent = Failure::Unknown { detail: "the node did not get a majority to answer in time".to_owned() };
            respond::problem(&unseen(silent).about(key.as_str()))
        }
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
fn unseen(failure: Failure) -> Problem {
    match failure {
        Failure::Unknown { detail } => Problem::new(Code::NoQuorum, detail),
        refused @ Failure::Refused { .. } => answer::failure_problem(refused),
    }
}

fn found(key: &str, look: &Look) -> Response {
    let Some(view) = &look.key else {
        let detail = "nothing is known of this key: it was never used, or it is idle, and idle keys are forgotten";
        return respond::problem(&Problem::new(Code::NoLimit, detail).about(key));
    };
    let retry_after = match view.limit.decide(view.next, look.now, &Ask::default()) {
        Decision::Denied(denial) => denial.retry_after,
        Decision::Granted { .. } | Decision::Never(_) => Span::ZERO,
    };
    respond::json(&KeyResponse {
        key: key.to_owned(),
        limit: canonical(&view.limit),
        now_ms: Millis::down_from_ns(look.now.0),
        next_ms: Millis::up_from_ns(view.next.0),
        reserved: view.reserved,
        remaining: rate_limit::remaining(&view.limit, view.reserved),
        in_flight: 0,
        permit: view.permit,
        retry_after_ms: Millis::up_from_ns(retry_after.0),
    })
}

/// The shortest way to write a limit: text if all else is by default.
fn canonical(limit: &Limit) -> api::Limit {
    match limit {
        Limit::Spacing(spacing) => {
            let rate = spacing.rate().to_string();
            let start_window = (spacing.start_window() > Span::ZERO).then(|| spacing.start_window().to_string());
            let max_reserved = spacing.max_reserved();
            if start_window.is_none() && max_reserved == MAX_RESERVED_DEFAULT {
                return api::Limit::Text(rate);
            }
            let max_reserved = Some(u64::from(max_reserved));
            api::Limit::Spacing(SpacingLimit { kind: Some(Kind::Spacing), rate, max_reserved, start_window })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Spacing, Time};
    use crate::node::Refusal;
    use crate::state::KeyView;
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
        let view = KeyView { limit: limit(1), next: Time(12_000_000_001), reserved: 1, permit: 7 };
        let look = Look { now: Time(1_999), key: Some(view) };
        let (status, found) = body(found("k", &look)).await;
        assert_eq!(status, 200);
        assert_eq!(
            found,
            json!({"key": "k", "limit": {"kind": "spacing", "rate": "1/6s", "max_reserved": 1}, "now_ms": 0.001,
                   "next_ms": 12000.001, "reserved": 1, "remaining": 0, "in_flight": 0, "permit": 7,
                   "retry_after_ms": 5999.999})
        );
        let free = Look {
            now: Time(12_000_000_001),
            key: Some(KeyView { limit: limit(10), next: Time(12_000_000_001), reserved: 0, permit: 7 }),
        };
        let (_, found) = body(super::found("k", &free)).await;
        assert_eq!(
            (&found["limit"], &found["remaining"], &found["retry_after_ms"]),
            (&json!("1/6s"), &json!(10), &json!(0))
        );
    }

    #[tokio::test]
    async fn an_idle_key_is_no_key() {
        let (status, found) = body(found("k", &Look { now: Time(1), key: None })).await;
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
