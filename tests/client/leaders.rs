//! Twenty tasks share a limit while the leaders of the cluster die.

use super::cluster::Cluster;
use super::until;
use quorate::api::LimitMembers;
use quorate::client::{Ask, Client, Error, throttled};
use quorate::clock::Stopwatch;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

const TASKS: usize = 20;
const INTERVAL: Duration = Duration::from_millis(50);

/// "With a `start_window` two starts are never closer than the interval, in real time."
#[tokio::test(flavor = "multi_thread")]
async fn starts_keep_their_distance_while_leaders_die() {
    let mut cluster = Cluster::start(3).await;
    let client = Client::new(cluster.urls()).unwrap();
    let limit = LimitMembers {
        rate: Some("20/s".to_owned()),
        start_window: Some("100ms".to_owned()),
        max_reserved: Some(10),
        ..LimitMembers::default()
    };
    let began = Stopwatch::start();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&starts);
    let ask = Ask::new("shared").limit(limit);
    let work = throttled(
        &client,
        move |(): &()| ask.clone(),
        move |()| {
            log.lock().unwrap().push(began.elapsed());
            std::future::ready(())
        },
    );
    let stop = Arc::new(AtomicBool::new(false));
    let outages = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (work, stop, outages) = (work.clone(), Arc::clone(&stop), Arc::clone(&outages));
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                match work(()).await {
                    Ok(()) => {}
                    // A machine that stands still for long enough: the worker goes on.
                    Err(Error::Timeout { .. } | Error::Unavailable { .. } | Error::OutcomeUnknown { .. }) => {
                        outages.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    let count = || starts.lock().unwrap().len();
    until("a good start", async || count() >= 15).await;
    for _ in 0..2 {
        let leader = cluster.leader().await;
        println!("killing node {leader} after {} starts, at {:?}", count(), began.elapsed());
        cluster.node(leader).kill();
        let so_far = count();
        until("it goes on without the leader", async || count() >= so_far + 15).await;
        cluster.node(leader).spawn();
        cluster.ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let mut starts = starts.lock().unwrap().clone();
    starts.sort();
    let gaps: Vec<_> = starts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let closest = gaps.iter().min().unwrap();
    println!(
        "{} starts in {:?}, the closest {closest:?} apart, {} calls met an outage; {:?}",
        starts.len(),
        began.elapsed(),
        outages.load(Ordering::Relaxed),
        client.counters()
    );
    assert!(*closest >= INTERVAL, "two starts {closest:?} apart");
}
