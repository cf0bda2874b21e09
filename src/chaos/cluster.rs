//! The nodes: processes of this very program, each behind its proxies, with a directory and a log of its own.
//!
//! Invariants
//! - Whoever takes a node down holds it until it is up again: two faults never fight over one process.
//! - A place's addresses stay; the process of the node that lives there comes and goes.
//! - Whoever moves into a place after another has a new id and a directory of its own. An id tells its place: ids of one place
//!   are as many apart as there are places.
//! - No node outlives the run: each reads its stdin, a pipe that only the run holds.

use super::clocks::ClockFace;
use super::ports::free_port;
use super::power::Volume;
use super::proxy::{self, Roads, Side};
use super::ticks::now_ns;
use crate::api::ClusterResponse;
use crate::clock::Deadline;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// For a process to stand still.
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// How often nodes are asked who belongs to the cluster until most of them say the same.
const AGREED_EVERY: Duration = Duration::from_millis(50);

/// One place, and the node that lives there.
#[derive(Debug)]
pub(super) struct Node {
    /// Roads lead from place to place.
    pub(super) place: u64,
    id: AtomicU64,
    /// Whether it belongs to the cluster, as far as is known.
    member: AtomicBool,
    /// Whether it ever did.
    belonged: AtomicBool,
    /// Where it listens for clients, without a proxy in front.
    pub(super) direct: SocketAddr,
    /// Where workers find it.
    pub(super) url: String,
    /// Where its peers find it.
    pub(super) peer: String,
    logs: PathBuf,
    body: Arc<Mutex<Body>>,
}

/// What of a node comes and goes.
#[derive(Debug)]
pub(super) struct Body {
    program: PathBuf,
    id: u64,
    /// The same for everybody who lives here.
    args: Vec<String>,
    /// How it comes to its cluster: `--members …` or `--join true`.
    origin: [String; 2],
    /// Its own directory is in here.
    dir: PathBuf,
    logs: PathBuf,
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
    /// Nodes of the cluster.
    pub(super) count: u64,
    /// Nodes that wait for being added to it.
    pub(super) waiting: u64,
    pub(super) seed: u64,
    /// More arguments for every node.
    pub(super) extra: &'a [String],
    pub(super) clocks: Vec<ClockFace>,
    pub(super) volumes: Vec<Option<Volume>>,
}

impl Cluster {
    /// Proxies and processes. The nodes form the cluster by themselves.
    pub(super) async fn start(recipe: Recipe<'_>) -> io::Result<Self> {
        let count = recipe.count + recipe.waiting;
        let roads = Roads::new(count);
        let mut places = Vec::new();
        for place in 1..=count {
            let (client, peer) = (free_port(), free_port());
            let (client, peer) = (SocketAddr::from(([127, 0, 0, 1], client)), SocketAddr::from(([127, 0, 0, 1], peer)));
            let peers = proxy::start(Side::Peers, place, peer, roads.clone(), recipe.seed).await?;
            let clients = proxy::start(Side::Clients, place, client, roads.clone(), recipe.seed).await?;
            places.push((place, client, peer, peers, clients));
        }
        let first = places.iter().filter(|(place, ..)| *place <= recipe.count);
        let members: Vec<String> = first.map(|(id, _, _, peers, _)| format!("{id}={peers}")).collect();
        let members = members.join(",");
        let faces = recipe.clocks.into_iter().zip(recipe.volumes);
        let mut nodes = Vec::new();
        for ((place, client, peer, peers, clients), (clock, volume)) in places.into_iter().zip(faces) {
            let dir = volume.as_ref().map_or_else(|| recipe.dir.to_owned(), |volume| volume.dir().to_owned());
            let url = format!("http://{clients}");
            let mut args: Vec<String> = ["node", "--stop-with-stdin", "--log-format", "text"].map(str::to_owned).into();
            for (flag, value) in
                [("--listen", client.to_string()), ("--peer-listen", peer.to_string()), ("--advertise", url.clone())]
            {
                args.extend([flag.to_owned(), value]);
            }
            args.extend(recipe.extra.iter().cloned());
            let member = place <= recipe.count;
            let mut body = Body {
                program: recipe.program.to_owned(),
                id: place,
                args,
                origin: if member { ["--members".to_owned(), members.clone()] } else { joining() },
                dir,
                logs: recipe.dir.to_owned(),
                child: None,
                clock,
                volume,
                failpoints: None,
            };
            body.spawn()?;
            nodes.push(Node {
                place,
                id: AtomicU64::new(place),
                member: AtomicBool::new(member),
                belonged: AtomicBool::new(member),
                direct: client,
                url,
                peer: peers.to_string(),
                logs: recipe.dir.to_owned(),
                body: Arc::new(Mutex::new(body)),
            });
        }
        let http = reqwest::Client::builder().timeout(Duration::from_millis(800)).build().map_err(io::Error::other)?;
        Ok(Self { nodes: Arc::new(nodes), roads, http })
    }

    /// The nodes that belong to the cluster, as far as is known.
    pub(super) fn members(&self) -> Vec<&Node> {
        self.nodes.iter().filter(|node| node.is_member()).collect()
    }

    /// Where they live.
    pub(super) fn places(&self) -> Vec<u64> {
        self.members().into_iter().map(|node| node.place).collect()
    }

    pub(super) fn node(&self, id: u64) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id() == id)
    }

    pub(super) fn id_at(&self, place: u64) -> Option<u64> {
        self.nodes.iter().find(|node| node.place == place).map(Node::id)
    }

    /// Everybody who ever lived at each place.
    pub(super) fn residents(&self) -> Vec<Vec<u64>> {
        let ids = |node: &Node| (node.place..=node.id()).step_by(self.nodes.len()).collect();
        self.nodes.iter().map(ids).collect()
    }

    /// Who belongs to the cluster, once a leader and most voters say the same. A leader alone may say what never comes true.
    pub(super) async fn agreed(&self, within: Duration) -> Option<ClusterResponse> {
        let until = Deadline::after(within);
        loop {
            let asked = self.nodes.iter().map(async |node| self.view(node).await.filter(|view| view.me == node.id()));
            let views: Vec<ClusterResponse> = futures::future::join_all(asked).await.into_iter().flatten().collect();
            if let Some(view) = agreed(&views) {
                for node in self.nodes.iter() {
                    let member = view.nodes.iter().any(|member| member.id == node.id());
                    node.member.store(member, Ordering::Relaxed);
                    node.belonged.fetch_or(member, Ordering::Relaxed);
                }
                return Some(view.clone());
            }
            if until.passed() {
                return None;
            }
            tokio::time::sleep(AGREED_EVERY).await;
        }
    }

    /// A fresh node with a new id takes the place of one that does not belong to the cluster any more.
    pub(super) async fn moves_in(&self, node: &Node) -> io::Result<u64> {
        let mut body = node.hold().await;
        body.kill();
        let id = body.id + self.nodes.len() as u64;
        // It may have died before it had one.
        let _ = std::fs::remove_dir_all(body.data());
        (body.id, body.origin) = (id, joining());
        node.id.store(id, Ordering::Relaxed);
        node.member.store(false, Ordering::Relaxed);
        node.belonged.store(false, Ordering::Relaxed);
        body.spawn()?;
        Ok(id)
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
        for node in self.members() {
            loop {
                let answer = self.http.get(format!("http://{}/readyz", node.direct)).send().await;
                if answer.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                if now_ns() > until {
                    return Err(format!("node {} is not ready; its log is {}", node.id(), node.log().display()));
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
            drop(body.volume.take());
        }
    }
}

/// The view of the latest leader, if most of its voters see the same members.
fn agreed(views: &[ClusterResponse]) -> Option<&ClusterResponse> {
    let members = |view: &ClusterResponse| view.nodes.iter().map(|node| (node.id, node.voter)).collect::<BTreeSet<_>>();
    let latest = views.iter().filter(|view| view.leader == Some(view.me)).max_by_key(|view| view.term)?;
    let voters: Vec<u64> = latest.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect();
    let same = views.iter().filter(|view| voters.contains(&view.me) && members(view) == members(latest)).count();
    (same * 2 > voters.len()).then_some(latest)
}

fn joining() -> [String; 2] {
    ["--join".to_owned(), "true".to_owned()]
}

impl Node {
    /// The id of the node that lives here now.
    pub(super) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    pub(super) fn is_member(&self) -> bool {
        self.member.load(Ordering::Relaxed)
    }

    /// Whether it belongs to the cluster or did so once: its id is not for joining any more.
    pub(super) fn has_belonged(&self) -> bool {
        self.belonged.load(Ordering::Relaxed)
    }

    /// It was added.
    pub(super) fn belongs(&self) {
        self.member.store(true, Ordering::Relaxed);
        self.belonged.store(true, Ordering::Relaxed);
    }

    pub(super) fn log(&self) -> PathBuf {
        log_of(&self.logs, self.id())
    }

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
        let log = File::options().create(true).append(true).open(log_of(&self.logs, self.id))?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).args(["--id", &self.id.to_string(), "--data"]).arg(self.data()).args(&self.origin);
        // Looking up the names for a backtrace takes a big program longer than it may take to stop.
        command.env_remove("QUORATE_CONFIG").env("RUST_BACKTRACE", "0").stdin(Stdio::piped());
        command.stdout(log.try_clone()?).stderr(log);
        command.envs(self.clock.start());
        if let Some(points) = self.failpoints.take() {
            command.env("FAILPOINTS", points);
        }
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Of the node that lives here now.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    fn data(&self) -> PathBuf {
        self.dir.join(format!("node{}", self.id))
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

fn log_of(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("node{id}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(me: u64, leader: u64, term: u64, voters: &[u64]) -> ClusterResponse {
        let node = |id: &u64| json!({"id": id, "client": null, "peer": "", "role": "", "last_log": null, "applied": null, "reachable": true});
        let nodes: Vec<_> = voters.iter().map(node).collect();
        let view = json!({"me": me, "leader": leader, "term": term, "clock_ms": 0, "cluster_id": "", "nodes": nodes});
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn members_are_those_that_most_voters_know() {
        let views = [view(1, 1, 5, &[1, 2, 3]), view(2, 1, 5, &[1, 2, 3, 4]), view(3, 1, 5, &[1, 2, 3, 4])];
        assert_eq!(agreed(&views), None, "only the leader has it in its log");
        let views = [view(1, 1, 5, &[1, 2, 3]), view(2, 1, 5, &[1, 2, 3]), view(4, 1, 4, &[1, 2, 3])];
        assert_eq!(agreed(&views), Some(&views[0]));
        let views = [view(1, 1, 5, &[1, 2, 3]), view(4, 1, 5, &[1, 2, 3]), view(2, 1, 5, &[1, 2, 3, 4])];
        assert_eq!(agreed(&views), None, "one without a vote does not count");
        let views = [view(1, 1, 5, &[1, 2, 3]), view(2, 2, 6, &[1, 2]), view(3, 1, 5, &[1, 2, 3])];
        assert_eq!(agreed(&views), None, "the old leader's word does not count");
        assert_eq!(agreed(&[]), None);
    }
}
