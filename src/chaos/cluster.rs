//! The nodes: processes of this very program, each behind its proxies, with a directory and a log of its own.
//!
//! Invariants
//! - Whoever takes a node down holds it until it is up again: two faults never fight over one process.
//! - A node's addresses and directory stay; its process comes and goes.
//! - No node outlives the run: each reads its stdin, a pipe that only the run holds.

use super::clocks::ClockFace;
use super::ports::free_port;
use super::power::Volume;
use super::proxy::{self, Roads, Side};
use super::ticks::now_ns;
use crate::api::ClusterResponse;
use crate::clock::Deadline;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// For a process to stand still.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: u64,
    /// Where it listens for clients, without a proxy in front.
    pub(super) direct: SocketAddr,
    /// Where workers find it.
    pub(super) url: String,
    pub(super) log: PathBuf,
    body: Arc<Mutex<Body>>,
}

/// What of a node comes and goes.
#[derive(Debug)]
pub(super) struct Body {
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    pub(super) clock: ClockFace,
    /// The file system its directory is on, where its power can be cut.
    pub(super) volume: Option<Volume>,
    /// For one start only.
    pub(super) failpoints: Option<String>,
}

/// All nodes.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) nodes: Arc<Vec<Node>>,
    pub(super) roads: Roads,
    http: reqwest::Client,
}

/// What the nodes are made with.
pub(super) struct Recipe<'a> {
    pub(super) program: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) count: u64,
    pub(super) seed: u64,
    /// More arguments for every node.
    pub(super) extra: &'a [String],
    pub(super) clocks: Vec<ClockFace>,
    pub(super) volumes: Vec<Option<Volume>>,
}

impl Cluster {
    /// Proxies and processes. The nodes form the cluster by themselves.
    pub(super) async fn start(recipe: Recipe<'_>) -> io::Result<Self> {
        let roads = Roads::new();
        let mut places = Vec::new();
        for id in 1..=recipe.count {
            let (client, peer) = (free_port(), free_port());
            let (client, peer) = (SocketAddr::from(([127, 0, 0, 1], client)), SocketAddr::from(([127, 0, 0, 1], peer)));
            let peers = proxy::start(Side::Peers, id, peer, roads.clone(), recipe.seed).await?;
            let clients = proxy::start(Side::Clients, id, client, roads.clone(), recipe.seed).await?;
            places.push((id, client, peer, peers, clients));
        }
        let members: Vec<String> = places.iter().map(|(id, _, _, peers, _)| format!("{id}={peers}")).collect();
        let members = members.join(",");
        let faces = recipe.clocks.into_iter().zip(recipe.volumes);
        let mut nodes = Vec::new();
        for ((id, client, peer, _, clients), (clock, volume)) in places.into_iter().zip(faces) {
            let dir = volume.as_ref().map_or_else(|| recipe.dir.to_owned(), |volume| volume.dir().to_owned());
            let data = dir.join(format!("node{id}"));
            let url = format!("http://{clients}");
            let log = recipe.dir.join(format!("node{id}.log"));
            let mut args: Vec<String> = ["node", "--stop-with-stdin", "--log-format", "text"].map(str::to_owned).into();
            for (flag, value) in [
                ("--id", id.to_string()),
                ("--data", data.display().to_string()),
                ("--listen", client.to_string()),
                ("--peer-listen", peer.to_string()),
                ("--advertise", url.clone()),
                ("--members", members.clone()),
            ] {
                args.extend([flag.to_owned(), value]);
            }
            args.extend(recipe.extra.iter().cloned());
            let mut body = Body {
                program: recipe.program.to_owned(),
                args,
                log: log.clone(),
                child: None,
                clock,
                volume,
                failpoints: None,
            };
            body.spawn()?;
            nodes.push(Node { id, direct: client, url, log, body: Arc::new(Mutex::new(body)) });
        }
        let http = reqwest::Client::builder().timeout(Duration::from_millis(800)).build().map_err(io::Error::other)?;
        Ok(Self { nodes: Arc::new(nodes), roads, http })
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.nodes.iter().map(|node| node.id).collect()
    }

    pub(super) fn node(&self, id: u64) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url.clone()).collect()
    }

    /// The cluster as one node sees it, asked past the proxies.
    pub(super) async fn view(&self, node: &Node) -> Option<ClusterResponse> {
        self.get(node, "/cluster").await
    }

    /// A JSON answer of a node, asked past the proxies.
    pub(super) async fn get<T: serde::de::DeserializeOwned>(&self, node: &Node, path: &str) -> Option<T> {
        let answer = self.http.get(format!("http://{}{path}", node.direct)).send().await.ok()?;
        if answer.status() == 200 { answer.json().await.ok() } else { None }
    }

    /// Waits until every node is ready, or says which is not.
    pub(super) async fn ready(&self, within: Duration) -> Result<(), String> {
        let until = now_ns() + super::ticks::ns(within);
        for node in self.nodes.iter() {
            loop {
                let answer = self.http.get(format!("http://{}/readyz", node.direct)).send().await;
                if answer.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                if now_ns() > until {
                    return Err(format!("node {} is not ready; its log is {}", node.id, node.log.display()));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// Ends all processes and gives their volumes back.
    pub(super) async fn stop(&self) {
        for node in self.nodes.iter() {
            let mut body = node.hold().await;
            body.kill();
            if let Some(volume) = body.volume.take() {
                volume.remove();
            }
        }
    }
}

impl Node {
    /// Waits for whoever holds it now.
    pub(super) async fn hold(&self) -> OwnedMutexGuard<Body> {
        Arc::clone(&self.body).lock_owned().await
    }

    /// Unless somebody holds it now.
    pub(super) fn try_hold(&self) -> Option<OwnedMutexGuard<Body>> {
        Arc::clone(&self.body).try_lock_owned().ok()
    }
}

impl Body {
    pub(super) fn spawn(&mut self) -> io::Result<()> {
        if self.is_running() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_remove("QUORATE_CONFIG").stdin(Stdio::piped());
        command.stdout(log.try_clone()?).stderr(log);
        command.envs(self.clock.start());
        if let Some(points) = self.failpoints.take() {
            command.env("FAILPOINTS", points);
        }
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Whether the process lives; one that has ended by itself is put away.
    pub(super) fn is_running(&mut self) -> bool {
        let runs = self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        if !runs {
            self.child = None;
        }
        runs
    }

    /// Stops it where it stands, and waits until it does: what its threads had asked of the system may still be done, but nobody
    /// hears of it.
    pub(super) async fn freeze(&self) {
        let Some(pid) = self.pid() else { return };
        self.signal(Signal::STOP);
        let until = Deadline::after(STOPS_WITHIN);
        let runs = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") T "));
        while runs() && !until.passed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// kill -9; false if there was nothing to kill.
    pub(super) fn kill(&mut self) -> bool {
        let Some(mut child) = self.child.take() else { return false };
        let lived = matches!(child.try_wait(), Ok(None));
        // It may be gone already, and that is all that is wanted.
        let _ = child.kill();
        let _ = child.wait();
        lived
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub(super) fn signal(&self, signal: Signal) -> bool {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.kill();
    }
}
