//! `GET /keys/{key}/history` and `GET /history`: what this node remembers, from its own disk.
//!
//! Reads block, so they run apart, a few at a time; one that hangs keeps its place and nothing else.

use super::app::App;
use super::query::{Query, decoded};
use super::utc::rfc3339;
use super::{ask, respond};
use crate::api::{
    Code, DenialLine, HistoryResponse, KeyHistoryResponse, KeyUsage, Millis, PermitLine, PermitOutcome, PolicyUsage,
    Problem, UsageBucket, UsageTotal,
};
use crate::history::{Bucket, Denied, Depth, History, KeyHistory, Permit, Unavailable, Usage};
use axum::extract::State;
use axum::response::Response;
use http::Uri;
use std::sync::Arc;
use tokio::time::timeout;

/// Reads of the history at once.
pub(super) const READERS_MAX: usize = 4;
/// Most permits, and most denials, in an answer.
const LIMIT_MAX: u64 = 1_000;
const LIMIT_DEFAULT: u64 = 100;
/// An hour of seconds and a week of minutes: no more is kept.
const SECONDS_MAX: u64 = 3_600;
const SECONDS_DEFAULT: u64 = 300;
const MINUTES_MAX: u64 = 10_080;
const MINUTES_DEFAULT: u64 = 180;
/// Most policies, and most keys, in an answer.
const TOP_MAX: u64 = 1_000;
const TOP_DEFAULT: u64 = 20;

/// What this node remembers of a key.
///
/// Its own memory, written after the fact: not linearizable, possibly behind, and with gaps where it was down or busy.
#[utoipa::path(
    get,
    path = "/keys/{key}/history",
    tag = "history",
    params(
        ("key" = String, Path, description = "The key, percent-encoded"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "Most permits, and most denials; 100 unless said"),
        ("seconds" = Option<u64>, Query, maximum = 3600, description = "Seconds of usage; 300 unless said"),
        ("minutes" = Option<u64>, Query, maximum = 10080, description = "Minutes of usage; 180 unless said")
    ),
    responses(
        (status = 200, description = "What is remembered; empty lists for a key that is not", body = KeyHistoryResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "`too_large`: the key", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`history_unavailable`, `overloaded`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn key(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let asked = key_in(uri.path()).and_then(|key| Ok((key, depth(uri.query())?)));
    let (key, depth) = match asked {
        Ok(asked) => asked,
        Err(problem) => return respond::problem(&problem),
    };
    let text = key.as_str().to_owned();
    match read(&app, move |history| history.key(&key, &depth)).await {
        Ok(found) => respond::json(&key_rendered(text, found)),
        Err(problem) => respond::problem(&problem.about(text)),
    }
}

/// Usage over the last hour: in all, by policy, and the busiest keys.
///
/// This node's own memory, like the history of a key. The hour is one of cluster time and ends with the last entry that was
/// recorded.
#[utoipa::path(
    get,
    path = "/history",
    tag = "history",
    params(
        ("policy" = Option<String>, Query, description = "Only what this policy decided"),
        ("top" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "Most policies, and most keys; 20 unless said")
    ),
    responses(
        (status = 200, description = "The last hour", body = HistoryResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 503,
            description = "`history_unavailable`, `overloaded`",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn usage(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let asked = Query::read(uri.query(), &["policy", "top"])
        .and_then(|query| Ok((query.text("policy").map(str::to_owned), query.number("top", TOP_DEFAULT, 1, TOP_MAX)?)));
    let (policy, top) = match asked {
        Ok(asked) => asked,
        Err(problem) => return respond::problem(&problem),
    };
    match read(&app, move |history| history.usage(policy.as_deref(), count(top))).await {
        Ok(found) => respond::json(&usage_rendered(found)),
        Err(problem) => respond::problem(&problem),
    }
}

/// Puts a question to the history, apart from the tasks that answer workers.
pub(super) async fn read<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&History) -> Result<T, Unavailable> + Send + 'static,
) -> Result<T, Problem> {
    let Some(history) = app.options.history.clone() else {
        return Err(Problem::new(Code::HistoryUnavailable, "this node keeps no history: `history` is off"));
    };
    let answer = async {
        let place = Arc::clone(&app.history_readers).acquire_owned().await.map_err(|error| failed(&error))?;
        let reading = tokio::task::spawn_blocking(move || {
            let answer = question(&history);
            drop(place);
            answer
        });
        reading.await.map_err(|error| failed(&error))?.map_err(|Unavailable(why)| unavailable(&why))
    };
    match timeout(app.options.request_timeout, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(Problem::new(Code::Overloaded, "the history did not answer in time")),
    }
}

fn unavailable(why: &str) -> Problem {
    Problem::new(Code::HistoryUnavailable, format!("this node has no history just now: {why}"))
}

fn failed(error: &impl std::fmt::Display) -> Problem {
    unavailable(&format!("reading it failed: {error}"))
}

/// The key between `/keys/` and `/history`.
fn key_in(path: &str) -> Result<crate::limiter::Key, Box<Problem>> {
    let encoded = path.strip_prefix("/keys/").and_then(|rest| rest.strip_suffix("/history")).unwrap_or_default();
    ask::key(&decoded(encoded, "key")?)
}

fn depth(query: Option<&str>) -> Result<Depth, Box<Problem>> {
    let query = Query::read(query, &["limit", "seconds", "minutes"])?;
    Ok(Depth {
        most: count(query.number("limit", LIMIT_DEFAULT, 1, LIMIT_MAX)?),
        seconds: query.number("seconds", SECONDS_DEFAULT, 0, SECONDS_MAX)?,
        minutes: query.number("minutes", MINUTES_DEFAULT, 0, MINUTES_MAX)?,
    })
}

/// A bounded number as a length.
pub(super) fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn key_rendered(key: String, found: KeyHistory) -> KeyHistoryResponse {
    KeyHistoryResponse {
        key,
        until_ms: Millis::down_from_ns(found.until.0),
        permits: found.permits.into_iter().map(permit).collect(),
        denied: found.denied.into_iter().map(denial).collect(),
        seconds: found.seconds.into_iter().map(bucket).collect(),
        minutes: found.minutes.into_iter().map(bucket).collect(),
    }
}

fn permit(permit: Permit) -> PermitLine {
    PermitLine {
        permit: permit.permit,
        slot_ms: Millis::up_from_ns(permit.slot.0),
        at_ms: Millis::down_from_ns(permit.at.0),
        cost: permit.cost,
        worker: permit.worker,
        policy: permit.policy,
        outcome: if permit.released { PermitOutcome::Released } else { PermitOutcome::Granted },
        recorded: rfc3339(permit.wall_ms),
    }
}

fn denial(denied: Denied) -> DenialLine {
    DenialLine {
        at_ms: Millis::down_from_ns(denied.at.0),
        cost: denied.cost,
        reason: denied.reason,
        worker: denied.worker,
        policy: denied.policy,
        recorded: rfc3339(denied.wall_ms),
    }
}

fn bucket(bucket: Bucket) -> UsageBucket {
    let Bucket { at, counts } = bucket;
    let at_ms = Millis::down_from_ns(at.0);
    UsageBucket { at_ms, granted: counts.granted, cost: counts.cost, denied: counts.denied }
}

fn usage_rendered(found: Usage) -> HistoryResponse {
    let total = found.total;
    HistoryResponse {
        since_ms: Millis::down_from_ns(found.since.0),
        until_ms: Millis::down_from_ns(found.until.0),
        total: UsageTotal { granted: total.granted, cost: total.cost, denied: total.denied },
        minutes: found.minutes.into_iter().map(bucket).collect(),
        policies: (found.policies.into_iter())
            .map(|(policy, counts)| PolicyUsage {
                policy,
                granted: counts.granted,
                cost: counts.cost,
                denied: counts.denied,
            })
            .collect(),
        keys: (found.keys.into_iter())
            .map(|(key, policy, counts)| KeyUsage {
                key: key.as_str().to_owned(),
                policy,
                granted: counts.granted,
                cost: counts.cost,
                denied: counts.denied,
            })
            .collect(),
        complete: found.complete,
    }
}
