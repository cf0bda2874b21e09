//! What a lost attempt means for what is said afterwards.

use super::fake::{Act, Fake, grant, granted, problem};
use super::scripted::{ask, body, client, denied, node, options};
use quorate::api::{AcquireRequest, Limit, PolicyRequest, Wait};
use quorate::client::{Client, Error, Lead, Options};
use std::thread;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// The lost attempt may still arrive and be granted.
#[tokio::test]
async fn a_decision_after_a_lost_attempt_names_it() {
    let fake = Fake::new(vec![Act::HangUp, denied("reservations_full", 40)]);
    let error = client(&[&fake]).request(AcquireRequest::new("k")).await.unwrap_err();
    assert!(matches!(&error, Error::RateLimited(_)), "{error:?}");
    assert!(error.to_string().contains("full (but an earlier attempt was lost and may still be applied:"), "{error}");
    let fake = Fake::new(vec![Act::HangUp, problem(503, "too_many_keys")]);
    let error = client(&[&fake]).request(AcquireRequest::new("k")).await.unwrap_err();
    let id = fake.request_ids()[0].clone();
    assert!(matches!(&error, Error::OutcomeUnknown { request_id: Some(named), .. } if *named == id), "{error:?}");
    let fake = Fake::new(vec![Act::HangUp, problem(404, "no_limit")]);
    let error = client(&[&fake]).peek("k").await.unwrap_err();
    assert_eq!(error.to_string(), "refused: said no_limit", "a read leaves no doubt behind");
}

/// "Only if this call made the id": another call may have had the permit before, an hour ago.
#[tokio::test]
async fn a_remembered_grant_under_somebody_elses_id_is_dead() {
    let replayed = || {
        let remembered = grant("0", r#","start_before_ms":60000,"replayed":true"#);
        Fake::new(vec![problem(504, "outcome_unknown"), Act::Answer(200, Vec::new(), remembered)])
    };
    let ours = client(&[&replayed()]).request(AcquireRequest::new("k")).await.unwrap();
    assert_eq!(ours.check(), Ok(()), "our own retry");
    let request = AcquireRequest { request_id: Some("of last week".to_owned()), ..AcquireRequest::new("k") };
    let theirs = client(&[&replayed()]).request(request).await.unwrap();
    assert!(theirs.check().is_err());
}

#[tokio::test]
async fn a_grant_has_to_be_one_and_of_the_key_that_was_asked_for() {
    for wrong in [grant("0", "").replace(r#""key":"k""#, r#""key":"x""#), grant("0", "").replace("true", "false")] {
        let (liar, other) = (Fake::new(vec![Act::Answer(200, Vec::new(), wrong)]), Fake::new(vec![granted("0")]));
        assert!(client(&[&liar, &other]).request(AcquireRequest::new("k")).await.is_ok());
        assert_eq!(liar.request_ids(), other.request_ids(), "it may have been granted all the same");
    }
}

/// "`server` holds the answer until the slot has come": a short attempt would lose the place in line again and again.
#[tokio::test]
async fn a_place_in_line_is_not_given_up_for_the_next_node() {
    let slow = Fake::with(|request| {
        if body(request)["wait"] == "server" {
            thread::sleep(2_000 * MS);
        }
        granted("0")
    });
    let client =
        Client::with(&Options { attempt_timeout: 1_000 * MS, lead: Lead::Measured, ..options(&[&slow]) }).unwrap();
    let request = AcquireRequest { wait: Wait::Server, ..AcquireRequest::new("k") };
    client.request(request).await.unwrap();
    client.acquire(ask()).await.unwrap();
    let asked = super::scripted::acquires(&slow);
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[1].get("lead_ms"), None, "the time in line is no round trip");
}

#[tokio::test]
async fn a_change_of_the_rules_makes_denials_old() {
    let policy = r#"{"name":"p","match":"k","limit":"1/s","revision":2}"#;
    let fake = Fake::with(move |request| match request.path.as_str() {
        "/policies/p" if request.method == "DELETE" => {
            Act::Answer(200, Vec::new(), r#"{"deleted":true,"name":"p","revision":3}"#.to_owned())
        }
        "/policies/p" => Act::Answer(200, Vec::new(), policy.to_owned()),
        "/keys/k" => Act::Answer(200, Vec::new(), r#"{"reset":true,"key":"k"}"#.to_owned()),
        _ => denied("not_free_now", 60_000),
    });
    let client = client(&[&fake]);
    for asked in 1..=4 {
        for _ in 0..2 {
            assert!(client.try_acquire(ask()).await.unwrap().is_none());
        }
        assert_eq!(super::scripted::acquires(&fake).len(), asked);
        match asked {
            1 => drop(client.reset_key("k").await.unwrap()),
            2 => drop(client.put_policy("p", &PolicyRequest::new("k", Limit::from("1/s")), None).await.unwrap()),
            _ => drop(client.delete_policy("p", None).await.unwrap()),
        }
    }
}

#[tokio::test]
async fn the_denial_of_a_whole_batch_is_the_denial_of_one_of_its_keys() {
    let Act::Answer(status, headers, text) = denied("not_free_now", 60_000) else { panic!() };
    let whole = Act::Answer(status, headers, text.replace(r#""status":429"#, r#""status":429,"index":1"#));
    let fake = Fake::with(move |request| if request.path == "/acquire" { granted("0") } else { whole.clone() });
    let client = client(&[&fake]);
    let two = [ask().at_once(), quorate::client::Ask::new("other").limit("1/6s").at_once()];
    assert!(matches!(client.batch(two.clone(), true).await, Err(Error::RateLimited(_))));
    assert!(client.try_acquire(&two[0]).await.unwrap().is_some(), "the first was not denied");
    assert!(client.try_acquire(&two[1]).await.unwrap().is_none());
    assert_eq!(client.counters().denied_from_memory, 1);
}

#[tokio::test]
async fn leads_that_can_never_be_granted_are_left_out_of_a_batch() {
    let never = r#"{"type":"t","title":"t","status":422,"detail":"too far","code":"never"}"#;
    let fake = Fake::with(move |request| {
        let body = body(request);
        let Some(requests) = body["requests"].as_array() else { return problem(404, "no_permit") };
        let led = |request: &serde_json::Value| request.get("lead_ms").is_some();
        if body["atomic"] == true && requests.iter().any(led) {
            return problem(422, "never");
        }
        let result = |request| if led(request) { never.to_owned() } else { grant("0", "") };
        let results: Vec<_> = requests.iter().map(result).collect();
        Act::Answer(200, Vec::new(), format!(r#"{{"results":[{}]}}"#, results.join(",")))
    });
    for atomic in [false, true] {
        let client = Client::with(&Options { lead: Lead::Fixed(50 * MS), ..options(&[&fake]) }).unwrap();
        for asked in [2, 1] {
            let before = fake.requests().len();
            let results = client.batch([ask(), ask()], atomic).await.unwrap();
            for result in results {
                result.unwrap().start().await.unwrap();
            }
            assert_eq!(fake.requests().len() - before, asked, "refused once, and remembered");
        }
    }
}

#[tokio::test]
async fn a_batch_that_nobody_waits_for_is_given_back() {
    let results = format!(r#"{{"results":[{},{}]}}"#, grant("60000", ""), grant("60000", ""));
    let fake = node(vec![Act::Answer(200, Vec::new(), results)]);
    let client = client(&[&fake]);
    let task = tokio::spawn({
        let client = client.clone();
        async move {
            let _reservations = client.batch([ask(), ask()], false).await.unwrap();
            std::future::pending::<()>().await;
        }
    });
    super::until("granted", async || client.counters().granted == 2).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    client.quiet().await;
    assert_eq!(client.counters().given_back, 2);
}
