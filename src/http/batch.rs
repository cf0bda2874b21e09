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
            description = "`no_quorum`, `no_leader`, `disk_full`, `overloaded`, `shutting_down`, `too_many_keys`: not applied.",
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
    let Read { batch, problems, atomic } = match read(&bytes, &parts.headers) {
        Ok(read) => read,
        Err(problem) => {
            app.meters.error.increment(1);
            return respond::problem(&problem);
        }
    };
    app.meters.error.increment(problems.len() as u64);
    if batch.is_empty() {
        return respond::json(&results(Vec::new(), problems));
    }
    let rule = if atomic { SeveralRule::AllOrNothing } else { SeveralRule::Each };
    let acquires = batch.iter().map(|asked| asked.acquire.clone()).collect();
    let command = Command::Several(Several { acquires, rule });
    let decided = timeout(app.options.request_timeout, app.upstream.decide(command)).await;
    match decided.unwrap_or_else(|_| Err(acquire::no_word())) {
        Ok(verdict) => respond_to(&app, (&batch, problems), atomic, &verdict, &watch),
        Err(failure) => {
            app.meters.error.increment(batch.len() as u64);
            respond::problem(&answer::failure_problem(failure))
        }
    }
}

/// A batch that makes sense as a whole.
struct Read {
    batch: Vec<Asked>,
    /// Requests that make no sense, each with its place; of an atomic batch there are none.
    problems: Vec<(usize, Box<Problem>)>,
    atomic: bool,
}

fn read(bytes: &[u8], headers: &HeaderMap) -> Result<Read, Refused> {
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
    let mut problems = Vec::new();
    let mut all = Vec::with_capacity(requests.len());
    for (index, mut request) in requests.into_iter().enumerate() {
        let placed = |mut problem: Refused| {
            problem.detail = format!("requests[{index}]: {}", problem.detail);
            problem.index = Some(index as u64);
            problem
        };
        let id = request.request_id.take().or_else(|| named.map(|name| format!("{name}#{index}")));
        let checked = if request.wait == Wait::Server {
            Err(bad_request("wait: `server` holds one answer for one slot; a batch is answered at once"))
        } else {
            ask::check(request, id.as_deref())
        };
        match checked {
            Ok(asked) => {
                keys += asked.limits.len();
                all.push(asked);
            }
            Err(problem) if atomic => return Err(placed(problem)),
            Err(problem) => problems.push((index, placed(problem))),
        }
    }
    if keys > BATCH_KEYS_MAX {
        let detail =
            format!("requests: at most {BATCH_KEYS_MAX} keys in all, with those of `all_of`; these are {keys}");
        return Err(refused(Code::TooLarge, detail));
    }
    Ok(Read { batch: all, problems, atomic })
}

/// All results in the order of the requests.
fn results(mut results: Vec<Answer>, problems: Vec<(usize, Box<Problem>)>) -> Results {
    for (index, problem) in problems {
        results.insert(index.min(results.len()), Answer::Problem(problem));
    }
    Results { results }
}

#[derive(Serialize)]
struct Results {
    results: Vec<Answer>,
}

fn respond_to(
    app: &App,
    (batch, problems): (&[Asked], Vec<(usize, Box<Problem>)>),
    atomic: bool,
    verdict: &Verdict,
    watch: &Stopwatch,
) -> Response {
    let Outcome::Several(outcomes) = &verdict.outcome else {
        return respond::problem(&Problem::new(Code::Internal, "the cluster decided something else"));
    };
    let took = watch.elapsed();
    let mut answers = Vec::with_capacity(batch.len());
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
                let mut response = respond::problem(&problem);
                answer::rate_limit_headers(asked, outcome, false, &mut response);
                return response;
            }
        }
        answers.push(answer);
    }
    respond::json_of_many(batch.len(), &results(answers, problems))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read_plain(body: &str) -> Result<Read, Refused> {
        read(body.as_bytes(), &HeaderMap::new())
    }

    #[test]
    fn a_batch_is_bounded_and_says_which_request_is_wrong() {
        let many = |count: usize, one: &str| format!(r#"{{"requests":[{}]}}"#, vec![one; count].join(","));
        assert_eq!(read_plain(&many(1_000, r#"{"key":"k"}"#)).unwrap().batch.len(), 1_000);
        let sixteen: Vec<_> = (0..16).map(|index| format!(r#"{{"key":"{index}"}}"#)).collect();
        let sixteen = format!(r#"{{"all_of":[{}]}}"#, sixteen.join(","));
        for (body, code, why) in [
            (r#"{"requests":[]}"#.to_owned(), Code::BadRequest, "at least one"),
            (many(1_001, r#"{"key":"k"}"#), Code::TooLarge, "at most 1000, this batch has 1001"),
            (many(300, &sixteen), Code::TooLarge, "these are 4800"),
            (
                r#"{"atomic":true,"requests":[{"key":"k"},{"key":""}]}"#.to_owned(),
                Code::BadRequest,
                "requests[1]: key: a key has",
            ),
            (r#"{"requests":[{"key":"k","cost":-1}]}"#.to_owned(), Code::BadRequest, "requests[0].cost: invalid"),
            (String::new(), Code::BadRequest, "a JSON object with `requests`"),
        ] {
            let problem = read_plain(&body).map(|_| ()).expect_err(&body);
            assert_eq!(problem.code, code, "{problem}");
            assert!(problem.detail.contains(why), "{problem}");
        }
    }

    /// "In order, each a 200 body or a problem": one that makes no sense does not spoil the others.
    #[test]
    fn requests_that_make_no_sense_have_their_place_among_the_results() {
        let body = r#"{"requests":[{"key":""},{"key":"a"},{"key":"b","wait":"server"},{"key":"c"},{"key":"d","limit":"0/s"}]}"#;
        let Read { batch, problems, .. } = read_plain(body).map_err(|problem| problem.detail).unwrap();
        let keys: Vec<_> = batch.iter().map(|asked| asked.key(0)).collect();
        let wrong: Vec<_> = problems.iter().map(|(index, problem)| (*index, problem.index)).collect();
        assert_eq!((keys, wrong), (vec!["a", "c"], vec![(0, Some(0)), (2, Some(2)), (4, Some(4))]));
        let granted = |key: &str| Answer::Problem(Box::new(Problem::new(Code::NoLimit, key)));
        let all = results(vec![granted("a"), granted("c")], problems).results;
        let details = all.iter().map(|answer| match answer {
            Answer::Problem(problem) => problem.detail.split(':').next().unwrap().to_owned(),
            _ => String::new(),
        });
        assert_eq!(details.collect::<Vec<_>>(), ["requests[0]", "a", "requests[2]", "c", "requests[4]"]);
    }

    #[test]
    fn the_header_names_every_request_that_has_no_id() {
        let mut headers = HeaderMap::new();
        headers.insert("idempotency-key", HeaderValue::from_static("x"));
        let body = br#"{"requests":[{"key":"k"},{"key":"k","request_id":"mine"},{"key":"k"}]}"#;
        let all = read(body, &headers).map_err(|problem| problem.detail).map(|read| read.batch).unwrap();
        let ids: Vec<_> = all.iter().map(|asked| asked.acquire.identity.unwrap().id).collect();
        let hash = crate::state::request_id_hash;
        assert_eq!(ids, [hash("x#0"), hash("mine"), hash("x#2")]);
    }
}
