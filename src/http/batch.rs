//! `POST /acquire/batch`: up to a thousand requests in one command.

use super::answer::{self, Answer, Tally};
use super::app::App;
use super::ask::{self, Asked, Refused, bad_request, refused};
use super::{acquire, body, respond};
use crate::api::{BatchRequest, BatchResponse, Code, Problem, Wait};
use crate::clock::Stopwatch;
use crate::limits::{BATCH_BODY_BYTES_MAX, BATCH_KEYS_MAX, BATCH_REQUESTS_MAX};
use crate::node::Verdict;
use crate::state::{Command, Outcome, Several, SeveralRule};
use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderMap;
use serde::Serialize;
use std::sync::Arc;
use tokio::time::timeout;

/// Ask for many permits.
///
/// Decided in order, in one log entry. Each result is what `POST /acquire` would have answered. With `atomic` either all are
/// granted or none: then the answer is the problem of the first that was not, with its `index`.
#[utoipa::path(
    post,
    path = "/acquire/batch",
    tag = "permits",
    request_body = BatchRequest,
    params((
        "Idempotency-Key" = Option<String>,
        Header,
        description = "Names the whole batch: requests without a `request_id` get this one, `#` and their index."
    )),
    responses(
        (status = 200, description = "One result for each request, in order", body = BatchResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "`no_limit`, of an atomic batch", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`expired`, of an atomic batch", body = Problem, content_type = "application/problem+json"),
        (
            status = 413,
            description = "`too_large`: more than 1,000 requests, or the body",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 422,
            description = "`never` or `request_id_reused`, of an atomic batch",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 429,
            description = "`denied`, of an atomic batch: nothing consumed by any of them",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 503,
            description = "`no_quorum`, `no_leader`, `overloaded`, `shutting_down`, `too_many_keys`: not applied.",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 504,
            description = "`outcome_unknown`: may or may not have been applied. Retry with the same ids.",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn batch(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes = match body::read_up_to(BATCH_BODY_BYTES_MAX, &parts, body, &app.options).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(&app.options),
    };
    let watch = Stopwatch::start();
    let (batch, atomic) = match read(&bytes, &parts.headers) {
        Ok(read) => read,
        Err(problem) => {
            app.meters.error.increment(1);
            return respond::problem(&problem);
        }
    };
    let rule = if atomic { SeveralRule::AllOrNothing } else { SeveralRule::Each };
    let acquires = batch.iter().map(|asked| asked.acquire.clone()).collect();
    let command = Command::Several(Several { acquires, rule });
    let decided = timeout(app.options.request_timeout, app.upstream.decide(command)).await;
    match decided.unwrap_or_else(|_| Err(acquire::no_word())) {
        Ok(verdict) => respond_to(&app, &batch, atomic, &verdict, &watch),
        Err(failure) => {
            app.meters.error.increment(batch.len() as u64);
            respond::problem(&answer::failure_problem(failure))
        }
    }
}

fn read(bytes: &[u8], headers: &HeaderMap) -> Result<(Vec<Asked>, bool), Refused> {
    let BatchRequest { requests, atomic } = ask::parse(bytes, "`requests`")?;
    if requests.is_empty() {
        return Err(bad_request("requests: at least one"));
    }
    if requests.len() > BATCH_REQUESTS_MAX {
        let detail = format!("requests: at most {BATCH_REQUESTS_MAX}, this batch has {}", requests.len());
        return Err(refused(Code::TooLarge, detail));
    }
    let named = ask::idempotency_key(headers)?;
    let mut keys = 0;
    let mut all = Vec::with_capacity(requests.len());
    for (index, mut request) in requests.into_iter().enumerate() {
        let placed = |mut problem: Refused| {
            problem.detail = format!("requests[{index}]: {}", problem.detail);
            problem.index = Some(index as u64);
            problem
        };
        let id = request.request_id.take().or_else(|| named.map(|name| format!("{name}#{index}")));
        if request.wait == Wait::Server {
            return Err(placed(bad_request(
                "wait: `server` holds one answer for one slot; a batch is answered at once",
            )));
        }
        let asked = ask::check(request, id.as_deref()).map_err(placed)?;
        keys += asked.limits.len();
        all.push(asked);
    }
    if keys > BATCH_KEYS_MAX {
        let detail =
            format!("requests: at most {BATCH_KEYS_MAX} keys in all, with those of `all_of`; these are {keys}");
        return Err(refused(Code::TooLarge, detail));
    }
    Ok((all, atomic))
}

#[derive(Serialize)]
struct Results {
    results: Vec<Answer>,
}

fn respond_to(app: &App, batch: &[Asked], atomic: bool, verdict: &Verdict, watch: &Stopwatch) -> Response {
    let Outcome::Several(outcomes) = &verdict.outcome else {
        return respond::problem(&Problem::new(Code::Internal, "the cluster decided something else"));
    };
    let took = watch.elapsed();
    let mut results = Vec::with_capacity(batch.len());
    for (index, (asked, outcome)) in batch.iter().zip(outcomes).enumerate() {
        if *outcome == Outcome::Skipped {
            continue;
        }
        let answer = answer::answer(asked, verdict, outcome);
        let tally = answer::tally(&answer, outcome);
        app.meters.acquired(tally, took);
        if let (Answer::Problem(problem), true) = (&answer, atomic) {
            let problem = Problem { index: Some(index as u64), ..problem.as_ref().clone() };
            if tally != Tally::Granted {
                return respond::problem(&problem);
            }
        }
        results.push(answer);
    }
    respond::json(&Results { results })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read_plain(body: &str) -> Result<(Vec<Asked>, bool), Refused> {
        read(body.as_bytes(), &HeaderMap::new())
    }

    #[test]
    fn a_batch_is_bounded_and_says_which_request_is_wrong() {
        let many = |count: usize, one: &str| format!(r#"{{"requests":[{}]}}"#, vec![one; count].join(","));
        assert_eq!(read_plain(&many(1_000, r#"{"key":"k"}"#)).unwrap().0.len(), 1_000);
        let sixteen: Vec<_> = (0..16).map(|index| format!(r#"{{"key":"{index}"}}"#)).collect();
        let sixteen = format!(r#"{{"all_of":[{}]}}"#, sixteen.join(","));
        for (body, code, why) in [
            (r#"{"requests":[]}"#.to_owned(), Code::BadRequest, "at least one"),
            (many(1_001, r#"{"key":"k"}"#), Code::TooLarge, "at most 1000, this batch has 1001"),
            (many(300, &sixteen), Code::TooLarge, "these are 4800"),
            (r#"{"requests":[{"key":"k"},{"key":""}]}"#.to_owned(), Code::BadRequest, "requests[1]: key: a key has"),
            (r#"{"requests":[{"key":"k","cost":-1}]}"#.to_owned(), Code::BadRequest, "requests[0].cost: invalid"),
            (r#"{"requests":[{"key":"k","wait":"server"}]}"#.to_owned(), Code::BadRequest, "requests[0]: wait:"),
            (String::new(), Code::BadRequest, "a JSON object with `requests`"),
        ] {
            let problem = read_plain(&body).expect_err(&body);
            assert_eq!(problem.code, code, "{problem}");
            assert!(problem.detail.contains(why), "{problem}");
        }
    }

    #[test]
    fn the_header_names_every_request_that_has_no_id() {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("x"));
        let body = br#"{"requests":[{"key":"k"},{"key":"k","request_id":"mine"},{"key":"k"}]}"#;
        let (all, _) = read(body, &headers).unwrap();
        let ids: Vec<_> = all.iter().map(|asked| asked.acquire.identity.unwrap().id).collect();
        let hash = crate::state::request_id_hash;
        assert_eq!(ids, [hash("x#0"), hash("mine"), hash("x#2")]);
    }
}
