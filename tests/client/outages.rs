//! Going on without the cluster, told by scripted nodes.

use super::fake::{Act, Fake, granted, nobody, problem};
use super::scripted::{ask, options};
use quorate::client::{Ask, Client, Error, OnUnavailable, Options, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// "A cluster that decided is not out of reach."
#[tokio::test]
async fn a_cluster_without_room_for_a_key_has_decided() {
    let full = Fake::new(vec![problem(503, "too_many_keys")]);
    let client = Client::with(&Options { on_unavailable: OnUnavailable::Open, ..options(&[&full]) }).unwrap();
    for _ in 0..2 {
        assert!(matches!(client.acquire(ask()).await, Err(Error::Unavailable { .. })));
    }
    let counters = client.counters();
    assert_eq!((counters.open, counters.unavailable, full.requests().len()), (0, 0, 2), "{counters:?}");
}

/// One that hangs is no outage where others answer.
#[tokio::test]
async fn one_silent_node_is_no_outage() {
    let (silent, other) = (Fake::new(vec![Act::Silence]), Fake::new(vec![granted("0")]));
    let degrade_after = Duration::from_secs(10);
    let on_unavailable = OnUnavailable::Open;
    let client = Client::with(&Options { on_unavailable, degrade_after, ..options(&[&silent, &other]) }).unwrap();
    assert_eq!(client.acquire(ask()).await.unwrap().number(), Some(7));
}

#[tokio::test]
async fn silence_holds_up_the_first_call_only() {
    let silent = Fake::new(vec![Act::Silence]);
    let options = Options {
        on_unavailable: OnUnavailable::Open,
        degrade_after: 1_000 * MS,
        probe_every: Duration::from_secs(600),
        ..options(&[&silent])
    };
    let client = Client::with(&options).unwrap();
    for _ in 0..10 {
        assert!(matches!(client.acquire(ask()).await.unwrap().source(), Source::Open));
    }
    assert!(client.batch([ask()], false).await.unwrap().remove(0).unwrap().start().await.is_ok());
    let counters = client.counters();
    assert_eq!((counters.open, counters.sent), (11, 1), "{counters:?}");
}

/// A start of this process's own may be an hour away; the cluster is back sooner.
#[tokio::test]
async fn who_waits_for_a_start_of_its_own_asks_the_cluster_again() {
    let (there, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let (up, met) = (Arc::clone(&there), Arc::clone(&seen));
    let fake = Fake::with(move |_| {
        if up.load(Ordering::SeqCst) {
            return granted("0");
        }
        met.store(true, Ordering::SeqCst);
        problem(503, "no_quorum")
    });
    let on_unavailable = OnUnavailable::Local { fraction: 1.0 };
    let options = Options { on_unavailable, degrade_after: 1_000 * MS, probe_every: 200 * MS, ..options(&[&fake]) };
    let client = Client::with(&options).unwrap();
    let ask = Ask::new("k").limit("1/1h");
    client.acquire(&ask).await.unwrap();
    there.store(false, Ordering::SeqCst);
    let waiting = tokio::spawn({
        let (client, ask) = (client.clone(), ask.clone());
        async move { client.acquire(ask).await }
    });
    super::until("it met the outage", async || client.counters().unavailable > 0).await;
    assert!(seen.load(Ordering::SeqCst));
    there.store(true, Ordering::SeqCst);
    let pass = tokio::time::timeout(super::PATIENCE, waiting).await.expect("not in an hour").unwrap().unwrap();
    assert_eq!((pass.number(), client.counters().local), (Some(7), 0));
}

/// A place that nobody takes up leaves nothing behind.
#[tokio::test]
async fn a_dropped_place_of_its_own_costs_nothing() {
    let on_unavailable = OnUnavailable::Local { fraction: 1.0 };
    let client = Client::with(&Options { on_unavailable, ..Options::new([nobody()]) }).unwrap();
    let ask = Ask::new("k").limit("1/1s");
    for _ in 0..1_000 {
        let reservation = client.reserve(&ask).await.unwrap();
        assert!(reservation.starts_in() <= 1_001 * MS, "nobody is before it: {:?}", reservation.starts_in());
    }
    assert_eq!(client.counters().local, 0);
    assert!(matches!(client.acquire(&ask).await.unwrap().source(), Source::Local));
    assert_eq!(client.counters().local, 1);
}
