//! From what the cluster decided to the answer of `POST /acquire`.
//!
//! Rounding: waits up, deadlines down. Whatever is uncertain says so.

use super::ask::Asked;
use super::{limit, rate_limit, respond};
use crate::api::{self, AcquireResponse, AllOfResponse, Code, Millis, PermitResponse, Problem};
use crate::limiter::{Denial, Limit, Reason, Span};
use crate::node::{Failure, Refusal, Verdict};
use crate::state::{Grant, Outcome, Permit, Rule};
use axum::response::Response;
use serde::Serialize;

/// How an acquire is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tally {
    Granted,
    Denied,
    Replayed,
    Error,
}

/// What one request is answered, before it becomes a response of its own or a part of one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Permit(Box<AcquireResponse>),
    Permits(Box<AllOfResponse>),
    Problem(Box<Problem>),
}

impl Answer {
    fn is_granted(&self) -> bool {
        !matches!(self, Self::Problem(_))
    }
}

/// The response, and how it counts.
pub(super) fn verdict(asked: &Asked, verdict: &Verdict) -> (Response, Tally) {
    let answer = answer(asked, verdict, &verdict.outcome);
    let tally = tally(&answer, &verdict.outcome);
    let mut response = match &answer {
        Answer::Permit(permit) => respond::json(permit),
        Answer::Permits(permits) => respond::json(permits),
        Answer::Problem(problem) => respond::problem(problem),
    };
    rate_limit_headers(asked, &verdict.outcome, answer.is_granted(), &mut response);
    (response, tally)
}

/// How an answer counts.
pub(super) fn tally(answer: &Answer, outcome: &Outcome) -> Tally {
    match outcome {
        Outcome::Granted(grant) if answer.is_granted() => {
            if grant.replayed {
                Tally::Replayed
            } else {
                Tally::Granted
            }
        }
        Outcome::Denied { .. } => Tally::Denied,
        _ => Tally::Error,
    }
}

/// What one request is answered. `outcome` is the verdict's, or one of several in it.
pub(super) fn answer(asked: &Asked, verdict: &Verdict, outcome: &Outcome) -> Answer {
    let about = |by: usize, code: Code, detail: String| Problem::new(code, detail).about(asked.key(by));
    let problem = match outcome {
        Outcome::Granted(grant) if verdict.expired(grant) => {
            about(0, Code::Expired, expired(asked)).retry_after(Millis::ZERO)
        }
        Outcome::Granted(grant) => return granted(asked, grant, verdict.wait(grant)),
        Outcome::Denied { by, denial, rule } => denied(asked, *by, *denial, rule.as_deref()),
        Outcome::NoLimit { by } => {
            about(*by, Code::NoLimit, "the request brings no `limit`, and no stored policy matches the key".to_owned())
        }
        Outcome::Never { by, why } => about(*by, Code::Never, why.clone()),
        Outcome::RequestIdReused => about(
            0,
            Code::RequestIdReused,
            "the request id was used for another key, limit or cost; every request needs an id of its own".to_owned(),
        ),
        Outcome::TooManyKeys { retry_after } => {
            about(0, Code::TooManyKeys, "the cluster holds as many keys as it may; idle ones are forgotten".to_owned())
                .retry_after(up(*retry_after))
        }
        Outcome::TooManyRequestIds { retry_after } => about(
            0,
            Code::Overloaded,
            "the cluster remembers as many request ids as it may; old ones are forgotten".to_owned(),
        )
        .retry_after(up(*retry_after)),
        other => {
            tracing::error!(?other, "an acquire was decided as something else");
            Problem::new(Code::Internal, "the cluster decided something else; the node's log says more")
        }
    };
    Answer::Problem(Box::new(problem))
}

/// The answer when there is no decision.
pub(super) fn failure(key: &str, failure: Failure) -> Response {
    respond::problem(&failure_problem(failure).about(key))
}

/// A failure in the words of the wire.
pub(super) fn failure_problem(failure: Failure) -> Problem {
    match failure {
        Failure::Refused { refusal, detail, retry_after } => {
            let code = match refusal {
                Refusal::NoQuorum => Code::NoQuorum,
                Refusal::NoLeader => Code::NoLeader,
                Refusal::DiskFull => Code::DiskFull,
                Refusal::Overloaded => Code::Overloaded,
                Refusal::ShuttingDown => Code::ShuttingDown,
            };
            Problem::new(code, detail).retry_after(up(retry_after))
        }
        Failure::Unknown { detail } => {
            Problem::new(Code::OutcomeUnknown, format!("{detail}; only a retry with the same request_id is safe"))
        }
    }
}

pub(super) const fn up(span: Span) -> Millis {
    Millis::up_from_ns(span.0)
}

fn expired(asked: &Asked) -> String {
    let again = if asked.acquire.identity.is_some() { "ask again with a new request id" } else { "ask again" };
    format!("the decision came after the start window of its slot had closed; the slot is spent: {again}")
}

/// The limit that the key at `index` was decided by.
fn decided_by<'a>(asked: &'a Asked, index: usize, rule: Option<&'a Rule>) -> Option<&'a Limit> {
    rule.map(|rule| &rule.limit).or_else(|| asked.limit(index))
}

fn granted(asked: &Asked, grant: &Grant, wait: Span) -> Answer {
    let slot_ms = Millis::up_from_ns(grant.slot.0);
    let start_before_ms = grant.start_before.map(|span| Millis::down_from_ns(span.0));
    let mut permits = grant.permits().enumerate().map(|(index, permit)| one(asked, index, permit));
    if asked.all_of {
        return Answer::Permits(Box::new(AllOfResponse {
            granted: true,
            permits: permits.collect(),
            slot_ms,
            wait_ms: up(wait),
            start_before_ms,
            replayed: grant.replayed,
        }));
    }
    let PermitResponse { key, permit, policy, policy_revision, reserved, remaining, limit } =
        permits.next().unwrap_or_else(|| one(asked, 0, &grant.first));
    Answer::Permit(Box::new(AcquireResponse {
        granted: true,
        key,
        permit,
        policy,
        policy_revision,
        slot_ms,
        wait_ms: up(wait),
        start_before_ms,
        reserved,
        remaining,
        limit,
        replayed: grant.replayed,
    }))
}

/// What is said of one permit. The limit is echoed as the request wrote it, unless a stored policy had it.
fn one(asked: &Asked, index: usize, permit: &Permit) -> PermitResponse {
    let rule = permit.rule.as_deref();
    let spacing = matches!(decided_by(asked, index, rule), None | Some(Limit::Spacing(_)));
    PermitResponse {
        key: asked.key(index).to_owned(),
        permit: permit.number,
        policy: rule.map(|rule| rule.policy.to_string()),
        policy_revision: rule.map(|rule| rule.revision),
        reserved: permit.reserved,
        remaining: (!spacing).then_some(permit.remaining),
        limit: match rule {
            Some(rule) => Some(limit::canonical(&rule.limit)),
            None => asked.limits.get(index).cloned().flatten(),
        },
    }
}

fn denied(asked: &Asked, by: usize, denial: Denial, rule: Option<&Rule>) -> Problem {
    let detail = denied_detail(decided_by(asked, by, rule), denial);
    let mut problem = Problem::denied(asked.key(by), reason(denial.reason), up(denial.retry_after), detail);
    problem.policy = rule.map(|rule| rule.policy.to_string());
    problem.policy_revision = rule.map(|rule| rule.revision);
    problem.denied_by = asked.all_of.then(|| asked.key(by).to_owned());
    problem
}

/// Of several limits the headers tell of the one that has least left, or of the one that refused.
pub(super) fn rate_limit_headers(asked: &Asked, outcome: &Outcome, granted: bool, response: &mut Response) {
    let headers = response.headers_mut();
    match outcome {
        Outcome::Granted(grant) if granted => {
            let Some((index, permit)) = grant.permits().enumerate().min_by_key(|(_, permit)| permit.remaining) else {
                return;
            };
            let rule = permit.rule.as_deref();
            if let Some(limit) = decided_by(asked, index, rule) {
                let name = rule.map(|rule| rule.policy.as_ref());
                rate_limit::insert(headers, name, limit, permit.remaining, permit.reset_after);
            }
        }
        Outcome::Denied { by, denial, rule } => {
            let rule = rule.as_deref();
            if let Some(limit) = decided_by(asked, *by, rule) {
                rate_limit::insert(headers, rule.map(|rule| rule.policy.as_ref()), limit, 0, denial.retry_after);
            }
        }
        _ => {}
    }
}

fn denied_detail(limit: Option<&Limit>, denial: Denial) -> String {
    let retry_after_ms = up(denial.retry_after);
    let max_reserved = match limit {
        Some(Limit::Spacing(spacing)) => Some(spacing.max_reserved()),
        Some(Limit::Bucket(bucket)) => Some(bucket.max_reserved()),
        _ => None,
    };
    match (denial.reason, max_reserved) {
        (Reason::ReservationsFull, Some(0)) => {
            format!("no permit is free now, and max_reserved is 0; ask again in {retry_after_ms} ms")
        }
        (Reason::ReservationsFull, Some(max_reserved)) => {
            format!(
                "what was granted before takes the capacity beyond the {max_reserved} reservations this limit allows ahead; ask \
                 again in {retry_after_ms} ms",
            )
        }
        (Reason::ReservationsFull, None) => {
            format!("what was granted before takes all the capacity ahead; ask again in {retry_after_ms} ms")
        }
        (Reason::WouldWaitTooLong, _) => {
            format!("the slot lies farther ahead than max_wait_ms; in {retry_after_ms} ms it no longer will")
        }
        (Reason::NotFreeNow, _) => format!("no permit is free now; the next one is in {retry_after_ms} ms"),
        (Reason::WindowFull, _) => {
            format!("the window holds as much as it may; the oldest of it leaves in {retry_after_ms} ms")
        }
        (Reason::InFlightFull, _) => {
            format!(
                "as many as may be are in flight; the first leases end in {retry_after_ms} ms, unless they are renewed"
            )
        }
    }
}

const fn reason(reason: Reason) -> api::Reason {
    match reason {
        Reason::ReservationsFull => api::Reason::ReservationsFull,
        Reason::WouldWaitTooLong => api::Reason::WouldWaitTooLong,
        Reason::NotFreeNow => api::Reason::NotFreeNow,
        Reason::WindowFull => api::Reason::WindowFull,
        Reason::InFlightFull => api::Reason::InFlightFull,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ask;
    use crate::limiter::Time;
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    fn asked(body: &str) -> Asked {
        ask::read(body.as_bytes(), &HeaderMap::new()).unwrap()
    }

    fn a_grant() -> Grant {
        let first = Permit { number: 48_211, reserved: 1, remaining: 9, reset_after: Span(11_210_416_001), rule: None };
        Grant {
            slot: Time(86_400_123_500_001),
            stamp: Time(86_394_912_000_000),
            first,
            more: Vec::new(),
            start_before: Some(Span(5_460_200_999)),
            expires_at: Some(Time(86_400_373_500_001)),
            replayed: false,
        }
    }

    fn decided(outcome: Outcome) -> Verdict {
        Verdict { outcome, at: Time(86_400_123_500_001 - 5_210_416_001) }
    }

    async fn parts(response: Response) -> (u16, HeaderMap, Value) {
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (head.status.as_u16(), head.headers, serde_json::from_slice(&bytes).unwrap())
    }

    #[tokio::test]
    async fn a_grant_reads_as_documented() {
        let (response, tally) =
            verdict(&asked(r#"{"key":"github-token","limit":"1/6s"}"#), &decided(Outcome::Granted(a_grant())));
        let (status, headers, body) = parts(response).await;
        assert_eq!((status, tally), (200, Tally::Granted));
        assert_eq!(
            body,
            json!({"granted": true, "key": "github-token", "permit": 48211, "slot_ms": 86_400_123.501,
                   "wait_ms": 5210.417, "start_before_ms": 5460.2, "reserved": 1, "limit": "1/6s", "replayed": false})
        );
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["ratelimit-policy"], "\"spacing\";q=1;w=6");
        assert_eq!(headers["ratelimit"], "\"spacing\";r=1;t=12");
        assert!(!headers.contains_key("retry-after"));
    }

    #[tokio::test]
    async fn a_replay_counts_as_one_and_echoes_the_limit_as_it_was_written() {
        let grant = Grant { replayed: true, start_before: None, ..a_grant() };
        let body = r#"{"key":"k","limit":{"rate":"1/6s","max_reserved":3},"request_id":"a"}"#;
        let (response, tally) = verdict(&asked(body), &decided(Outcome::Granted(grant)));
        let (_, _, body) = parts(response).await;
        assert_eq!(tally, Tally::Replayed);
        assert_eq!(body["limit"], json!({"rate": "1/6s", "max_reserved": 3}));
        assert_eq!((&body["replayed"], body.get("start_before_ms")), (&json!(true), None));
    }

    #[tokio::test]
    async fn a_denial_reads_as_documented() {
        let denial = Denial { reason: Reason::ReservationsFull, retry_after: Span(6_000_000_001) };
        let (response, tally) =
            verdict(&asked(r#"{"key":"k","limit":"1/6s"}"#), &decided(Outcome::Denied { by: 0, denial, rule: None }));
        let (status, headers, body) = parts(response).await;
        assert_eq!((status, tally), (429, Tally::Denied));
        assert_eq!(
            body,
            json!({"type": "urn:quorate:error:denied", "title": "Over the limit", "status": 429,
                   "detail": "what was granted before takes the capacity beyond the 10 reservations this limit allows ahead; ask again in 6000.001 ms", "code": "denied",
                   "retry_after_ms": 6000.001, "granted": false, "key": "k", "reason": "reservations_full"})
        );
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(headers["retry-after"], "7");
        assert_eq!(headers["ratelimit-policy"], "\"spacing\";q=1;w=6");
        assert_eq!(headers["ratelimit"], "\"spacing\";r=0;t=7");
    }

    #[tokio::test]
    async fn every_other_outcome_has_its_status_and_code() {
        let retry_after = Span::from_secs(3);
        for (outcome, status, code, retry) in [
            (Outcome::NoLimit { by: 0 }, 404, "no_limit", None),
            (Outcome::Never { by: 0, why: "too much".to_owned() }, 422, "never", None),
            (Outcome::RequestIdReused, 422, "request_id_reused", None),
            (Outcome::TooManyKeys { retry_after }, 503, "too_many_keys", Some("3")),
            (Outcome::TooManyRequestIds { retry_after }, 503, "overloaded", Some("3")),
        ] {
            let (response, tally) = verdict(&asked(r#"{"key":"k"}"#), &decided(outcome));
            let (found, headers, body) = parts(response).await;
            assert_eq!((found, tally), (status, Tally::Error), "{body}");
            assert_eq!((&body["code"], &body["key"]), (&json!(code), &json!("k")));
            assert_eq!(headers.get("retry-after").map(|value| value.to_str().unwrap()), retry);
            assert!(!headers.contains_key("ratelimit"));
        }
    }

    #[tokio::test]
    async fn a_decision_that_came_too_late_is_no_grant() {
        let late = Verdict { at: Time(86_400_373_500_002), ..decided(Outcome::Granted(a_grant())) };
        let (response, tally) = verdict(&asked(r#"{"key":"k","limit":"1/6s","request_id":"a"}"#), &late);
        let (status, _, body) = parts(response).await;
        assert_eq!((status, tally, &body["code"]), (409, Tally::Error, &json!("expired")));
        assert!(body["detail"].as_str().unwrap().contains("new request id"), "{body}");
        assert_eq!(body.get("granted"), None);
    }

    #[tokio::test]
    async fn failures_keep_their_certainty() {
        for (refusal, code) in [
            (Refusal::NoQuorum, "no_quorum"),
            (Refusal::NoLeader, "no_leader"),
            (Refusal::DiskFull, "disk_full"),
            (Refusal::Overloaded, "overloaded"),
            (Refusal::ShuttingDown, "shutting_down"),
        ] {
            let refused = Failure::Refused { refusal, detail: "why".to_owned(), retry_after: Span(1) };
            let (status, headers, body) = parts(failure("k", refused)).await;
            assert_eq!((status, &body["code"], &body["retry_after_ms"]), (503, &json!(code), &json!(0.001)));
            assert_eq!(headers["retry-after"], "1");
        }
        let (status, headers, body) = parts(failure("k", Failure::Unknown { detail: "timed out".to_owned() })).await;
        assert_eq!((status, &body["code"]), (504, &json!("outcome_unknown")));
        assert!(!headers.contains_key("retry-after"));
    }
}
