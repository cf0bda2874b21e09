//! What one reply of one node means: settled, final, or a reason to ask another one. Pure.

use super::error::Error;
use super::exchange::Reply;
use super::settle::Sound;
use crate::api::{AcquireResponse, Code, Millis, Problem};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Why to ask another node.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) detail: String,
    /// Whether the attempt may have been applied.
    pub(super) in_doubt: bool,
    pub(super) retry_after: Option<Duration>,
    pub(super) problem: Option<Box<Problem>>,
}

impl Again {
    pub(super) fn new(detail: String) -> Self {
        Self { detail, in_doubt: false, retry_after: None, problem: None }
    }

    /// Whether the attempt certainly did nothing: it never left, or a node of ours says so.
    pub(super) fn is_certain(&self, sent: bool) -> bool {
        !self.in_doubt && (!sent || self.problem.is_some())
    }
}

#[derive(Debug)]
pub(super) enum Judgement<T> {
    Settled(T),
    Final(Error),
    Again(Again),
}

/// What one reply means. Only a node of ours can say that nothing was consumed: a 503 without our code comes from
/// something in between, which may well have passed the request on.
pub(super) fn judge<T: DeserializeOwned>(node: &str, reply: Reply, sound: Sound<'_, T>) -> Judgement<T> {
    let (status, body) = match reply {
        Reply::NotSent(why) => return Judgement::Again(Again::new(format!("{node}: {why}"))),
        Reply::Lost(why) => {
            return Judgement::Again(Again { in_doubt: true, ..Again::new(format!("{node}: {why}")) });
        }
        Reply::Answered { status, body, .. } => (status, body),
    };
    if status == 200 {
        let answer = serde_json::from_slice(&body).map_err(|error| error.to_string());
        return match answer.and_then(|answer| sound(&answer).map(|()| answer)) {
            Ok(answer) => Judgement::Settled(answer),
            Err(why) => {
                let detail = format!("{node}: an answer that no node of ours gives: {why}");
                Judgement::Again(Again { in_doubt: true, ..Again::new(detail) })
            }
        };
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        let detail = format!("{node}: status {status}, and not from a node of ours");
        return Judgement::Again(Again { in_doubt: !(400..500).contains(&status), ..Again::new(detail) });
    };
    let again = |in_doubt, problem: Problem| {
        Judgement::Again(Again {
            detail: format!("{node}: {}", problem.detail),
            in_doubt,
            retry_after: problem.retry_after_ms.map(Millis::duration),
            problem: Some(Box::new(problem)),
        })
    };
    match problem.code {
        Code::Denied => Judgement::Final(Error::RateLimited(Box::new(problem))),
        Code::NoQuorum | Code::NoLeader | Code::DiskFull | Code::Overloaded | Code::ShuttingDown => {
            again(false, problem)
        }
        // The whole cluster decided the first: another node says the same. The second is about one node, and asking until it
        // changes its mind would make people wait for nothing.
        Code::TooManyKeys | Code::HistoryUnavailable => Judgement::Final(Error::unavailable(problem)),
        Code::Unrecognized if status < 500 => Judgement::Final(Error::Refused(Box::new(problem))),
        Code::OutcomeUnknown | Code::Internal | Code::Unrecognized => again(true, problem),
        _ => Judgement::Final(Error::Refused(Box::new(problem))),
    }
}

/// A grant has to be one, and of the key that was asked for.
pub(super) fn is_of(grant: &AcquireResponse, key: &str) -> Result<(), String> {
    if !grant.granted {
        return Err("a grant that is none".to_owned());
    }
    if grant.key != key {
        return Err(format!("a grant of {:?}, and {key:?} was asked for", grant.key));
    }
    Ok(())
}

/// One result of a batch, which was asked for this key under this id.
pub(super) fn result_of(value: Value, key: &str, request_id: &str) -> Result<AcquireResponse, Error> {
    let unknown = |detail: String| Err(Error::OutcomeUnknown { detail, request_id: Some(request_id.to_owned()) });
    if value["granted"] == Value::Bool(true) {
        let grant = serde_json::from_value(value).map_err(|error| error.to_string());
        return grant
            .and_then(|grant| is_of(&grant, key).map(|()| grant))
            .or_else(|why| unknown(format!("a grant that no node of ours gives: {why}")));
    }
    let problem: Problem = match serde_json::from_value(value) {
        Ok(problem) => problem,
        Err(error) => return unknown(format!("a result that no node of ours gives: {error}")),
    };
    match problem.code {
        Code::Denied => Err(Error::RateLimited(Box::new(problem))),
        Code::NoQuorum
        | Code::NoLeader
        | Code::DiskFull
        | Code::Overloaded
        | Code::ShuttingDown
        | Code::TooManyKeys => Err(Error::unavailable(problem)),
        Code::OutcomeUnknown | Code::Internal => unknown(problem.detail),
        Code::Unrecognized if problem.status >= 500 => unknown(problem.detail),
        _ => Err(Error::Refused(Box::new(problem))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answered(status: u16, body: &str) -> Judgement<Value> {
        judge("n", Reply::Answered { status, body: body.as_bytes().to_vec(), leader: None }, &|_| Ok(()))
    }

    fn problem(code: Code) -> String {
        serde_json::to_string(&Problem::new(code, "said so")).unwrap()
    }

    /// "503: certainly not applied; 504: may or may not have been applied", and everything in between.
    #[test]
    fn certainty_is_what_a_node_of_ours_says() {
        let doubt = |judgement| match judgement {
            Judgement::Again(again) => Some((again.in_doubt, again.is_certain(true))),
            Judgement::Settled::<Value>(_) | Judgement::Final(_) => None,
        };
        assert_eq!(doubt(answered(503, &problem(Code::NoQuorum))), Some((false, true)));
        assert_eq!(doubt(answered(504, &problem(Code::OutcomeUnknown))), Some((true, false)));
        assert_eq!(doubt(answered(500, &problem(Code::Internal))), Some((true, false)));
        assert_eq!(doubt(answered(503, "<html>")), Some((true, false)), "it may have passed the request on");
        assert_eq!(doubt(answered(404, "<html>")), Some((false, false)), "no doubt, but no word of ours either");
        assert_eq!(doubt(answered(200, "<html>")), Some((true, false)));
        for status in [201, 204, 302] {
            assert_eq!(doubt(answered(status, "")), Some((true, false)), "{status}: something else took it");
        }
        let unsound = Reply::Answered { status: 200, body: b"{}".to_vec(), leader: None };
        assert_eq!(doubt(judge("n", unsound, &|_| Err("not what was asked".to_owned()))), Some((true, false)));
        assert_eq!(doubt(judge("n", Reply::Lost("cut off".to_owned()), &|_| Ok(()))), Some((true, false)));
        assert_eq!(doubt(answered(429, &problem(Code::Denied))), None);
        let never_left = judge::<Value>("n", Reply::NotSent("refused".to_owned()), &|_| Ok(()));
        let Judgement::Again(never_left) = never_left else { panic!() };
        assert!(never_left.is_certain(false));
    }

    #[test]
    fn results_of_a_batch_are_judged_one_by_one() {
        let grant = json!({"granted":true,"key":"k","permit":7,"slot_ms":0,"wait_ms":0,"reserved":0});
        assert_eq!(result_of(grant.clone(), "k", "id").map(|grant| grant.permit), Ok(7));
        let other = result_of(grant, "other", "id");
        assert!(matches!(other, Err(Error::OutcomeUnknown { .. })), "not what was asked for: {other:?}");
        let result = |code| result_of(serde_json::to_value(Problem::new(code, "")).unwrap(), "k", "id");
        assert!(matches!(result(Code::Denied), Err(Error::RateLimited(_))));
        assert!(matches!(result(Code::NoQuorum), Err(Error::Unavailable { .. })));
        assert!(matches!(result(Code::Never), Err(Error::Refused(_))));
        for value in [json!(null), json!({"granted":true}), json!({"granted":false}), json!([1])] {
            let unknown = result_of(value.clone(), "k", "id");
            assert!(
                matches!(&unknown, Err(Error::OutcomeUnknown { request_id: Some(id), .. }) if id == "id"),
                "{value}: {unknown:?}"
            );
        }
        assert!(matches!(result(Code::OutcomeUnknown), Err(Error::OutcomeUnknown { .. })));
    }
}
