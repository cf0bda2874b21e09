//! `POST /acquire`: the hot path. Reads, asks the cluster, answers; the parts are in `ask.rs` and `answer.rs`.

use super::answer::{self, Tally};
use super::app::App;
use super::{ask, body, respond};
use crate::api::{AcquireRequest, AcquireResponse, Problem};
use crate::clock::Stopwatch;
use crate::node::Failure;
use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderMap;
use std::sync::Arc;
use tokio::time::timeout;

/// Ask for a permit.
///
/// Decided by the whole cluster, whichever node is asked. The content type is not looked at: the body is JSON.
#[utoipa::path(
    post,
    path = "/acquire",
    request_body = AcquireRequest,
    params((
        "Idempotency-Key" = Option<String>,
        Header,
        description = "The `request_id`, for clients that send it in a header. If both are sent they have to be equal."
    )),
    responses(
        (
            status = 200,
            description = "A permit. Start no earlier than `wait_ms` after this answer was received.",
            body = AcquireResponse,
            headers(
                ("RateLimit-Policy" = String, description = "The limit, as in draft-ietf-httpapi-ratelimit-headers-10"),
                ("RateLimit" = String, description = "What is left of it, and when it is as new"),
                ("Quorate-Leader" = String, description = "The leader's address, if another node answers")
            )
        ),
        (
            status = 429,
            description = "`denied`: over the limit. Linearizable, nothing consumed.",
            body = Problem,
            content_type = "application/problem+json",
            headers(
                ("Retry-After" = u64, description = "Whole seconds, rounded up"),
                ("RateLimit-Policy" = String, description = "The limit"),
                ("RateLimit" = String, description = "Nothing left, and when to ask again")
            )
        ),
        (
            status = 400,
            description = "`bad_request`: cannot be read. Nothing consumed.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 404,
            description = "`no_limit`: neither the request nor a policy says what the limit is. Nothing consumed.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 409,
            description = "`expired`: decided too late to be used. The slot is spent.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 413,
            description = "`too_large`: the body or the key. Nothing consumed.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 422,
            description = "`never`: no state could ever grant it; `request_id_reused`: same id, other request. Nothing consumed.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `overloaded`, `shutting_down`, `too_many_keys`: certainly not applied.",
            body = Problem,
            content_type = "application/problem+json",
            headers(("Retry-After" = u64, description = "Whole seconds, rounded up"))
        ),
        (
            status = 504,
            description = "`outcome_unknown`: may or may not have been applied. Retry with the same `request_id`.",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn acquire(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match body::read(&parts, body, &app.options).await {
        Ok(bytes) => {
            let watch = Stopwatch::start();
            let (response, tally) = decide(&app, &parts.headers, &bytes).await;
            app.meters.acquired(tally, watch.elapsed());
            response
        }
        Err(error) => {
            app.meters.error.increment(1);
            error.response(&app.options)
        }
    }
}

async fn decide(app: &App, headers: &HeaderMap, body: &[u8]) -> (Response, Tally) {
    let asked = match ask::read(body, headers) {
        Ok(asked) => asked,
        Err(problem) => return (respond::problem(&problem), Tally::Error),
    };
    let verdict = timeout(app.options.request_timeout, app.upstream.acquire(asked.acquire.clone()));
    match verdict.await.unwrap_or_else(|_| Err(no_word())) {
        Ok(verdict) => answer::verdict(asked, verdict),
        Err(failure) => (answer::failure(&asked.key, failure), Tally::Error),
    }
}

/// The node should have given up by itself long ago; whatever it did with the request, nobody can tell.
fn no_word() -> Failure {
    Failure::Unknown { detail: "the node did not come to a decision in time".to_owned() }
}
