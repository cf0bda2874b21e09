//! The client and stored rules: what a lost answer means for a change, a release and a reset.

use super::fake::{Act, Fake, problem};
use super::rules::{Fault, Rules};
use quorate::api::{Code, Limit, PolicyRequest};
use quorate::client::{Client, Error, Options, Precondition};
use std::time::Duration;

fn client(fake: &Fake) -> Client {
    with(fake, Duration::from_secs(20), Duration::from_secs(5))
}

/// One that gives up soon, where the node never decides.
fn impatient(fake: &Fake) -> Client {
    with(fake, Duration::from_secs(2), Duration::from_secs(2))
}

fn with(fake: &Fake, timeout: Duration, attempt_timeout: Duration) -> Client {
    Client::with(&Options { timeout, attempt_timeout, ..Options::new([&fake.url]) }).unwrap()
}

fn policy(pattern: &str, limit: &str) -> PolicyRequest {
    PolicyRequest::new(pattern, limit_of(limit))
}

fn limit_of(text: &str) -> Limit {
    serde_json::from_value(text.into()).unwrap()
}

fn code(error: &Error) -> Option<Code> {
    error.problem().map(|problem| problem.code)
}

#[tokio::test]
async fn policies_are_put_read_and_deleted() {
    let rules = Rules::new(&[("a", "a:*", "1/6s")]);
    let client = client(&rules.fake);
    let put = client.put_policy("b", &policy("b", "1/s"), Some(Precondition::Absent)).await.unwrap();
    assert_eq!((put.name.as_str(), put.revision), ("b", 2));
    assert_eq!(client.put_policy("b", &policy("b", "1/s"), None).await.unwrap().revision, 2, "nothing changed");
    assert_eq!(client.policy("b").await, Ok(put));
    let put = client.put_policy("a", &policy("a:*", "1/3s"), Some(Precondition::Revision(1))).await.unwrap();
    assert_eq!((put.limit, put.revision), (limit_of("1/3s"), 3));
    assert_eq!(client.put_policy("a", &policy("a", "1/3s"), Some(Precondition::Exists)).await.unwrap().revision, 4);
    let all = client.policies().await.unwrap();
    assert_eq!((all.policies.len(), all.revision), (2, 4));
    assert_eq!(client.delete_policy("a", Some(4)).await.unwrap().revision, Some(5));
    assert_eq!(code(&client.policy("a").await.unwrap_err()), Some(Code::NoPolicy));
    assert_eq!(
        rules.changes(),
        [
            "PUT /policies/b if absent",
            "PUT /policies/b",
            "PUT /policies/a if \"1\"",
            "PUT /policies/a if *",
            "DELETE /policies/a if \"4\""
        ]
    );
}

#[tokio::test]
async fn refusals_are_final_where_nothing_was_lost() {
    let rules = Rules::new(&[("a", "a", "1/6s"), ("b", "b", "1/6s")]);
    let client = client(&rules.fake);
    for (name, pattern, precondition, wanted) in [
        ("a", "a", Some(Precondition::Revision(7)), Code::RevisionMismatch),
        ("a", "a", Some(Precondition::Absent), Code::RevisionMismatch),
        ("c", "c", Some(Precondition::Exists), Code::RevisionMismatch),
        ("c", "a", None, Code::PolicyConflict),
    ] {
        let error = client.put_policy(name, &policy(pattern, "1/s"), precondition).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)) && code(&error) == Some(wanted), "{error:?}");
    }
    assert_eq!(code(&client.delete_policy("c", None).await.unwrap_err()), Some(Code::NoPolicy));
    assert_eq!(code(&client.delete_policy("a", Some(7)).await.unwrap_err()), Some(Code::RevisionMismatch));
    assert_eq!(rules.changes().len(), 6, "none of them was repeated");
}

/// Applied, and the answer lost: the retry of a put with a precondition is refused, and a look shows that all is well.
#[tokio::test]
async fn a_lost_answer_to_a_put_is_found_out() {
    for precondition in [None, Some(Precondition::Revision(1)), Some(Precondition::Exists)] {
        for fault in [Fault::AnswerLost, Fault::RequestLost] {
            let rules = Rules::new(&[("a", "a", "1/6s")]).fault(0, fault.clone());
            let put = client(&rules.fake).put_policy("a", &policy("a", "1/s"), precondition).await;
            assert_eq!(put.unwrap().revision, 2, "{precondition:?} {fault:?}");
            assert_eq!(rules.stored(), ["a a 1/s"]);
        }
    }
    let rules = Rules::new(&[]).fault(0, Fault::AnswerLost);
    let put = client(&rules.fake).put_policy("a", &policy("a", "1/s"), Some(Precondition::Absent)).await;
    assert_eq!(put.unwrap().revision, 1);
}

/// Lost, and somebody else's content is there when asked again: nobody knows whether ours was there before it.
#[tokio::test]
async fn a_lost_put_and_somebody_elses_change_is_an_unknown_outcome() {
    let lost = || Rules::new(&[("a", "a", "1/6s")]).fault(0, Fault::RequestLost);
    let rules = lost().fault(1, Fault::Intruder("a", "other"));
    let client_ = client(&rules.fake);
    let error = client_.put_policy("a", &policy("a", "1/s"), Some(Precondition::Revision(1))).await.unwrap_err();
    assert!(matches!(&error, Error::OutcomeUnknown { request_id: None, .. }), "{error:?}");
    assert!(error.to_string().contains("said revision_mismatch"), "{error}");
    // The same where another policy takes the pattern.
    let rules = lost().fault(1, Fault::Intruder("b", "c"));
    let error = client(&rules.fake).put_policy("a", &policy("c", "1/s"), None).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    // And of a delete, where somebody else's is there afterwards.
    let rules = lost().fault(1, Fault::Intruder("a", "other"));
    let error = client(&rules.fake).delete_policy("a", Some(1)).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
}

#[tokio::test]
async fn a_lost_answer_to_a_delete_is_found_out() {
    for if_match in [None, Some(1)] {
        let rules = Rules::new(&[("a", "a", "1/6s")]).fault(0, Fault::AnswerLost);
        let removed = client(&rules.fake).delete_policy("a", if_match).await.unwrap();
        assert_eq!((removed.name.as_str(), removed.revision), ("a", None));
        let rules = Rules::new(&[("a", "a", "1/6s")]).fault(0, Fault::RequestLost);
        assert_eq!(client(&rules.fake).delete_policy("a", if_match).await.unwrap().revision, Some(2));
    }
}

#[tokio::test]
async fn a_change_that_nobody_answers_is_unknown_and_one_that_nobody_takes_is_not() {
    let silent = Fake::new(vec![Act::HangUp]);
    let error = impatient(&silent).put_policy("a", &policy("a", "1/s"), None).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { request_id: None, .. }), "{error:?}");
    let minority = Fake::new(vec![problem(503, "no_quorum")]);
    let error = impatient(&minority).delete_policy("a", None).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_release_is_repeated_and_says_what_it_may_have_done_before() {
    let answer = |released: bool, detail: &str| {
        let body = serde_json::json!({ "released": released, "key": "k", "permit": 7, "detail": detail });
        Act::Answer(200, Vec::new(), body.to_string())
    };
    let fake = Fake::new(vec![Act::HangUp, answer(false, "given back before")]);
    let late = client(&fake).release("k", 7).await.unwrap();
    assert!(!late.released);
    let detail = late.detail.unwrap();
    assert!(detail.starts_with("given back before (perhaps by an attempt whose answer was lost:"), "{detail}");
    let fake = Fake::new(vec![answer(false, "given back before")]);
    assert_eq!(client(&fake).release("k", 7).await.unwrap().detail.as_deref(), Some("given back before"));
    let fake = Fake::new(vec![problem(404, "no_permit")]);
    assert_eq!(code(&client(&fake).release("k", 7).await.unwrap_err()), Some(Code::NoPermit));
    assert_eq!(fake.asked(), ["POST /release HTTP/1.1\n{\"key\":\"k\",\"permit\":7}"]);
}

#[tokio::test]
async fn a_renewal_is_repeated() {
    let body = r#"{"renewed":true,"key":"k","permit":7,"lease_ms":30000,"start_before_ms":29970.0}"#;
    let fake = Fake::new(vec![Act::HangUp, Act::Answer(200, Vec::new(), body.to_owned())]);
    assert_eq!(client(&fake).renew("k", 7).await.unwrap().lease_ms.micros(), 30_000_000);
    assert_eq!(fake.asked(), ["POST /renew HTTP/1.1\n{\"key\":\"k\",\"permit\":7}"; 2]);
}

/// A second reset would forget what was granted after the first.
#[tokio::test]
async fn a_reset_is_never_repeated_in_doubt() {
    let done = Act::Answer(200, Vec::new(), r#"{"reset":true,"key":"k"}"#.to_owned());
    for lost in [Act::HangUp, Act::Silence, problem(504, "outcome_unknown")] {
        let fake = Fake::new(vec![lost, done.clone()]);
        // Only silence takes as long as an attempt may.
        let error = impatient(&fake).reset_key("k").await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { request_id: None, .. }), "{error:?}");
        assert_eq!(fake.asked(), ["DELETE /keys/k HTTP/1.1\n"]);
    }
    let fake = Fake::new(vec![problem(503, "no_leader"), done]);
    assert!(client(&fake).reset_key("k").await.unwrap().reset, "certainly not applied the first time");
}

/// Dots mean directories to whatever reads URLs: `DELETE /policies/..` would be `DELETE /`.
#[tokio::test]
async fn what_no_url_can_carry_is_not_sent() {
    let fake = Fake::new(vec![Act::HangUp]);
    let client = client(&fake);
    for name in ["", ".", ".."] {
        assert!(matches!(client.policy(name).await, Err(Error::Misuse(_))), "{name:?}");
        assert!(matches!(client.delete_policy(name, None).await, Err(Error::Misuse(_))), "{name:?}");
        assert!(matches!(client.reset_key(name).await, Err(Error::Misuse(_))), "{name:?}");
    }
    assert_eq!(fake.asked().len(), 0);
}
