//! A cluster of real processes on loopback: started, killed, stopped and restarted by the tests.

pub(crate) use quorate::chaos::free_port;
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The binary under test: built once for all tests.
pub(crate) const QUORATE: &str = env!("CARGO_BIN_EXE_quorate");

/// How long a condition may take before a test gives up: generous, because it only bounds failures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One node: its addresses stay, its process comes and goes.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) url: String,
    pub(crate) data: PathBuf,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    /// A program that runs the node, such as `strace`.
    wrapper: Vec<String>,
    child: Option<Child>,
    log: PathBuf,
}

/// The nodes and the directory they live in.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) http: reqwest::Client,
    pub(crate) dir: TempDir,
}

impl Cluster {
    /// Starts `count` nodes as an operator would, in the given order of ids, and waits until all are ready.
    pub(crate) async fn start(count: u64) -> Self {
        let mut cluster = Self::prepare(count, &[]);
        for node in &mut cluster.nodes {
            node.spawn();
        }
        cluster.ready().await;
        cluster
    }

    /// Everything but the processes. `extra` are more arguments for every node.
    pub(crate) fn prepare(count: u64, extra: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let ports: Vec<(u16, u16)> = (0..count).map(|_| (free_port(), free_port())).collect();
        let members: Vec<String> =
            ports.iter().zip(1..).map(|((_, peer), id)| format!("{id}=127.0.0.1:{peer}")).collect();
        let members = members.join(",");
        let nodes = ports.iter().zip(1..).map(|((client, peer), id)| {
            let data = dir.path().join(format!("node{id}"));
            let mut args: Vec<String> = ["node", "--id", &id.to_string(), "--data"].map(str::to_owned).into();
            args.push(data.display().to_string());
            args.extend(["--listen".to_owned(), format!("127.0.0.1:{client}")]);
            args.extend(["--peer-listen".to_owned(), format!("127.0.0.1:{peer}")]);
            args.extend(["--members".to_owned(), members.clone()]);
            args.extend(extra.iter().map(|arg| (*arg).to_owned()));
            let log = dir.path().join(format!("node{id}.log"));
            Node {
                id,
                url: format!("http://127.0.0.1:{client}"),
                data,
                args,
                envs: Vec::new(),
                wrapper: Vec::new(),
                child: None,
                log,
            }
        });
        let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client");
        Self { nodes: nodes.collect(), http, dir }
    }

    /// Starts a node that belongs to no cluster yet; its id and peer address as `quorate cluster add` takes them.
    pub(crate) fn joining(&mut self, id: u64) -> String {
        let (client, peer) = (free_port(), free_port());
        let data = self.dir.path().join(format!("node{id}"));
        let args = ["node", "--id", &id.to_string(), "--data", &data.display().to_string(), "--join", "true"];
        let mut args: Vec<String> = args.map(str::to_owned).into();
        args.extend(["--listen".to_owned(), format!("127.0.0.1:{client}")]);
        args.extend(["--peer-listen".to_owned(), format!("127.0.0.1:{peer}")]);
        let url = format!("http://127.0.0.1:{client}");
        let log = self.dir.path().join(format!("node{id}.log"));
        let mut node = Node { id, url, data, args, envs: Vec::new(), wrapper: Vec::new(), child: None, log };
        node.spawn();
        self.nodes.push(node);
        format!("{id}=127.0.0.1:{peer}")
    }

    /// Replaces a node that is not there by a new one under the same id.
    pub(crate) fn joining_again(&mut self, id: u64) -> String {
        self.nodes.retain(|node| node.id != id);
        self.joining(id)
    }

    /// Starts nodes that have ended by themselves again; how many.
    pub(crate) fn restart_the_dead(&mut self) -> u64 {
        let mut restarted = 0;
        for node in &mut self.nodes {
            let ended = node.child.as_mut().is_some_and(|child| child.try_wait().expect("wait").is_some());
            if ended {
                println!("node {} ended; its log:\n{}", node.id, node.log());
                node.child = None;
                node.spawn();
                restarted += 1;
            }
        }
        restarted
    }

    /// How often the nodes have said something.
    pub(crate) fn count_in_logs(&self, words: &str) -> usize {
        self.nodes.iter().map(|node| node.count_in_log(words)).sum()
    }

    /// Kills all nodes and starts them again.
    pub(crate) async fn restarted_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::kill);
        self.nodes.iter_mut().for_each(Node::spawn);
        self.ready().await;
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.iter_mut().find(|node| node.id == id).expect("a node of this cluster")
    }

    /// Waits until every running node is ready.
    pub(crate) async fn ready(&mut self) {
        for index in 0..self.nodes.len() {
            if self.nodes[index].child.is_none() {
                continue;
            }
            let url = format!("{}/readyz", self.nodes[index].url);
            let mut tries = patience();
            loop {
                if self.http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                self.nodes[index].must_run();
                assert!(
                    tries.next().await,
                    "node {} is not ready; its log:\n{}",
                    self.nodes[index].id,
                    self.nodes[index].log()
                );
            }
        }
    }

    /// The leader that a running node knows, once there is one that runs.
    pub(crate) async fn leader(&mut self) -> u64 {
        let mut tries = patience();
        loop {
            let running: Vec<(u64, String)> =
                self.nodes.iter().filter(|node| node.child.is_some()).map(|node| (node.id, node.url.clone())).collect();
            for (_, url) in &running {
                if let Some(view) = get(&self.http, &format!("{url}/cluster")).await
                    && let Some(leader) = view["leader"].as_u64()
                    && running.iter().any(|(id, _)| *id == leader)
                {
                    return leader;
                }
            }
            assert!(tries.next().await, "no leader; logs:\n{}", self.logs());
        }
    }

    /// Waits until all nodes have applied the same entry and checks that their states are equal there.
    pub(crate) async fn equal_digests(&self) {
        let mut tries = patience();
        loop {
            let mut digests = Vec::new();
            for node in &self.nodes {
                digests.extend(get(&self.http, &format!("{}/cluster/digest", node.url)).await);
            }
            let same_index =
                digests.len() == self.nodes.len() && digests.iter().all(|d| d["applied"] == digests[0]["applied"]);
            if same_index {
                assert!(digests.iter().all(|d| d["digest"] == digests[0]["digest"]), "states differ: {digests:?}");
                return;
            }
            assert!(tries.next().await, "nodes do not catch up: {digests:?}");
        }
    }

    pub(crate) fn logs(&self) -> String {
        let logs: Vec<String> =
            self.nodes.iter().map(|node| format!("--- node {} ---\n{}", node.id, node.log())).collect();
        logs.join("\n")
    }
}

impl Node {
    /// Sets a variable for the next start.
    pub(crate) fn env(&mut self, name: &str, value: &str) {
        self.envs.push((name.to_owned(), value.to_owned()));
    }

    /// Runs the node under another program from the next start on.
    pub(crate) fn run_under(&mut self, wrapper: &[&str]) {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
    }

    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "node {} runs already", self.id);
        let log = File::options().create(true).append(true).open(&self.log).expect("a log file");
        let mut line = self.wrapper.iter().map(String::as_str).chain([QUORATE]);
        let child = Command::new(line.next().expect("a program"))
            // A wrapper's node would survive it.
            .process_group(0)
            .args(line)
            .args(&self.args)
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the node starts");
        self.child = Some(child);
    }

    /// Starts it with a variable that the next start has not.
    pub(crate) fn spawn_with(&mut self, name: &str, value: &str) {
        self.env(name, value);
        self.spawn();
        self.envs.pop();
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        kill_group(&mut self.child.take().expect("a running node"));
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("a running node").id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill").success());
    }

    /// Waits for the process to end by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let mut tries = patience();
        loop {
            if let Some(status) = self.has_ended() {
                return status;
            }
            assert!(tries.next().await, "node {} does not end; its log:\n{}", self.id, self.log());
        }
    }

    /// How the process ended by itself, if it did.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().expect("a running node").try_wait().expect("wait")?;
        self.child = None;
        Some(status)
    }

    /// What the system says of the process.
    pub(crate) fn proc_file(&self, name: &str) -> String {
        let pid = self.child.as_ref().expect("a running node").id();
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).expect("the process runs")
    }

    fn must_run(&mut self) {
        if let Some(child) = &mut self.child
            && let Some(status) = child.try_wait().expect("wait")
        {
            self.child = None;
            panic!("node {} ended with {status}; its log:\n{}", self.id, self.log());
        }
    }

    /// Resident memory of the process, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let status = self.proc_file("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line on memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1_024
    }

    pub(crate) fn log(&self) -> String {
        read_tail(&self.log)
    }

    /// How often it has said something.
    pub(crate) fn count_in_log(&self, words: &str) -> usize {
        std::fs::read_to_string(&self.log).unwrap_or_default().matches(words).count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(&mut child);
        }
    }
}

/// kill -9 of a process that leads a group, and of those in it.
fn kill_group(child: &mut Child) {
    // Its id is its own until it has been waited for.
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

fn read_tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Says in a visible line why a test does nothing here. Where nothing may be skipped (`NO_SKIP=1`, as in CI), it fails.
pub(crate) fn skip(test: &str, missing: &str) {
    println!("SKIPPED {test}: {missing}");
    eprintln!("SKIPPED {test}: {missing}");
    assert!(std::env::var_os("NO_SKIP").is_none(), "{test} must not be skipped: {missing}");
}

/// A JSON answer, if there is one.
pub(crate) async fn get(http: &reqwest::Client, url: &str) -> Option<Value> {
    let answer = http.get(url).send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    answer.json().await.ok()
}

/// Polls until patience runs out.
pub(crate) struct Patience {
    until: tokio::time::Instant,
}

pub(crate) fn patience() -> Patience {
    patience_of(PATIENCE)
}

/// For what takes longer than anything else.
pub(crate) fn patience_of(all: Duration) -> Patience {
    Patience { until: quorate::clock::Deadline::after(all).instant() }
}

impl Patience {
    /// Pauses a moment; `false` when it is time to give up.
    pub(crate) async fn next(&mut self) -> bool {
        tokio::time::timeout_at(self.until, tokio::time::sleep(Duration::from_millis(20))).await.is_ok()
    }
}
