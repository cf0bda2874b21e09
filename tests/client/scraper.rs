//! `examples/scraper.rs`, as two processes that share one limit, on a real cluster and a real site.

use super::cluster::Cluster;
use super::fake::{Act, Fake};
use quorate::clock::Stopwatch;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGES: usize = 12;
const INTERVAL: Duration = Duration::from_millis(50);
const LIMIT: &str = r#"{"rate":"1/50ms","start_window":"500ms"}"#;

/// Builds the example, which costs nothing where all tests run, and says where it is.
fn scraper() -> String {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "--example", "scraper", "--message-format", "json"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(built.status.success(), "the example does not build");
    let lines = String::from_utf8(built.stdout).expect("UTF-8");
    let artifacts = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let named = artifacts.filter(|artifact| artifact["target"]["name"] == "scraper");
    let mut executables = named.filter_map(|artifact| artifact["executable"].as_str().map(str::to_owned));
    executables.next().expect("an executable")
}

#[tokio::test(flavor = "multi_thread")]
async fn two_scrapers_share_one_limit() {
    let program = tokio::task::spawn_blocking(scraper).await.unwrap();
    let cluster = Cluster::start(3).await;
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let (log, clock) = (Arc::clone(&arrivals), Stopwatch::start());
    let site = Fake::with(move |request| {
        log.lock().unwrap().push(clock.elapsed());
        let page: usize = request.path.trim_start_matches("/page/").parse().unwrap_or(0);
        // Two links a page, so that the way through the site is a tree; and one that leads away from it.
        let links = [2 * page + 1, 2 * page + 2].map(|next| format!(r#"<a href="/page/{next}">{next}</a>"#)).concat();
        let html = format!(r#"<h1>{page}</h1>{links}<a href="http://127.0.0.1:1/elsewhere">away</a>"#);
        Act::Answer(200, vec![("content-type", "text/html".to_owned())], html)
    });
    let nodes = cluster.urls().join(",");
    let run = |program: &str| {
        let mut command = Command::new(program);
        command.args(["--nodes", &nodes, "--limit", LIMIT, "--workers", "4", "--pages", &PAGES.to_string()]);
        command.arg(format!("{}/page/0", site.url)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the example runs")
    };
    let both = [run(&program), run(&program)];
    for child in both {
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        let pages: BTreeSet<_> = out.lines().filter(|line| line.starts_with("200 ")).collect();
        assert_eq!(pages.len(), PAGES, "{out}{err}");
        assert!(!out.contains("elsewhere"), "{out}");
    }
    let mut arrivals = arrivals.lock().unwrap().clone();
    arrivals.sort();
    assert_eq!(arrivals.len(), 2 * PAGES);
    let closest = arrivals.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min().unwrap();
    println!("{} arrivals, the closest {closest:?} apart", arrivals.len());
    assert!(closest >= INTERVAL, "two arrivals {closest:?} apart");
}
