//! Answers: JSON, problems with `Retry-After`, text.

use crate::api::{Millis, PROBLEM_JSON, Problem};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use serde::Serialize;

/// Whatever may go wrong with a body that is passed on.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer: whole, or passed on from somewhere else as it comes.
pub type Body = BoxBody<Bytes, BoxError>;

/// A success.
pub fn json(body: &impl Serialize) -> Response<Body> {
    written(StatusCode::OK, "application/json", body)
}

/// A problem, with `Retry-After` on 429 and 503.
pub fn problem(problem: &Problem) -> Response<Body> {
    said(problem.status, problem, problem.retry_after_ms)
}

/// Anything that is written like a problem.
pub fn said(status: u16, problem: &impl Serialize, retry_after: Option<Millis>) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = written(status, PROBLEM_JSON, problem);
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        // Whole seconds, rounded up and at least one: 0 would invite to ask again at once, and again.
        let secs = retry_after.map_or(1, |millis| millis.micros().div_ceil(1_000_000).max(1));
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(secs));
    }
    response
}

/// A text for people.
pub fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    whole(status, "text/plain; charset=utf-8", text.into())
}

/// A body that is ready to be sent.
pub(super) fn whole(status: StatusCode, content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(bytes).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn written(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response<Body> {
    match serde_json::to_vec(body) {
        Ok(bytes) => whole(status, content_type, bytes.into()),
        Err(error) => {
            // Our own types always serialize; if one ever does not, that is a fault of ours and no reason to panic.
            tracing::error!(%error, "an answer could not be written as JSON");
            text(StatusCode::INTERNAL_SERVER_ERROR, "an answer could not be written as JSON")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Code;

    #[test]
    fn retry_after_rounds_up_to_at_least_a_second_and_stands_where_it_should() {
        for (code, ns, header) in [
            (Code::Denied, Some(6_000_000_001), Some("7")),
            (Code::Overloaded, None, Some("1")),
            (Code::NoQuorum, Some(1), Some("1")),
            (Code::BadRequest, None, None),
        ] {
            let retry_after_ms = ns.map(Millis::up_from_ns);
            let response = problem(&Problem { retry_after_ms, ..Problem::new(code, "") });
            let found = response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap());
            assert_eq!(found, header, "{code}");
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        }
    }
}
