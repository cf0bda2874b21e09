//! Two sites, each 80 ms from the cluster and back: every worker for itself, and through an agent, side by side.

use super::cluster::{Cluster, patience};
use super::program::{Program, sample};
use super::slow::way;
use super::worker::Record;
use quorate::clock::Stopwatch;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// One way.
pub(crate) const FAR: Duration = Duration::from_millis(40);
const WORKERS_A_SITE: usize = 2;

/// The nodes as a site far away sees them.
pub(crate) async fn far(cluster: &Cluster) -> Vec<String> {
    let mut urls = Vec::new();
    for node in &cluster.nodes {
        urls.push(way(&node.url, FAR).await);
    }
    urls
}

/// What came of a run.
pub(crate) struct Run {
    pub(crate) record: Arc<Record>,
    took: Duration,
    /// Within that.
    starts: usize,
}

/// Workers at two sites until there is enough of what is wanted; each site asks whom it is told to.
pub(crate) async fn run(
    cluster: &Cluster,
    sites: [Vec<String>; 2],
    (key, limit): (&str, &Value),
    enough: impl AsyncFn(&Record) -> bool,
) -> Run {
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
    let (mut tries, watch) = (patience(), Stopwatch::start());
    while !enough(&record).await {
        assert!(tries.next().await, "{key}: {} starts, and that is not enough", record.started());
    }
    let (took, starts) = (watch.elapsed(), record.started());
    record.stop.store(true, Ordering::Relaxed);
    workers.join_all().await;
    Run { record, took, starts }
}

fn print(what: &str, Run { record, took, starts }: &Run, wasted: f64) {
    let (middle, late) = record.latency();
    let rate = f64::from(u32::try_from(*starts).unwrap()) / took.as_secs_f64();
    println!(
        "{what:<36} answer p50 {middle:>10.3?} p99 {late:>10.3?}  {rate:>6.1} starts/s  closest {:>10.3?}  discarded {}  refused {}  \
         slots wasted {wasted}",
        record.closest().unwrap_or_default(),
        record.discarded.load(Ordering::Relaxed),
        record.refused.load(Ordering::Relaxed),
    );
}

/// Permits that these agents handed out without asking the cluster for each: more than they asked for blocks.
pub(crate) async fn spared(http: &reqwest::Client, agents: &[Program]) -> f64 {
    let mut spared = 0.0;
    for agent in agents {
        let page = agent.metrics(http).await;
        spared += sample(&page, r#"quorate_agent_slots_total{what="handed_out"}"#);
        for outcome in ["granted", "denied", "unavailable", "unknown"] {
            spared -= sample(&page, &format!(r#"quorate_agent_blocks_total{{outcome="{outcome}"}}"#));
        }
    }
    spared
}

/// "Two sites with 80 ms between them: strict acquires and agent acquires side by side: latency, throughput, violations (none), slots
/// wasted."
#[tokio::test(flavor = "multi_thread")]
async fn strict_and_leased_side_by_side() {
    let cluster = Cluster::start(3).await;
    let (one, other) = (far(&cluster).await, far(&cluster).await);
    let plain = json!({"rate": "100/s", "max_reserved": 1_000});
    // Every start lies at least 100 ms from the next: 500 ms a slot, of which 400 ms are the window.
    let windowed = json!({"rate": "10/s", "start_window": "400ms", "max_reserved": 40});
    let many = async |record: &Record| record.started() >= 100;
    let some = async |record: &Record| record.started() >= 8;

    let strict = run(&cluster, [one.clone(), other.clone()], ("strict-plain", &plain), many).await;
    print("strict, 100/s", &strict, 0.0);
    let strict_windowed = run(&cluster, [one.clone(), other.clone()], ("strict-windowed", &windowed), some).await;
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
    // What an agent is for: many more permits than ways to the cluster.
    let ahead = async |record: &Record| record.started() >= 200 && spared(&cluster.http, &agents).await >= 20.0;
    let leased = run(&cluster, urls.clone(), ("leased-plain", &plain), ahead).await;
    let lost = wasted().await;
    print("agent, 100/s", &leased, lost);
    let leased_windowed = run(&cluster, urls, ("leased-windowed", &windowed), some).await;
    print("agent, 10/s with a window", &leased_windowed, wasted().await - lost);
    for agent in &agents {
        let page = agent.metrics(&cluster.http).await;
        let shown = page.lines().filter(|line| line.starts_with("quorate_agent_") && !line.contains("_bucket"));
        println!("{}", shown.collect::<Vec<_>>().join("\n"));
    }

    // P2: "never *start* closer than the interval in real time".
    for Run { record, .. } in [&strict_windowed, &leased_windowed] {
        let closest = record.closest().expect("starts");
        assert!(closest >= Duration::from_millis(100), "{closest:?}");
    }
    let (strict_p50, _) = strict.record.latency();
    assert!(strict_p50 >= 2 * FAR, "every worker pays the way: {strict_p50:?}");
}
