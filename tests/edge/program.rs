//! `quorate proxy` and `quorate agent` as processes: started, looked into, stopped, killed.

use super::cluster::{QUORATE, patience};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};

/// One running program.
pub(crate) struct Program {
    child: Child,
    /// Where it listens.
    pub(crate) url: String,
    /// Where its metrics are, if elsewhere.
    pub(crate) metrics_url: String,
}

impl Program {
    /// Starts `quorate` with these arguments and reads off where it listens.
    pub(crate) fn start(arguments: &[&str], listeners: usize) -> Self {
        let mut child = Command::new(QUORATE)
            .args(arguments)
            .env("QUORATE_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let mut urls = (0..listeners).map(|_| {
            let line = lines.next().expect("a line").expect("text");
            let at = line.find("http://").unwrap_or_else(|| panic!("no address in {line:?}"));
            line[at..].to_owned()
        });
        let url = urls.next().expect("a listener");
        let metrics_url = urls.next().unwrap_or_else(|| format!("{url}/metrics"));
        Self { child, url, metrics_url }
    }

    /// A proxy to `upstream`, with a listener for metrics.
    pub(crate) fn proxy(upstream: &str, nodes: &[String], more: &[&str]) -> Self {
        let nodes = nodes.join(",");
        let usual = ["proxy", "--upstream", upstream, "--nodes", &nodes, "--listen", "127.0.0.1:0"];
        let metrics = ["--metrics-listen", "127.0.0.1:0"];
        let arguments = usual.into_iter().chain(metrics).chain(more.iter().copied());
        Self::start(&arguments.collect::<Vec<_>>(), 2)
    }

    /// An agent of these nodes.
    pub(crate) fn agent(nodes: &[String], more: &[&str]) -> Self {
        let nodes = nodes.join(",");
        let usual = ["agent", "--nodes", &nodes, "--listen", "127.0.0.1:0"];
        Self::start(&usual.into_iter().chain(more.iter().copied()).collect::<Vec<_>>(), 1)
    }

    /// All metrics, as text.
    pub(crate) async fn metrics(&self, http: &reqwest::Client) -> String {
        let answer = http.get(&self.metrics_url).send().await.expect("metrics");
        assert_eq!(answer.status(), 200);
        answer.text().await.expect("text")
    }

    /// One sample; 0 while it is not there.
    pub(crate) async fn metric(&self, http: &reqwest::Client, name: &str) -> f64 {
        sample(&self.metrics(http).await, name)
    }

    /// Waits until a sample is at least this.
    pub(crate) async fn until(&self, http: &reqwest::Client, name: &str, least: f64) -> f64 {
        let mut tries = patience();
        loop {
            let found = self.metric(http, name).await;
            if found >= least {
                return found;
            }
            assert!(tries.next().await, "{name} is {found} and not {least}:\n{}", self.metrics(http).await);
        }
    }

    /// Waits until a sample is nothing.
    pub(crate) async fn until_none(&self, http: &reqwest::Client, name: &str) {
        let mut tries = patience();
        while self.metric(http, name).await > 0.0 {
            assert!(tries.next().await, "{name} does not end:\n{}", self.metrics(http).await);
        }
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill").success());
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Waits for the process to end by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut tries = patience();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(tries.next().await, "it does not end");
        }
    }

    /// Most memory that was ever resident, in bytes.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line on memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }
}

/// One sample of a page of metrics.
pub(crate) fn sample(page: &str, name: &str) -> f64 {
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
