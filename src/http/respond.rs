//! Responses from wire types: bodies, media types, `Retry-After`.

use crate::api::{Code, Millis, PROBLEM_JSON, Problem};
use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use std::borrow::Cow;

/// Longest text of a client's that an answer repeats, in bytes.
const ECHO_BYTES_MAX: usize = 256;

/// Room for an answer; few are longer.
const ANSWER_BYTES: usize = 320;

/// What a client sent, cut to a length that may be repeated in an answer.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= ECHO_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let whole = (0..=ECHO_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    Cow::Owned(format!("{}…", &text[..whole]))
}

/// A success.
pub(super) fn json(body: &impl Serialize) -> Response {
    with_json(StatusCode::OK, HeaderValue::from_static("application/json"), body)
}

/// The same for an answer of `parts` that are as long as other answers.
pub(super) fn json_of_many(parts: usize, body: &impl Serialize) -> Response {
    sized_json(parts * ANSWER_BYTES, StatusCode::OK, HeaderValue::from_static("application/json"), body)
}

/// The same under another status.
pub(super) fn json_as(status: StatusCode, body: &impl Serialize) -> Response {
    with_json(status, HeaderValue::from_static("application/json"), body)
}

/// A problem, with `Retry-After` on 429 and 503.
pub(super) fn problem(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_json(status, HeaderValue::from_static(PROBLEM_JSON), problem);
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        response.headers_mut().insert(RETRY_AFTER, retry_after(problem.retry_after_ms));
    }
    response
}

/// A text for people.
pub(super) fn text(status: StatusCode, body: impl Into<Body>) -> Response {
    with_body(status, HeaderValue::from_static("text/plain; charset=utf-8"), body.into())
}

/// A body that is ready to be sent.
pub(super) fn with_body(status: StatusCode, content_type: HeaderValue, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn with_json(status: StatusCode, content_type: HeaderValue, body: &impl Serialize) -> Response {
    sized_json(ANSWER_BYTES, status, content_type, body)
}

fn sized_json(about: usize, status: StatusCode, content_type: HeaderValue, body: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(about);
    match serde_json::to_writer(&mut bytes, body) {
        Ok(()) => with_body(status, content_type, Body::from(bytes)),
        Err(error) => {
            // Our own types always serialize; if one ever does not, that is a fault of ours and no reason to panic.
            tracing::error!(%error, "an answer could not be written as JSON");
            text(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal.title())
        }
    }
}

/// Whole seconds, rounded up and at least one: 0 would invite to ask again at once, and again.
fn retry_after(retry_after: Option<Millis>) -> HeaderValue {
    let secs = retry_after.map_or(1, |millis| millis.micros().div_ceil(1_000_000).max(1));
    HeaderValue::from(secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_rounds_up_to_at_least_a_second_and_stands_where_it_should() {
        for (code, ns, header) in [
            (Code::Denied, Some(1), Some("1")),
            (Code::Denied, Some(6_000_000_001), Some("7")),
            (Code::NoQuorum, Some(1_000_000_000), Some("1")),
            (Code::Overloaded, None, Some("1")),
            (Code::OutcomeUnknown, Some(1), None),
            (Code::BadRequest, None, None),
        ] {
            let retry_after_ms = ns.map(Millis::up_from_ns);
            let response = problem(&Problem { retry_after_ms, ..Problem::new(code, "") });
            let found = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(found, header, "{code}");
            assert_eq!(response.status().as_u16(), code.status());
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        }
    }

    #[test]
    fn echoes_are_bounded_and_keep_whole_characters() {
        assert_eq!(shortened("short"), "short");
        let long = "ü".repeat(1_000);
        assert!(shortened(&long).len() <= ECHO_BYTES_MAX + "…".len());
    }
}
