//! Work under a lease: lost, dropped halfway, and on threads that may or may not block.

use super::fake::{Act, Fake, grant, problem};
use super::scripted::{ask, client, options};
use quorate::client::{Error, ThrottleError, ThrottleLayer, blocking, throttled};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;
use tower::{ServiceBuilder, ServiceExt, service_fn};

/// A node that grants leases of this length and renews them, or says that they are over.
fn node(lease_ms: u32, renews: bool) -> Fake {
    Fake::with(move |request| match request.path.as_str() {
        "/renew" if renews => {
            let times = format!(r#""lease_ms":{lease_ms},"start_before_ms":{lease_ms}"#);
            Act::Answer(200, Vec::new(), format!(r#"{{"renewed":true,"key":"k","permit":7,{times}}}"#))
        }
        "/renew" => problem(404, "no_permit"),
        "/release" => Act::Answer(200, Vec::new(), r#"{"released":true,"key":"k","permit":7}"#.to_owned()),
        _ => {
            let limit = r#"{"kind":"concurrency","max":1,"lease":"3s"}"#;
            let more = format!(r#","start_before_ms":{lease_ms},"limit":{limit}"#);
            Act::Answer(200, Vec::new(), grant("0", &more))
        }
    })
}

#[tokio::test]
async fn work_whose_lease_is_lost_is_dropped_and_that_is_told() {
    let fake = node(1_500, false);
    let client = client(&[&fake]);
    let pass = client.acquire(ask()).await.unwrap();
    let lost = client.run(&pass, pending::<()>()).await.unwrap_err();
    assert!(matches!(lost, Error::LeaseLost(_)), "{lost:?}");
    let layer = ThrottleLayer::new(&client, |(): &()| ask());
    let service = ServiceBuilder::new().layer(layer).service(service_fn(|()| pending::<Result<(), Infallible>>()));
    let lost = service.oneshot(()).await.unwrap_err();
    assert!(matches!(lost, ThrottleError::LeaseLost(_)), "it was made, so it was not refused: {lost:?}");
    client.quiet().await;
    assert_eq!(client.counters().leases_lost, 2);
}

#[tokio::test]
async fn a_call_that_is_dropped_halfway_gives_its_lease_back() {
    let fake = node(60_000, true);
    let client = client(&[&fake]);
    let work = throttled(&client, |(): &()| ask(), |()| pending::<()>());
    let layer = ThrottleLayer::new(&client, |(): &()| ask());
    let service = ServiceBuilder::new().layer(layer).service(service_fn(|()| pending::<Result<(), Infallible>>()));
    let calls = [
        tokio::spawn(async move { drop(work(()).await) }),
        tokio::spawn(async move { drop(service.oneshot(()).await) }),
    ];
    super::until("both are at work", async || client.counters().granted == 2).await;
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    client.quiet().await;
    let counters = client.counters();
    assert_eq!((counters.released + counters.given_back, counters.not_released), (2, 0), "{counters:?}");
}

/// Dropped on a thread that knows no runtime.
#[tokio::test]
async fn a_lease_is_given_back_from_any_thread() {
    let fake = node(60_000, true);
    let client = client(&[&fake]);
    let pass = client.acquire(ask()).await.unwrap();
    let running = client.clone();
    let mut work = Box::pin(async move { running.run(&pass, pending::<()>()).await });
    assert!(futures::poll!(&mut work).is_pending());
    std::thread::spawn(move || drop(work)).join().unwrap();
    client.quiet().await;
    assert_eq!(client.counters().released, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_that_may_block_and_threads_that_may_not() {
    let fake = node(1_500, false);
    let options = options(&[&fake]);
    let client = tokio::task::spawn_blocking(move || {
        let client = blocking::Client::with(&options).unwrap();
        let pass = client.acquire(ask()).unwrap();
        // A thread cannot be stopped: what it did is there, and that the lease was lost as well.
        let losing = client.clone();
        let done = client.run(&pass, move || {
            while losing.counters().leases_lost == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            42
        });
        let done = done.unwrap();
        assert!(done.result == 42 && done.lost.is_some(), "{done:?}");
        assert!(matches!(done.in_lease(), Err(Error::LeaseLost(_))));
        client
    });
    let client = client.await.unwrap();
    assert!(matches!(client.acquire(ask()), Err(Error::Misuse(_))), "here nothing may block");
    assert!(matches!(client.peek("k"), Err(Error::Misuse(_))));
    let reservation = tokio::task::spawn_blocking(move || client.reserve(ask()).unwrap()).await.unwrap();
    // The last one to go, where nothing may block: what it holds goes back all the same.
    drop(reservation);
    let released = || fake.requests().iter().filter(|request| request.path == "/release").count();
    super::until("it was given back", async || released() == 2).await;
}
