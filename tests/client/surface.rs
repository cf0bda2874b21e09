//! Everything a worker can call, on a real cluster of three processes.

use super::cluster::Cluster;
use super::until;
use quorate::api::{Code, KeyResponse, Kind, Limit, LimitMembers, PolicyRequest};
use quorate::client::{
    Ask, Client, Error, Options, Source, ThrottleError, ThrottleLayer, blocking, skipping, throttled,
};
use quorate::clock::Stopwatch;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

const MS: Duration = Duration::from_millis(1);

/// One every so often, and so many ahead.
fn spaced(rate: &str, max_reserved: u64) -> Limit {
    let members = LimitMembers { rate: Some(rate.to_owned()), max_reserved: Some(max_reserved), ..Default::default() };
    members.into()
}

/// A key as it is now; `None` if nobody uses it, because it is forgotten then.
fn seen(looked: Result<KeyResponse, Error>) -> Option<KeyResponse> {
    match looked {
        Ok(key) => Some(key),
        Err(Error::Refused(problem)) if problem.code == Code::NoLimit => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn in_flight_now(looked: Result<KeyResponse, Error>) -> u64 {
    seen(looked).map_or(0, |key| key.in_flight)
}

fn reserved_now(looked: Result<KeyResponse, Error>) -> u64 {
    seen(looked).map_or(0, |key| key.reserved)
}

fn in_flight(max: u64, lease: &str) -> Limit {
    let lease = Some(lease.to_owned());
    LimitMembers { kind: Some(Kind::Concurrency), max: Some(max), lease, ..Default::default() }.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_on_a_real_cluster() {
    let cluster = Cluster::start(3).await;
    let options = Options { worker: Some("surface".to_owned()), ..Options::new(cluster.urls()) };
    let client = Client::with(&options).unwrap();

    println!("acquire: one after the other, never closer than the interval");
    let ask = Ask::new("acquire").limit(spaced("1/50ms", 10));
    let began = Stopwatch::start();
    let mut last = 0;
    for _ in 0..4 {
        let pass = client.acquire(&ask).await.unwrap();
        let number = pass.number().expect("the cluster's word");
        assert!(number > last, "fencing numbers grow");
        last = number;
    }
    assert!(began.elapsed() >= 149 * MS, "three intervals, but for what a clock drifts: {:?}", began.elapsed());

    println!("try_acquire: now or not at all");
    let rare = Ask::new("try").limit("1/1h");
    assert!(client.try_acquire(&rare).await.unwrap().is_some());
    assert!(client.try_acquire(&rare).await.unwrap().is_none());
    let error = client.acquire(rare.clone().at_once()).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)) && error.retry_after() > Some(Duration::from_secs(60)), "{error:?}");

    println!("reserve: known, dropped, given back");
    let ask = Ask::new("reserve").limit("1/1m");
    client.acquire(&ask).await.unwrap();
    let reservation = client.reserve(&ask).await.unwrap();
    assert!(reservation.starts_in() > Duration::from_secs(50), "{:?}", reservation.starts_in());
    assert_eq!(client.peek("reserve").await.unwrap().reserved, 1);
    drop(reservation);
    until("given back", async || reserved_now(client.peek("reserve").await) == 0).await;

    println!("release: by number");
    let reservation = client.reserve(&ask).await.unwrap();
    let number = reservation.number().unwrap();
    assert!(client.release("reserve", number).await.unwrap().released);
    drop(reservation);
    client.quiet().await;
    assert_eq!(client.counters().not_given_back, 1, "twice is not possible, and no harm");

    println!("patience: denied at once where no slot comes in time");
    let error = client.acquire(ask.clone().max_wait(100 * MS)).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");

    println!("several keys in one decision: one slot, and all of it goes back");
    let both = ["all-a", "all-b"].map(|key| Ask::new(key).limit("1/1m"));
    let passes = client.acquire_all(&both).await.unwrap();
    assert_eq!(passes.iter().map(quorate::client::Pass::key).collect::<Vec<_>>(), ["all-a", "all-b"]);
    assert!(passes[0].number() < passes[1].number(), "{passes:?}");
    let error = client.acquire_all(both.clone().map(|ask| ask.max_wait(100 * MS))).await.unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    let error = client.acquire_all(both.clone().map(Ask::at_once)).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)), "{error:?}");
    assert!(matches!(client.acquire_all(["one"]).await, Err(Error::Misuse(_))));
    let waiting = tokio::spawn({
        let (client, both) = (client.clone(), both.clone());
        async move { client.acquire_all(both).await }
    });
    until("both are reserved", async || {
        reserved_now(client.peek("all-a").await) == 1 && reserved_now(client.peek("all-b").await) == 1
    })
    .await;
    waiting.abort();
    until("both went back", async || {
        reserved_now(client.peek("all-a").await) == 0 && reserved_now(client.peek("all-b").await) == 0
    })
    .await;

    println!("batch: each for itself, or all or nothing");
    let two = ["batch-a", "batch-b"].map(|key| Ask::new(key).limit("1/1m"));
    let results = client.batch(two.clone(), false).await.unwrap();
    assert_eq!(results.len(), 2);
    for reservation in results {
        assert!(reservation.unwrap().start().await.unwrap().number().is_some());
    }
    let one_denied = [two[0].clone().at_once(), Ask::new("batch-c").limit("1/1m")];
    let results = client.batch(one_denied.clone(), false).await.unwrap();
    assert!(matches!(&results[..], [Err(Error::RateLimited(_)), Ok(_)]), "{results:?}");
    drop(results);
    let error = client.batch(one_denied, true).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited(_)), "{error:?}");

    println!("policies: a limit that no request has to bring");
    client.put_policy("stored", &PolicyRequest::new("stored:*", Limit::from("1/1m")), None).await.unwrap();
    assert!(matches!(client.acquire("nobody:knows").await, Err(Error::Refused(_))));
    let pass = client.acquire("stored:1").await.unwrap();
    assert_eq!(pass.permit().unwrap().grant.policy.as_deref(), Some("stored"));

    println!("{:?}", client.counters());
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_services_and_threads() {
    let cluster = Cluster::start(3).await;
    let client = Client::new(cluster.urls()).unwrap();

    println!("throttled: calls are apart");
    let began = Stopwatch::start();
    let fetch = throttled(
        &client,
        |_: &u64| Ask::new("f").limit(spaced("1/40ms", 50)),
        move |n: u64| async move { (n, began.elapsed()) },
    );
    let calls = futures::future::join_all((0..8).map(&fetch)).await;
    let mut starts: Vec<_> = calls.into_iter().map(|call| call.unwrap().1).collect();
    starts.sort();
    println!("{starts:?}");
    assert!(starts[7] >= 279 * MS, "seven intervals, but for what a clock drifts");

    println!("skipping: no permit, no call");
    let called = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&called);
    let skip = skipping(
        &client,
        |key: &&str| Ask::new(*key).limit("1/1h"),
        move |_: &str| {
            let count = Arc::clone(&count);
            async move { count.fetch_add(1, Ordering::Relaxed) }
        },
    );
    assert_eq!(skip("a").await.unwrap(), Some(0));
    assert_eq!(skip("a").await.unwrap(), None);
    assert_eq!(skip("b").await.unwrap(), Some(1), "another key");

    println!("in flight: a lease lasts as long as the call, however long that is");
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let two_at_once = throttled(
        &client,
        |(): &()| Ask::new("leases").limit(in_flight(2, "3s")),
        move |()| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Longer than the lease: it has to be renewed.
                tokio::time::sleep(4_500 * MS).await;
                now.fetch_sub(1, Ordering::SeqCst);
            }
        },
    );
    for result in futures::future::join_all((0..4).map(|_| two_at_once(()))).await {
        result.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
    until("all leases are given back", async || in_flight_now(client.peek("leases").await) == 0).await;

    println!("tower: requests of a service");
    let log = Arc::new(Mutex::new(Vec::new()));
    let inner = Arc::clone(&log);
    let service = service_fn(move |request: String| {
        inner.lock().unwrap().push(began.elapsed());
        async move { Ok::<_, Infallible>(request.len()) }
    });
    let layer = ThrottleLayer::new(&client, |path: &String| Ask::new(path.clone()).limit(spaced("1/40ms", 50)));
    let mut service = ServiceBuilder::new().layer(layer).service(service);
    let (before, mut answers) = (began.elapsed(), Vec::new());
    for _ in 0..4 {
        answers.push(service.ready().await.unwrap().call("/path".to_owned()));
    }
    for answer in futures::future::join_all(answers).await {
        assert_eq!(answer, Ok(5));
    }
    let mut arrivals = log.lock().unwrap().clone();
    arrivals.sort();
    assert!(arrivals[3] >= before + 119 * MS, "three intervals after {before:?}: {arrivals:?}");
    let refuse = ThrottleLayer::new(&client, |(): &()| Ask::new("no limit anywhere"));
    let refused = refuse_all(refuse).oneshot(()).await;
    assert!(matches!(refused, Err(ThrottleError::NoPermit(Error::Refused(_)))), "{refused:?}");

    println!("threads: the blocking twin");
    let urls = cluster.urls();
    let thread = std::thread::spawn(move || on_a_thread(&urls));
    until("the thread is done", async || thread.is_finished()).await;
    thread.join().unwrap();
    let reserved = reserved_now(client.peek("blocking-reserve").await);
    assert_eq!(reserved, 0, "the last one waited for what it gave back");
}

fn refuse_all(
    layer: ThrottleLayer<()>,
) -> impl Service<
    (),
    Response = (),
    Error = ThrottleError<Infallible>,
    Future = impl Future<Output = Result<(), ThrottleError<Infallible>>>,
> {
    ServiceBuilder::new().layer(layer).service(service_fn(async |()| Ok::<_, Infallible>(())))
}

fn on_a_thread(urls: &[String]) {
    let client = blocking::Client::new(urls).unwrap();
    let ask = Ask::new("blocking").limit(spaced("1/40ms", 50));
    let began = Stopwatch::start();
    let double = blocking::throttled(&client, move |_: &u64| ask.clone(), |number: u64| number * 2);
    assert_eq!((double(1).unwrap(), double(2).unwrap(), double(3).unwrap()), (2, 4, 6));
    assert!(began.elapsed() >= 70 * MS, "{:?}", began.elapsed());
    let rare = Ask::new("blocking-rare").limit("1/1h");
    assert!(matches!(client.try_acquire(&rare).unwrap().unwrap().source(), Source::Cluster(_)));
    assert!(client.try_acquire(&rare).unwrap().is_none());
    let skip = blocking::skipping(&client, |(): &()| Ask::new("blocking-rare").limit("1/1h"), |()| ());
    assert_eq!(skip(()).unwrap(), None);
    let held = Ask::new("blocking-lease").limit(in_flight(1, "10s"));
    let pass = client.acquire(&held).unwrap();
    assert_eq!(client.run(&pass, || client.peek("blocking-lease").unwrap().in_flight).unwrap().result, 1);
    assert_eq!(in_flight_now(client.peek("blocking-lease")), 0);
    let both = ["blocking-a", "blocking-b"].map(|key| Ask::new(key).limit("1/1m"));
    assert_eq!(client.acquire_all(&both).unwrap().len(), 2);
    assert!(client.reset_key("blocking-a").unwrap().reset);
    let slow = Ask::new("blocking-reserve").limit("1/1m");
    client.acquire(&slow).unwrap();
    let reservation = client.reserve(&slow).unwrap();
    assert!(reservation.starts_in() > Duration::from_secs(50) && reservation.key() == "blocking-reserve");
    client.quiet().unwrap();
    drop(client);
    drop(double);
    drop(skip);
    drop(reservation);
}
