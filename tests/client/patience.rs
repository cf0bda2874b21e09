//! How long a caller is kept waiting, and what becomes of what comes later.

use super::fake::{Act, Fake, granted};
use super::scripted::{ask, client, denied, node, options};
use quorate::client::{Client, Error, OnUnavailable, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// After a change of the leader a slot that was free may lie ahead.
#[tokio::test]
async fn try_acquire_does_not_sleep_for_a_slot_that_lies_ahead() {
    let fake = node(vec![granted("60000")]);
    let client = client(&[&fake]);
    let tried = tokio::time::timeout(super::PATIENCE / 2, client.try_acquire(ask())).await.expect("at once");
    assert!(tried.unwrap().is_none());
    client.quiet().await;
    assert_eq!(client.counters().given_back, 1);
}

#[tokio::test]
async fn a_slot_past_the_patience_is_given_back() {
    let fake = node(vec![granted("60000")]);
    let client = client(&[&fake]);
    let acquire = client.acquire(ask().max_wait(2_000 * MS));
    let error = tokio::time::timeout(super::PATIENCE / 2, acquire).await.expect("at once").unwrap_err();
    assert!(matches!(&error, Error::Timeout { detail } if detail.contains("comes later")), "{error:?}");
    client.quiet().await;
    assert_eq!(client.counters().given_back, 1);
}

#[tokio::test]
async fn more_patience_than_can_be_asked_for_is_no_error() {
    let fake = node(vec![denied("reservations_full", 10), granted("0")]);
    client(&[&fake]).acquire(ask().max_wait(Duration::MAX)).await.unwrap();
    let asked = super::scripted::acquires(&fake);
    assert!(asked.iter().all(|body| body["max_wait_ms"].as_f64() <= Some(31_622_400_000.0)), "{asked:?}");
}

/// The client's own queue says nothing about the cluster.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_its_own_making_is_no_outage() {
    const TURNS: usize = 128;
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let fake = Fake::with(move |request| {
        while request.path == "/acquire" && !gate.load(Ordering::SeqCst) {
            std::thread::sleep(5 * MS);
        }
        if request.path == "/release" { Act::HangUp } else { granted("0") }
    });
    let long = Duration::from_secs(50);
    let options = Options {
        timeout: long,
        attempt_timeout: long,
        degrade_after: long,
        on_unavailable: OnUnavailable::Open,
        ..options(&[&fake])
    };
    let client = Client::with(&options).unwrap();
    let one = || {
        let client = client.clone();
        tokio::spawn(async move { client.acquire(ask()).await })
    };
    let calls: Vec<_> = (0..TURNS).map(|_| one()).collect();
    super::until("all turns are taken", async || fake.requests().len() == TURNS).await;
    let error = client.acquire(ask().max_wait(300 * MS)).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { detail } if detail.contains("under way")), "{error:?}");
    assert!(!error.is_outage() && client.counters().open == 0);
    open.store(true, Ordering::SeqCst);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().number(), Some(7));
    }
}
