//! `quorate up` with real nodes: it becomes ready, mends itself, stops in good order, comes back with its data, and never
//! leaves a child behind.

use super::{quorate, run};
use quorate::clock::Deadline;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Far more than anything here takes on an idle machine; only a hang is as slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running `quorate up --json`, and what it has said so far.
struct Up {
    process: Child,
    events: Receiver<Value>,
    urls: String,
    /// Process ids by node, index 0 is node 1.
    pids: Vec<u64>,
}

impl Up {
    fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut process = quorate(&["up", "--json", "--data", &data.display().to_string()])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let (tell, events) = mpsc::channel();
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).expect("one JSON object a line"));
            }
        });
        Self { process, events, urls: String::new(), pids: vec![0; 3] }
    }

    /// The next event of this name; the ones before it are noted on the way.
    fn wait_for(&mut self, name: &str) -> Value {
        let deadline = Deadline::after(PATIENCE);
        loop {
            let event = self.events.recv_timeout(deadline.remaining()).unwrap_or_else(|_| panic!("no event {name:?}"));
            match event["event"].as_str() {
                Some("starting") => {
                    let nodes = event["nodes"].as_array().expect("nodes");
                    self.urls = nodes.iter().filter_map(|node| node["client"].as_str()).collect::<Vec<_>>().join(",");
                }
                Some("started") => {
                    let node = usize::try_from(event["node"].as_u64().expect("a node")).expect("small");
                    self.pids[node - 1] = event["pid"].as_u64().expect("a pid");
                }
                _ => {}
            }
            if event["event"] == name {
                return event;
            }
        }
    }

    fn acquire(&self, key: &str, limit: &str) -> Value {
        let ran = run(&mut quorate(&["acquire", key, "--limit", limit, "--json", "--nodes", &self.urls]));
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).expect("a grant")
    }

    /// Waits until all three nodes are there for each other.
    fn wait_until_whole(&self) -> Value {
        let deadline = Deadline::after(PATIENCE);
        loop {
            let ran = run(&mut quorate(&["status", "--json", "--nodes", &self.urls]));
            if ran.code == 0 {
                let status: Value = serde_json::from_str(&ran.out).expect("a status");
                let nodes = status["nodes"].as_array().expect("nodes");
                if nodes.len() == 3 && nodes.iter().all(|node| node["reachable"] == true) {
                    return status;
                }
            }
            assert!(!deadline.passed(), "the cluster is not whole: {} {}", ran.out, ran.err);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn signal(&self, signal: &str) {
        assert!(signal_to(signal, u64::from(self.process.id())));
    }
}

/// Nothing outlives a test that failed: without `up`, its children end by themselves.
impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal_to(signal: &str, pid: u64) -> bool {
    let status = Command::new("kill").args([signal, &pid.to_string()]).stderr(Stdio::null()).status();
    status.expect("kill runs").success()
}

fn wait_until_gone(pids: &[u64]) {
    let deadline = Deadline::after(PATIENCE);
    while pids.iter().any(|pid| signal_to("-0", *pid)) {
        assert!(!deadline.passed(), "children are left behind: {pids:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_cluster_in_one_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("cluster");
    let mut up = Up::start(&data, &["--port", "0"]);

    // It becomes ready and grants.
    let ready = up.wait_for("ready");
    // Slow enough to be in use still when the next process has looked.
    let first = up.acquire("seen", "1/1m");
    assert_eq!(first["granted"], true);
    let key = run(&mut quorate(&["key", "seen", "--json", "--nodes", &up.urls]));
    assert_eq!(serde_json::from_str::<Value>(&key.out).unwrap()["permit"], first["permit"], "{}", key.err);

    // The leader is killed: that is told, another one leads, and the node comes back.
    let leader = ready["leader"].as_u64().expect("a leader");
    let victim = up.pids[usize::try_from(leader - 1).unwrap()];
    assert!(signal_to("-9", victim));
    let died = up.wait_for("died");
    assert_eq!((died["node"].as_u64(), died["how"].as_str()), (Some(leader), Some("was killed (signal 9)")));
    assert_eq!(up.wait_for("started")["node"].as_u64(), Some(leader));
    up.wait_until_whole();
    let second = up.acquire("k", "1/50ms");
    assert!(second["permit"].as_u64() > first["permit"].as_u64());

    // It stops in good order, and leaves nothing behind but its data.
    up.signal("-TERM");
    assert_eq!(up.wait_for("stopped")["in_order"], true);
    assert_eq!(up.process.wait().unwrap().code(), Some(0));
    wait_until_gone(&up.pids);

    // It comes back where it was, without being told the ports again.
    let urls = up.urls.clone();
    let mut up = Up::start(&data, &[]);
    up.wait_for("ready");
    assert_eq!(up.urls, urls);
    let third = up.acquire("k", "1/50ms");
    assert!(third["permit"].as_u64() > second["permit"].as_u64(), "nothing is forgotten");

    // Killed without a word, it takes its children along.
    up.signal("-KILL");
    wait_until_gone(&up.pids);
}

#[test]
fn ports_that_are_taken_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("cluster").display().to_string();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ran = run(&mut quorate(&["up", "--data", &data, "--port", &(address.port() - 1).to_string()]));
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains(&format!("cannot listen on {address}")), "{}", ran.err);
    assert!(!Path::new(&data).exists(), "nothing was begun");
}
