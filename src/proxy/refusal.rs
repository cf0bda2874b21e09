//! What a client is told in place of an answer of the upstream: problem documents like those of a node.
//!
//! What the cluster said is passed on in its own words. What only a proxy can say has codes of its own, `upstream_unreachable`
//! and `upstream_timeout`.

use crate::api::{Code, Problem, Reason};
use crate::client::Error;
use crate::edge::{self, Body};
use http::Response;
use serde::Serialize;
use std::time::Duration;

/// Why a request was not passed on, or came to nothing.
#[derive(Debug)]
pub(super) enum Refusal {
    /// No key can be made of the request.
    NoKey(String),
    /// As many are held as may be.
    Full(usize),
    /// It would be held for too long.
    TooLong(Box<Problem>),
    /// Nobody decides.
    Unavailable(Box<Problem>),
    /// The cluster refused the request as such.
    Refused(Box<Problem>),
    /// Every permit came too late to be used.
    Expired(u32),
    /// The client stopped in the middle of its body.
    SlowBody,
    /// The upstream does not take the request.
    Unreachable(String),
    /// The upstream does not answer.
    Silent(Duration),
    /// This process is on its way down.
    Stopping,
}

/// A problem whose code no node has.
#[derive(Serialize)]
struct Upstream<'a> {
    #[serde(rename = "type")]
    type_uri: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
}

impl Refusal {
    /// The word it is counted under.
    pub(super) const fn outcome(&self) -> &'static str {
        match self {
            Self::NoKey(_) => "no_key",
            Self::Full(_) => "overloaded",
            Self::TooLong(_) => "denied",
            Self::Unavailable(_) => "unavailable",
            Self::Refused(_) => "refused",
            Self::Expired(_) => "expired",
            Self::SlowBody => "slow_body",
            Self::Unreachable(_) => "upstream_unreachable",
            Self::Silent(_) => "upstream_timeout",
            Self::Stopping => "shutting_down",
        }
    }

    /// The answer.
    pub(super) fn response(&self) -> Response<Body> {
        match self {
            Self::NoKey(why) => edge::problem(&Problem::new(Code::BadRequest, why.clone())),
            Self::Full(most) => edge::problem(&Problem::new(
                Code::Overloaded,
                format!("{most} requests wait for their permits here already, and no more may"),
            )),
            Self::TooLong(problem) | Self::Unavailable(problem) | Self::Refused(problem) => edge::problem(problem),
            Self::SlowBody => {
                edge::problem(&Problem::new(Code::BadRequest, "the body of the request did not arrive in time"))
            }
            Self::Expired(times) => edge::problem(&Problem::new(
                Code::Overloaded,
                format!(
                    "{times} permits in a row came too late to be used: the start window of the limit is too short"
                ),
            )),
            Self::Unreachable(why) => edge::said(
                502,
                &Upstream {
                    type_uri: "urn:quorate:error:upstream_unreachable",
                    title: "The upstream does not take the request",
                    status: 502,
                    detail: why,
                    code: "upstream_unreachable",
                },
                None,
            ),
            Self::Silent(after) => edge::said(
                504,
                &Upstream {
                    type_uri: "urn:quorate:error:upstream_timeout",
                    title: "The upstream does not answer",
                    status: 504,
                    detail: &format!("no answer began within {after:?}; the request may have been carried out"),
                    code: "upstream_timeout",
                },
                None,
            ),
            Self::Stopping => edge::problem(&Problem::new(Code::ShuttingDown, "this proxy is on its way down")),
        }
    }
}

impl From<Error> for Refusal {
    /// Fail closed: where nobody decided, or nobody knows what was decided, nothing is passed on.
    fn from(error: Error) -> Self {
        match error {
            Error::RateLimited(problem) => Self::TooLong(problem),
            Error::Timeout { detail } => Self::TooLong(Box::new(Problem {
                reason: Some(Reason::WouldWaitTooLong),
                granted: Some(false),
                ..Problem::new(Code::Denied, detail)
            })),
            Error::Refused(problem) => Self::Refused(problem),
            Error::Unavailable { problem: Some(problem), .. } => Self::Unavailable(problem),
            Error::Unavailable { detail, .. } => {
                let detail = format!("no node of the cluster answers: {detail}");
                Self::Unavailable(Box::new(Problem::new(Code::NoLeader, detail)))
            }
            Error::OutcomeUnknown { detail, .. } => {
                let detail = format!("the cluster did not come to an answer, and nothing was passed on: {detail}");
                Self::Unavailable(Box::new(Problem::new(Code::NoQuorum, detail)))
            }
            // Nothing here works under a lease.
            other @ (Error::LeaseLost(_) | Error::Misuse(_)) => {
                Self::Unavailable(Box::new(Problem::new(Code::Internal, other.to_string())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Millis;

    #[test]
    fn each_has_its_status_and_says_when_to_come_back() {
        let far = Problem::denied("k", Reason::WouldWaitTooLong, Millis::up_from_ns(2_500_000_000), "far".to_owned());
        for (refusal, status, retry_after) in [
            (Refusal::NoKey("none".to_owned()), 400, None),
            (Refusal::Full(3), 503, Some("1")),
            (Refusal::TooLong(Box::new(far)), 429, Some("3")),
            (Refusal::SlowBody, 400, None),
            (Refusal::Unreachable("refused".to_owned()), 502, None),
            (Refusal::Silent(Duration::from_secs(1)), 504, None),
            (Refusal::Stopping, 503, Some("1")),
        ] {
            let response = refusal.response();
            assert_eq!(response.status().as_u16(), status, "{}", refusal.outcome());
            let found = response.headers().get("retry-after").map(|value| value.to_str().unwrap());
            assert_eq!(found, retry_after, "{}", refusal.outcome());
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
    }

    #[test]
    fn what_nobody_decided_is_not_passed_on() {
        let unknown = Error::OutcomeUnknown { detail: "lost".to_owned(), request_id: None };
        let silent = Error::Unavailable { detail: "refused".to_owned(), problem: None };
        for error in [unknown, silent] {
            assert_eq!(Refusal::from(error).response().status().as_u16(), 503);
        }
    }
}
