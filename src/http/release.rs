//! `POST /release` and `POST /renew`: what a worker does with a permit it has.

use super::app::App;
use super::{acquire, answer, ask, body, respond};
use crate::api::{Code, Millis, Problem, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse};
use crate::node::Verdict;
use crate::state::{Command, Held, Outcome};
use axum::extract::{Request, State};
use axum::response::Response;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::time::timeout;

/// Give a permit back.
///
/// A slot that has not come yet is given back exactly, a lease ends. Doing it twice does no harm.
#[utoipa::path(
    post,
    path = "/release",
    tag = "permits",
    request_body = ReleaseRequest,
    responses(
        (status = 200, description = "Given back, or `released: false` when it was too late", body = ReleaseResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 404,
            description = "`no_permit`: no such permit was ever granted",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 413, description = "`too_large`: the body or the key", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`: not applied",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 504,
            description = "`outcome_unknown`: do it again",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn release(State(app): State<Arc<App>>, request: Request) -> Response {
    let read = |request: ReleaseRequest| (request.key, request.permit);
    let (held, verdict) = match put(&app, request, read, Command::Release).await {
        Ok(decided) => decided,
        Err(response) => return response,
    };
    let detail = "its slot has come, its lease has ended, it was given back before, or it is no permit of this key";
    match verdict.outcome {
        Outcome::Released(released) => respond::json(&ReleaseResponse {
            released,
            key: held.key.as_str().to_owned(),
            permit: held.permit,
            detail: (!released).then(|| detail.to_owned()),
        }),
        _ => no_permit(&held, "was never granted"),
    }
}

/// Extend the lease of a permit.
///
/// It then lasts as long as a new one. A lease that has ended cannot be renewed: stop, and ask for a new permit.
#[utoipa::path(
    post,
    path = "/renew",
    tag = "permits",
    request_body = RenewRequest,
    responses(
        (status = 200, description = "The lease lasts longer now", body = RenewResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 404,
            description = "`no_permit`: there is no such lease, or not any more",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 413, description = "`too_large`: the body or the key", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`: not applied",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 504,
            description = "`outcome_unknown`: do it again",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn renew(State(app): State<Arc<App>>, request: Request) -> Response {
    let read = |request: RenewRequest| (request.key, request.permit);
    let (held, verdict) = match put(&app, request, read, Command::Renew).await {
        Ok(decided) => decided,
        Err(response) => return response,
    };
    match verdict.outcome {
        Outcome::Renewed { lease, stop_before } => respond::json(&RenewResponse {
            renewed: true,
            key: held.key.as_str().to_owned(),
            permit: held.permit,
            lease_ms: Millis::down_from_ns(lease.0),
            start_before_ms: Millis::down_from_ns(stop_before.0),
        }),
        _ => no_permit(&held, "has no lease that still runs"),
    }
}

fn no_permit(held: &Held, what: &str) -> Response {
    let detail = format!("permit {} of this key {what}", held.permit);
    respond::problem(&Problem::new(Code::NoPermit, detail).about(held.key.as_str()))
}

/// Reads which permit is meant and puts the command to the cluster.
async fn put<T: DeserializeOwned>(
    app: &App,
    request: Request,
    read: impl FnOnce(T) -> (String, u64),
    command: impl FnOnce(Held) -> Command,
) -> Result<(Held, Verdict), Response> {
    let (parts, body) = request.into_parts();
    let bytes = body::read(&parts, body, &app.options).await.map_err(|error| error.response(&app.options))?;
    let read = ask::parse(&bytes, "a `key` and a `permit`").map(read);
    let held = read
        .and_then(|(key, permit)| Ok(Held { key: ask::key(&key)?, permit }))
        .map_err(|problem| respond::problem(&problem))?;
    let decided = timeout(app.options.request_timeout, app.upstream.decide(command(held.clone()))).await;
    match decided.unwrap_or_else(|_| Err(acquire::no_word())) {
        Ok(verdict) => Ok((held, verdict)),
        Err(failure) => Err(answer::failure(held.key.as_str(), failure)),
    }
}
