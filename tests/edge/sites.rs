//! Two sites, each 80 ms from the cluster and back: every worker for itself, and through an agent, side by side.

use super::cluster::Cluster;
use super::program::Program;
use super::slow::way;
use super::worker::Record;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// One way.
pub(crate) const FAR: Duration = Duration::from_millis(40);
/// How long each run is.
const RUN: Duration = Duration::from_secs(5);
const WORKERS_A_SITE: usize = 2;

/// The nodes as a site far away sees them.
pub(crate) async fn far(cluster: &Cluster) -> Vec<String> {
    let mut urls = Vec::new();
    for node in &cluster.nodes {
        urls.push(way(&node.url, FAR).await);
    }
    urls
}

/// Workers at two sites, for a while; each site asks whom it is told to.
pub(crate) async fn run(cluster: &Cluster, sites: [Vec<String>; 2], key: &str, limit: &Value) -> Arc<Record> {
    let record = Record::new();
    let mut workers = JoinSet::new();
    for (site, urls) in sites.into_iter().enumerate() {
        for number in 0..WORKERS_A_SITE {
            // Everybody keeps to one node; another one is nearer for nobody.
            let url = urls[(site + number) % urls.len()].clone();
            let work = Arc::clone(&record).work(cluster.http.clone(), vec![url], key.to_owned(), limit.clone());
            workers.spawn(work);
        }
    }
    tokio::time::sleep(RUN).await;
    record.stop.store(true, Ordering::Relaxed);
    workers.join_all().await;
    record
}

fn print(what: &str, record: &Record, wasted: f64) {
    let (middle, late) = record.latency();
    let rate = f64::from(u32::try_from(record.started()).unwrap()) / RUN.as_secs_f64();
    println!(
        "{what:<36} answer p50 {middle:>10.3?} p99 {late:>10.3?}  {rate:>6.1} starts/s  closest {:>10.3?}  discarded {}  refused {}  \
         slots wasted {wasted}",
        record.closest().unwrap_or_default(),
        record.discarded.load(Ordering::Relaxed),
        record.refused.load(Ordering::Relaxed),
    );
}

/// "Two sites with 80 ms between them: strict acquires and agent acquires side by side: latency, throughput, violations (none), slots
/// wasted."
#[tokio::test(flavor = "multi_thread")]
async fn strict_and_leased_side_by_side() {
    let cluster = Cluster::start(3).await;
    let (one, other) = (far(&cluster).await, far(&cluster).await);
    let plain = json!({"rate": "100/s", "max_reserved": 1_000});
    // Every start lies at least 100 ms from the next: 250 ms a slot, of which 150 ms are the window.
    let windowed = json!({"rate": "10/s", "start_window": "150ms", "max_reserved": 40});

    let strict = run(&cluster, [one.clone(), other.clone()], "strict-plain", &plain).await;
    print("strict, 100/s", &strict, 0.0);
    let strict_windowed = run(&cluster, [one.clone(), other.clone()], "strict-windowed", &windowed).await;
    print("strict, 10/s with a window", &strict_windowed, 0.0);

    let agents = [Program::agent(&one, &[]), Program::agent(&other, &[])];
    let urls = [vec![agents[0].url.clone()], vec![agents[1].url.clone()]];
    // When nothing is held any more, all that was lost is counted.
    let wasted = async || {
        for agent in &agents {
            agent.until_none(&cluster.http, "quorate_agent_slots_held").await;
        }
        let name = r#"quorate_agent_slots_total{what="wasted"}"#;
        agents[0].metric(&cluster.http, name).await + agents[1].metric(&cluster.http, name).await
    };
    let leased = run(&cluster, urls.clone(), "leased-plain", &plain).await;
    let lost = wasted().await;
    print("agent, 100/s", &leased, lost);
    let leased_windowed = run(&cluster, urls, "leased-windowed", &windowed).await;
    print("agent, 10/s with a window", &leased_windowed, wasted().await - lost);
    for agent in &agents {
        let page = agent.metrics(&cluster.http).await;
        let shown = page.lines().filter(|line| line.starts_with("quorate_agent_") && !line.contains("_bucket"));
        println!("{}", shown.collect::<Vec<_>>().join("\n"));
    }

    // P2: "never *start* closer than the interval in real time".
    for record in [&strict_windowed, &leased_windowed] {
        assert!(record.started() > 5, "something was done");
        assert!(
            record.closest().is_some_and(|closest| closest >= Duration::from_millis(100)),
            "{:?}",
            record.closest()
        );
    }
    let ((strict_p50, _), (leased_p50, _)) = (strict.latency(), leased.latency());
    assert!(strict_p50 >= 2 * FAR, "every worker pays the way: {strict_p50:?}");
    assert!(leased_p50 < FAR, "most do not pay the way: {leased_p50:?}");
    assert!(leased.started() > strict.started(), "{} and {}", leased.started(), strict.started());
}
