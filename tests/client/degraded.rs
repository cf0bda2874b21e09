//! With the cluster stopped: what happens, how fast, and what is counted.

use super::cluster::{Cluster, Node};
use quorate::client::{Ask, Client, Error, OnUnavailable, Options, Source};
use quorate::clock::Stopwatch;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread")]
async fn each_way_without_a_cluster() {
    let mut cluster = Cluster::start(3).await;
    let with = |on_unavailable| Client::with(&Options { on_unavailable, ..Options::new(cluster.urls()) }).unwrap();
    let (closed, open) = (with(OnUnavailable::Closed), with(OnUnavailable::Open));
    let local = with(OnUnavailable::Local { fraction: 0.25 });
    let ask = Ask::new("k").limit("1/50ms");
    for client in [&closed, &open, &local] {
        assert!(
            client.acquire(&ask).await.unwrap().number().is_some(),
            "with a cluster it is the cluster that decides"
        );
    }
    let slow = Ask::new("slow").limit("1/1m");
    local.acquire(&slow).await.unwrap();
    cluster.nodes.iter_mut().for_each(Node::kill);
    // A connection whose end has not been noticed yet would put the first call in doubt.
    for client in [&closed, &open, &local] {
        super::until("nobody answers", async || client.readiness().await.iter().all(|(_, ready)| ready.is_err())).await;
    }

    let watch = Stopwatch::start();
    let error = closed.acquire(&ask).await.unwrap_err();
    println!("closed: {error} after {:?}", watch.elapsed());
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(matches!(closed.try_acquire(&ask).await, Err(Error::Unavailable { .. })));
    assert!(matches!(closed.reserve(&ask).await, Err(Error::Unavailable { .. })));
    assert!(matches!(closed.batch([ask.clone()], false).await, Err(Error::Unavailable { .. })));
    let counters = closed.counters();
    assert_eq!((counters.unavailable, counters.open, counters.local), (4, 0, 0), "{counters:?}");

    for nth in 0..3 {
        let watch = Stopwatch::start();
        let pass = open.acquire(&ask).await.unwrap();
        println!("open, {nth}: after {:?}", watch.elapsed());
        assert!(matches!(pass.source(), Source::Open) && pass.number().is_none());
    }
    assert!(open.batch([ask.clone()], true).await.is_err(), "all or nothing needs a cluster");
    assert_eq!(open.counters().open, 3);

    let mut starts = Vec::new();
    let began = Stopwatch::start();
    for _ in 0..4 {
        let pass = local.acquire(&ask).await.unwrap();
        assert!(matches!(pass.source(), Source::Local));
        starts.push(began.elapsed());
    }
    println!("local: {starts:?}");
    // Each is planned from the one before; how late a machine is with it is its own business.
    let planned = |nth: usize| 200 * MS * u32::try_from(nth).unwrap();
    assert!(starts.iter().enumerate().all(|(nth, start)| *start >= planned(nth)), "a quarter of 20/s: {starts:?}");
    assert!(local.try_acquire(&slow).await.unwrap().is_none(), "not before what the last grant allows");
    assert!(matches!(local.acquire(slow.clone().max_wait(10 * MS)).await, Err(Error::Timeout { .. })));
    assert!(matches!(local.acquire("unknown").await, Err(Error::Unavailable { .. })), "no limit, no pace");
    let counters = local.counters();
    assert_eq!((counters.local, counters.local_denied), (4, 2), "{counters:?}");

    println!("and back");
    cluster.nodes.iter_mut().for_each(Node::spawn);
    cluster.ready().await;
    for client in [&closed, &open, &local] {
        super::until("the cluster decides again", async || {
            client.acquire(&ask).await.is_ok_and(|pass| pass.number().is_some())
        })
        .await;
    }
}

/// Nodes that take connections and never answer: the kernel does it for a process that stands still.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_stand_still_hold_up_one_call_at_a_time() {
    let cluster = Cluster::start(3).await;
    let options = Options {
        timeout: Duration::from_secs(60),
        attempt_timeout: Duration::from_secs(30),
        on_unavailable: OnUnavailable::Open,
        degrade_after: Duration::from_secs(2),
        probe_every: Duration::from_secs(30),
        ..Options::new(cluster.urls())
    };
    let client = Client::with(&options).unwrap();
    let ask = Ask::new("k").limit("1/50ms");
    assert!(client.acquire(&ask).await.unwrap().number().is_some());
    cluster.nodes.iter().for_each(|node| node.signal("STOP"));
    let watch = Stopwatch::start();
    assert!(matches!(client.acquire(&ask).await.unwrap().source(), Source::Open));
    let took = watch.elapsed();
    println!("the first call went on after {took:?}");
    assert!(took < options.attempt_timeout, "{took:?}");
    let asked = client.counters().sent;
    for _ in 0..20 {
        assert!(matches!(client.acquire(&ask).await.unwrap().source(), Source::Open));
    }
    println!("20 more after {:?}", watch.elapsed().saturating_sub(took));
    assert_eq!(client.counters().sent, asked, "nobody waited for them");
    cluster.nodes.iter().for_each(|node| node.signal("CONT"));
}
