//! What becomes of an acquire, told by scripted nodes: dead permits, denials, patience, leads, memory.

use super::fake::{Act, Fake, Request, grant, granted, problem};
use quorate::client::{Ask, Client, Error, Lead, Options};
use quorate::clock::Stopwatch;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

pub(super) fn options(nodes: &[&Fake]) -> Options {
    let nodes = nodes.iter().map(|node| node.url.clone());
    Options { timeout: 30_000 * MS, attempt_timeout: 10_000 * MS, ..Options::new(nodes) }
}

pub(super) fn client(nodes: &[&Fake]) -> Client {
    Client::with(&options(nodes)).unwrap()
}

pub(super) fn ask() -> Ask {
    Ask::new("k").limit("1/6s")
}

pub(super) fn released() -> Act {
    Act::Answer(200, Vec::new(), r#"{"released":true,"key":"k","permit":7}"#.to_owned())
}

pub(super) fn denied(reason: &str, retry_after_ms: u32) -> Act {
    let body = format!(
        r#"{{"type":"urn:quorate:error:denied","title":"t","status":429,"detail":"full","code":"denied","granted":false,
            "key":"k","reason":"{reason}","retry_after_ms":{retry_after_ms}}}"#
    );
    Act::Answer(429, Vec::new(), body)
}

/// A node that takes permits back and follows a script for the rest.
pub(super) fn node(acts: Vec<Act>) -> Fake {
    let next = AtomicUsize::new(0);
    Fake::with(move |request| {
        if request.path == "/release" {
            return released();
        }
        acts[next.fetch_add(1, Ordering::Relaxed).min(acts.len() - 1)].clone()
    })
}

pub(super) fn body(request: &Request) -> Value {
    serde_json::from_str(&request.body).unwrap()
}

/// The bodies of all that was asked for.
pub(super) fn acquires(fake: &Fake) -> Vec<Value> {
    fake.requests().iter().filter(|request| request.path == "/acquire").map(body).collect()
}

fn id(body: &Value) -> &str {
    body["request_id"].as_str().unwrap()
}

/// "`start_before_ms`: discard the permit this long after you **first sent** the request." A retry is not the first.
#[tokio::test]
async fn the_deadline_counts_from_the_first_send_of_a_retried_request() {
    let silent = Fake::new(vec![Act::Silence]);
    // Shorter than the attempt that nobody answers, longer than one that somebody does.
    let short = Act::Answer(200, Vec::new(), grant("0", r#","start_before_ms":2900"#));
    let other = node(vec![short]);
    let client = Client::with(&Options { attempt_timeout: 3_000 * MS, ..options(&[&silent, &other]) }).unwrap();
    let pass = client.acquire(ask()).await.unwrap();
    assert_eq!(pass.number(), Some(7));
    client.quiet().await;
    let (first, then) = (acquires(&silent), acquires(&other));
    assert_eq!((first.len(), then.len()), (1, 2), "the first grant was dead, the second was not");
    assert_eq!(id(&first[0]), id(&then[0]), "the retry of a lost request keeps its id");
    assert_ne!(id(&then[0]), id(&then[1]), "a new request has its own id, and its own first send");
    let counters = client.counters();
    assert_eq!((counters.dead, counters.granted, counters.given_back), (1, 2, 1), "{counters:?}");
}

/// "503: certainly not applied." Then no entry of the log can carry that attempt, and the next one is the first.
#[tokio::test]
async fn an_attempt_that_was_certainly_refused_is_no_send() {
    let slow = Fake::with(|_| {
        thread::sleep(2_000 * MS);
        problem(503, "no_leader")
    });
    let other = node(vec![Act::Answer(200, Vec::new(), grant("0", r#","start_before_ms":1900"#))]);
    let client = client(&[&slow, &other]);
    client.acquire(ask()).await.unwrap();
    assert_eq!((client.counters().dead, acquires(&other).len()), (0, 1));
}

/// But where something in between may have passed it on, it is one.
#[tokio::test]
async fn doubt_keeps_the_first_send_whatever_comes_after() {
    let slow = Fake::with(|_| {
        thread::sleep(2_000 * MS);
        Act::Answer(503, Vec::new(), "<html>busy</html>".to_owned())
    });
    let other = node(vec![Act::Answer(200, Vec::new(), grant("0", r#","start_before_ms":1900"#))]);
    let client = client(&[&slow, &other]);
    client.acquire(ask()).await.unwrap();
    assert_eq!((client.counters().dead, acquires(&other).len()), (1, 2));
}

#[tokio::test]
async fn a_permit_that_will_be_dead_at_its_slot_is_given_back_at_once() {
    let late = Act::Answer(200, Vec::new(), grant("60000", r#","start_before_ms":59000"#));
    let fake = node(vec![late, granted("0")]);
    let client = client(&[&fake]);
    // Waiting for its slot first would take a minute.
    tokio::time::timeout(super::PATIENCE / 2, client.acquire(ask())).await.expect("at once").unwrap();
    client.quiet().await;
    assert_eq!((client.counters().dead, client.counters().given_back), (1, 1));
}

#[tokio::test]
async fn expired_is_asked_again_and_windows_too_short_are_told() {
    let fake = node(vec![problem(409, "expired"), granted("0")]);
    let one = client(&[&fake]);
    one.acquire(ask()).await.unwrap();
    assert_eq!((one.counters().dead, acquires(&fake).len()), (1, 2));
    let hopeless = node(vec![Act::Answer(200, Vec::new(), grant("1", r#","start_before_ms":0.5"#))]);
    let error = client(&[&hopeless]).acquire(ask()).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { detail } if detail.contains("too short")), "{error:?}");
    assert_eq!(acquires(&hopeless).len(), 10);
}

#[tokio::test]
async fn a_denied_acquire_waits_and_asks_again() {
    let fake = node(vec![denied("reservations_full", 40), denied("reservations_full", 40), granted("20")]);
    let client = client(&[&fake]);
    let began = Stopwatch::start();
    client.acquire(ask()).await.unwrap();
    assert!(began.elapsed() >= 100 * MS, "twice as long as the cluster said, and the wait for the slot");
    let counters = client.counters();
    assert_eq!((counters.denied, counters.granted, acquires(&fake).len()), (2, 1, 3));
}

#[tokio::test]
async fn who_has_no_patience_is_told_at_once() {
    let fake = node(vec![denied("would_wait_too_long", 60_000)]);
    let client = client(&[&fake]);
    let error = client.acquire(ask().max_wait(3_000 * MS)).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { detail } if detail.contains("full")), "{error:?}");
    let asked = acquires(&fake);
    assert_eq!(asked.len(), 1);
    assert!(asked[0]["max_wait_ms"].as_f64().unwrap() <= 3_000.0);
}

#[tokio::test]
async fn patience_ends_while_places_come_and_go() {
    let fake = node(vec![denied("in_flight_full", 30)]);
    let error = client(&[&fake]).acquire(ask().max_wait(3_000 * MS)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. } | Error::RateLimited(_)), "{error:?}");
    assert!(acquires(&fake).len() >= 2, "it was asked again before that");
}

#[tokio::test]
async fn try_acquire_wants_it_now_or_not_at_all() {
    let fake = node(vec![granted("0"), denied("not_free_now", 60_000)]);
    let client = client(&[&fake]);
    assert!(client.try_acquire(ask()).await.unwrap().is_some());
    assert!(client.try_acquire(ask()).await.unwrap().is_none());
    let asked = acquires(&fake);
    assert!(asked.iter().all(|body| body["wait"] == "none" && body.get("lead_ms").is_none()), "{asked:?}");
}

#[tokio::test]
async fn a_denial_is_remembered_until_it_is_worth_asking_again() {
    let fake = node(vec![denied("not_free_now", 60_000)]);
    let remembering = client(&[&fake]);
    for _ in 0..3 {
        assert!(remembering.try_acquire(ask()).await.unwrap().is_none());
    }
    assert_eq!((acquires(&fake).len(), remembering.counters().denied_from_memory), (1, 2));
    remembering.release("k", 7).await.unwrap();
    assert!(remembering.try_acquire(ask()).await.unwrap().is_none());
    assert_eq!(acquires(&fake).len(), 2, "what was given back may be had");
    let asking = Client::with(&Options { denial_cache: false, ..options(&[&fake]) }).unwrap();
    for _ in 0..3 {
        assert!(asking.try_acquire(ask()).await.unwrap().is_none());
    }
    assert_eq!((acquires(&fake).len(), asking.counters().denied_from_memory), (5, 0));
}

#[tokio::test]
async fn the_lead_is_the_measured_round_trip() {
    let slow = Fake::with(|request| {
        thread::sleep(30 * MS);
        let key = body(request)["key"].as_str().unwrap().to_owned();
        Act::Answer(200, Vec::new(), grant("0", "").replace(r#""key":"k""#, &format!(r#""key":"{key}""#)))
    });
    let measuring = client(&[&slow]);
    for _ in 0..2 {
        measuring.acquire(ask()).await.unwrap();
    }
    let leads: Vec<_> = acquires(&slow).iter().map(|body| body["lead_ms"].as_f64()).collect();
    assert_eq!(leads[0], None, "nothing was measured yet");
    assert!(leads[1].is_some_and(|lead| lead >= 30.0), "{leads:?}");
    measuring.acquire(ask().max_wait(25 * MS)).await.unwrap();
    assert!(acquires(&slow)[2]["lead_ms"].as_f64().unwrap() <= 25.0, "never past the patience");
    measuring.acquire(Ask::new("nothing is known of it")).await.unwrap();
    assert_eq!(acquires(&slow)[3].get("lead_ms"), None);
    let fixed = Client::with(&Options { lead: Lead::Fixed(77 * MS), ..options(&[&slow]) }).unwrap();
    fixed.acquire(ask()).await.unwrap();
    assert_eq!(acquires(&slow)[4]["lead_ms"], 77);
}

/// "A lead longer than what spacing reserves is `never`": that is not what the worker asked for.
#[tokio::test]
async fn a_lead_that_can_never_be_granted_is_left_out() {
    let fake =
        Fake::with(|request| if body(request).get("lead_ms").is_some() { problem(422, "never") } else { granted("0") });
    let client = Client::with(&Options { lead: Lead::Fixed(50 * MS), ..options(&[&fake]) }).unwrap();
    for _ in 0..2 {
        client.acquire(ask()).await.unwrap();
    }
    assert_eq!(acquires(&fake).len(), 3, "refused once, and remembered");
    let never = node(vec![problem(422, "never")]);
    let client = super::scripted::client(&[&never]);
    assert!(matches!(client.acquire(ask()).await, Err(Error::Refused(_))));
}

#[tokio::test]
async fn a_batch_is_judged_one_by_one_and_given_back_as_a_whole() {
    let results = format!(
        r#"{{"results":[{},{{"type":"t","title":"t","status":429,"detail":"full","code":"denied"}}]}}"#,
        grant("60000", "")
    );
    let batch = Act::Answer(200, Vec::new(), results);
    let lost = Fake::new(vec![Act::HangUp]);
    let fake = Fake::with(move |request| if request.path == "/release" { released() } else { batch.clone() });
    let client = client(&[&lost, &fake]);
    let results = client.batch([ask(), ask()], false).await.unwrap();
    assert!(matches!(&results[..], [Ok(one), Err(Error::RateLimited(_))] if one.number() == Some(7)), "{results:?}");
    let bodies =
        |fake: &Fake| fake.requests().iter().filter(|r| r.path == "/acquire/batch").map(body).collect::<Vec<_>>();
    assert_eq!(bodies(&lost), bodies(&fake), "sent again word for word, ids and all");
    drop(results);
    client.quiet().await;
    assert_eq!(client.counters().given_back, 1);
    let short = node(vec![Act::Answer(200, Vec::new(), r#"{"results":[]}"#.to_owned())]);
    let error = super::scripted::client(&[&short]).batch([ask()], false).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error:?}");
    assert!(matches!(client.batch([] as [Ask; 0], false).await, Err(Error::Misuse(_))));
}
