//! One question to a cluster in trouble: what is retried, where, under which id, and what is said in the end.

use super::fake::{Act, Fake, grant, granted, nobody, problem};
use quorate::api::AcquireRequest;
use quorate::client::{Client, Error, Options};
use std::time::Duration;

fn client(nodes: &[&str]) -> Client {
    with(nodes, Duration::from_secs(30), Duration::from_secs(5))
}

/// One that gives up soon, where the nodes never decide.
fn impatient(nodes: &[&str]) -> Client {
    with(nodes, Duration::from_secs(2), Duration::from_secs(2))
}

fn with(nodes: &[&str], timeout: Duration, attempt_timeout: Duration) -> Client {
    Client::with(&Options { timeout, attempt_timeout, ..Options::new(nodes.iter().copied()) }).unwrap()
}

async fn acquire(client: &Client) -> Result<u64, Error> {
    client.request(AcquireRequest::new("k")).await.map(|permit| permit.grant.permit)
}

#[tokio::test]
async fn every_acquire_has_an_id_of_its_own() {
    let fake = Fake::new(vec![granted("0")]);
    let client = client(&[&fake.url]);
    assert_eq!((acquire(&client).await, acquire(&client).await), (Ok(7), Ok(7)));
    let ids = fake.request_ids();
    assert_ne!(ids[0], ids[1]);
    assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{ids:?}");
}

#[tokio::test]
async fn certain_refusals_go_to_the_next_node() {
    let follower = Fake::new(vec![problem(503, "no_leader")]);
    let leader = Fake::new(vec![granted("0")]);
    assert_eq!(acquire(&client(&[&nobody(), &follower.url, &leader.url])).await, Ok(7));
    assert_eq!((follower.asked().len(), leader.asked().len()), (1, 1));
}

#[tokio::test]
async fn an_election_is_waited_for() {
    let fake = Fake::new(vec![problem(503, "no_leader"), problem(503, "no_quorum"), granted("0")]);
    assert_eq!(acquire(&client(&[&fake.url])).await, Ok(7));
    assert_eq!(fake.asked().len(), 3);
}

#[tokio::test]
async fn an_unknown_outcome_is_asked_for_again_under_the_same_id() {
    let garbage = |body: &str| Act::Answer(200, Vec::new(), body.to_owned());
    for act in [
        Act::HangUp,
        Act::Silence,
        problem(504, "outcome_unknown"),
        problem(500, "internal"),
        garbage("<html>welcome</html>"),
        garbage(r#"{"granted":true,"key":"k""#),
        garbage(r#"{"granted":true,"key":"k","permit":-1,"slot_ms":0,"wait_ms":0,"reserved":0}"#),
        garbage(r#"{"granted":true,"key":"k","permit":7,"slot_ms":0,"wait_ms":-5,"reserved":0}"#),
        garbage(""),
    ] {
        let lost = Fake::new(vec![act.clone()]);
        let other = Fake::new(vec![granted("0")]);
        // Only silence takes as long as an attempt may.
        let attempt = if matches!(act, Act::Silence) { Duration::from_secs(1) } else { Duration::from_secs(5) };
        let client = with(&[&lost.url, &other.url], Duration::from_secs(30), attempt);
        assert_eq!(acquire(&client).await, Ok(7), "{act:?}");
        assert_eq!(lost.request_ids(), other.request_ids(), "{act:?}");
    }
}

/// Doubt sticks: a later "certainly not applied" speaks of its own attempt only.
#[tokio::test]
async fn doubt_is_not_washed_away_by_a_certain_refusal() {
    let fake = Fake::new(vec![Act::HangUp, problem(503, "no_quorum")]);
    let error = acquire(&impatient(&[&fake.url])).await.unwrap_err();
    let ids = fake.request_ids();
    assert!(matches!(&error, Error::OutcomeUnknown { request_id: Some(id), .. } if *id == ids[0]), "{error:?}");
    assert!(ids.iter().all(|id| *id == ids[0]));
}

#[tokio::test]
async fn without_doubt_nobody_deciding_is_certain() {
    let fake = Fake::new(vec![problem(503, "no_quorum")]);
    let error = acquire(&impatient(&[&fake.url])).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable { detail, .. } if detail.ends_with("said no_quorum")), "{error:?}");
    assert_eq!(error.problem().map(|problem| problem.status), Some(503));
    // With nobody there at all, long before the deadline.
    let patient = client(&[&nobody(), &nobody()]);
    let error = tokio::time::timeout(Duration::from_secs(25), acquire(&patient)).await.expect("quickly").unwrap_err();
    assert!(matches!(&error, Error::Unavailable { problem: None, .. }), "{error:?}");
}

/// A 503 of something in between proves nothing: it may have passed the request on.
#[tokio::test]
async fn only_a_node_can_say_that_nothing_was_consumed() {
    let proxy = Fake::new(vec![Act::Answer(503, Vec::new(), "<html>busy</html>".to_owned())]);
    let error = acquire(&impatient(&[&proxy.url])).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
}

#[tokio::test]
async fn decisions_are_final() {
    for (act, denied) in [
        (problem(429, "denied"), true),
        (problem(422, "never"), false),
        (problem(409, "expired"), false),
        (problem(404, "no_limit"), false),
        (problem(400, "bad_request"), false),
        (problem(418, "of_tomorrow"), false),
    ] {
        let fake = Fake::new(vec![act]);
        let error = acquire(&client(&[&fake.url, &nobody()])).await.unwrap_err();
        assert!(
            if denied { matches!(error, Error::RateLimited(_)) } else { matches!(error, Error::Refused(_)) },
            "{error:?}"
        );
        assert_eq!(fake.asked().len(), 1);
    }
    let full = Fake::new(vec![problem(503, "too_many_keys")]);
    assert!(matches!(acquire(&client(&[&full.url])).await, Err(Error::Unavailable { .. })));
    assert_eq!(full.asked().len(), 1, "the whole cluster decided that");
}

#[tokio::test]
async fn the_leader_is_remembered() {
    let leader = Fake::new(vec![granted("0")]);
    let hint = vec![("quorate-leader", leader.url.clone())];
    let follower = Fake::new(vec![Act::Answer(200, hint, grant("0", ""))]);
    let client = client(&[&follower.url, &leader.url]);
    for _ in 0..3 {
        assert_eq!(acquire(&client).await, Ok(7));
    }
    assert_eq!((follower.asked().len(), leader.asked().len()), (1, 2));
}

#[tokio::test]
async fn keys_are_encoded_and_reads_are_repeated() {
    let body = r#"{"key":"a/ü?","limit":"1/6s","now_ms":1,"next_ms":2,"reserved":1,"remaining":9,"in_flight":0,"permit":7,
        "retry_after_ms":0}"#;
    let fake = Fake::new(vec![Act::HangUp, Act::Answer(200, Vec::new(), body.to_owned())]);
    assert_eq!(client(&[&fake.url]).peek("a/ü?").await.map(|key| key.permit), Ok(7));
    assert_eq!(fake.asked(), ["GET /keys/a%2F%C3%BC%3F HTTP/1.1\n"; 2]);
    let silent = Fake::new(vec![Act::Silence]);
    let error = impatient(&[&silent.url]).peek("k").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "a read changes nothing, so nothing is in doubt: {error:?}");
}
