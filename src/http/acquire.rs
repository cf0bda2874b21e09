//! `POST /acquire`: the hot path. Reads, asks the cluster, answers; the parts are in `ask.rs` and `answer.rs`.

use super::answer::{Tally, failure, verdict};
use super::app::App;
use super::{ask, body, respond};
use crate::api::{AcquireRequest, AcquireResponse, AllOfResponse, Code, Problem, Wait};
use crate::clock::Stopwatch;
use crate::edge::Hangup;
use crate::node::{Failure, Verdict};
use crate::state::{Acquire, Command, Identity};
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use serde::Serialize;
use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use utoipa::ToSchema;

/// Nearly every decision comes within this time. Until then nobody looks whether the client is still there.
pub(super) const SOON: Duration = Duration::from_millis(50);

/// A permit, or with `all_of` several.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it only says in the document what answers there are")]
enum OneOrAll {
    One(AcquireResponse),
    All(AllOfResponse),
}

/// Ask for a permit.
///
/// Decided by the whole cluster, whichever node is asked. The content type is not looked at: the body is JSON.
#[utoipa::path(
    post,
    path = "/acquire",
    tag = "permits",
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
            body = inline(OneOrAll),
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
            description = "`never`: can never be granted; `request_id_reused`: same id, other request. Nothing used.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`, `too_many_keys`: not applied.",
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
    answer(&app, request, None).await
}

/// Answers a request, whose client may be seen to go away.
pub(super) async fn answer<B>(app: &App, request: http::Request<B>, hangup: Option<&Hangup>) -> Response
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    let (parts, body) = request.into_parts();
    match body::read(&parts, body, &app.options).await {
        Ok(bytes) => decided(app, (&parts.headers, &bytes), hangup).await,
        Err(error) => {
            app.meters.error.increment(1);
            error.response(&app.options)
        }
    }
}

/// The same for a request that has been read, with as many of its headers as matter here.
pub(super) async fn decided(app: &App, request: (&HeaderMap, &[u8]), hangup: Option<&Hangup>) -> Response {
    let watch = Stopwatch::start();
    let (response, tally) = decide(app, request, hangup).await;
    app.meters.acquired(tally, watch.elapsed());
    response
}

async fn decide(app: &App, (headers, body): (&HeaderMap, &[u8]), hangup: Option<&Hangup>) -> (Response, Tally) {
    let asked = match ask::read(body, headers) {
        Ok(asked) => asked,
        Err(problem) => return (respond::problem(&problem), Tally::Error),
    };
    let decided = if asked.wait == Wait::Server {
        match hold(asked.acquire.clone()) {
            // Large, and not what nearly everybody asks for: apart, so that the others are small.
            Ok(acquire) => {
                Box::pin(async {
                    tokio::select! {
                        decided = app.upstream.acquire_held(acquire) => decided,
                        () = gone(hangup) => Err(nobody_there()),
                    }
                })
                .await
            }
            Err(problem) => return (respond::problem(&problem), Tally::Error),
        }
    } else {
        let mut decided = pin!(app.upstream.decide(Command::Acquire(asked.acquire.clone())));
        let soon = SOON.min(app.options.request_timeout);
        match timeout(soon, &mut decided).await {
            Ok(decided) => decided,
            Err(_) => Box::pin(late(decided, app.options.request_timeout.saturating_sub(soon), hangup)).await,
        }
    };
    match decided {
        Ok(decided) => verdict(&asked, &decided),
        Err(why) => (failure(asked.key(0), why), Tally::Error),
    }
}

/// The rest of a decision that does not come soon. A client that has gone meanwhile needs none.
async fn late(
    decided: impl Future<Output = Result<Verdict, Failure>>,
    within: Duration,
    hangup: Option<&Hangup>,
) -> Result<Verdict, Failure> {
    tokio::select! {
        biased;
        decided = decided => decided,
        () = gone(hangup) => Err(nobody_there()),
        () = sleep(within) => Err(no_word()),
    }
}

/// Resolves when the client has closed its connection: dropping what is held gives it back.
async fn gone(hangup: Option<&Hangup>) {
    match hangup {
        Some(hangup) => hangup.closed().await,
        None => std::future::pending().await,
    }
}

/// Nobody reads this; whatever was reserved is on its way back.
pub(super) fn nobody_there() -> Failure {
    Failure::Unknown { detail: "the client has closed the connection".to_owned() }
}

/// A request that is held has a claim of its own, by which only it can be withdrawn, and an id, by which it survives a change
/// of the leader.
fn hold(mut acquire: Acquire) -> Result<Acquire, Box<Problem>> {
    let mut random = [0; 24];
    getrandom::fill(&mut random).map_err(|error| {
        Box::new(Problem::new(Code::Internal, format!("the system has no random numbers: {error}")))
    })?;
    let (id, claim) = random.split_at(16);
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    acquire.claim = u64::try_from(number(claim)).unwrap_or(0).max(1);
    acquire.identity.get_or_insert(Identity { id: number(id), fingerprint: 0 });
    Ok(acquire)
}

/// The node should have given up by itself long ago; whatever it did with the request, nobody can tell.
pub(super) fn no_word() -> Failure {
    Failure::Unknown { detail: "the node did not come to a decision in time".to_owned() }
}
