//! Who talks to whom: the greeting that opens every connection between peers, and what a node remembers of its peers.
//!
//! Both sides check that they belong to one cluster, that the dialled node is the one that was meant, and that each is the
//! same instance as at their first meeting. The first meeting is remembered durably before anything else is said, so a node
//! whose directory was wiped is recognised and refused: under its old id it could vote twice. So is a node that stands
//! behind where it is known to have stood ([`Footing`]): its directory is an old copy. Nodes hear of each other's footing
//! every half second and write it down every second, so a copy that is older than that is recognised by whoever was up.

use super::disk::Disk;
use super::footing::Footing;
use super::marker::{Marker, MarkerError};
use crate::clock::Stopwatch;
use crate::watch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The version of the conversation: both sides speak the same or none.
const PROTOCOL: u32 = 4;
const FILE: &str = "peers.json";
/// How often the footing of peers is written down at most.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// The first words of a connection, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    protocol: u32,
    cluster: String,
    /// The speaker.
    node: u64,
    /// Whom the speaker believes to be talking to.
    to: u64,
    instance: String,
    /// Where the speaker's clients connect.
    client: String,
    /// Where the speaker's log stands.
    footing: Footing,
    /// Which life of the speaker this is: drawn anew whenever its process starts.
    life: Life,
}

/// Of fixed length, so that chance does not change what is sent but for its value.
type Life = [u8; 8];

impl Hello {
    /// The speaker, and whom it believes to be talking to.
    pub(super) const fn parties(&self) -> (u64, u64) {
        (self.node, self.to)
    }
}

/// The second words of the dialled side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Greeting {
    Welcome(Hello),
    Refused(Refused),
}

/// Why two nodes do not talk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refused {
    /// The refused node has lost its directory, or a part of it: it must not go on under its id.
    pub(super) wiped: bool,
    pub(super) detail: String,
}

/// This node's own papers and its memory of others.
pub(super) struct Identity {
    node: u64,
    dir: PathBuf,
    marker: Mutex<Marker>,
    client: String,
    disk: Disk,
    peers: Mutex<Peers>,
    /// Held by whoever writes `peers` down, and taken before them: one at a time, and the latest last.
    writing: Mutex<()>,
    /// Set once a peer has said that this node was wiped.
    disowned: watch::Sender<Option<String>>,
    life: Life,
    /// Where this node's log stands, once it is open.
    own: OnceLock<Box<dyn Fn() -> Footing + Send + Sync>>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("marker", &self.marker).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Peers {
    /// Every peer ever met; durable.
    known: BTreeMap<u64, Known>,
    /// Client address of every peer, as it last said.
    clients: BTreeMap<u64, String>,
    /// The life in which each peer last greeted.
    lives: BTreeMap<u64, Life>,
    /// When this process last wrote `known` because of a footing.
    written: Option<Stopwatch>,
}

/// What is remembered of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    instance: String,
    footing: Footing,
}

impl Identity {
    pub(super) fn open(disk: &Disk, dir: &Path, marker: Marker, client: String) -> io::Result<Self> {
        let path = dir.join(FILE);
        let known = match disk.read(&path)? {
            Some(bytes) => read_known(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))?,
            None => BTreeMap::new(),
        };
        let peers = Mutex::new(Peers { known, ..Peers::default() });
        let mut life = Life::default();
        getrandom::fill(&mut life).map_err(io::Error::other)?;
        let (node, marker, disowned) = (marker.node, Mutex::new(marker), watch::Sender::new(None));
        Ok(Self {
            node,
            dir: dir.to_owned(),
            marker,
            client,
            disk: disk.clone(),
            peers,
            writing: Mutex::new(()),
            disowned,
            life,
            own: OnceLock::new(),
        })
    }

    /// From now on greetings say where this node's log stands.
    pub(super) fn stands_on(&self, footing: impl Fn() -> Footing + Send + Sync + 'static) {
        // The log is opened once.
        let _ = self.own.set(Box::new(footing));
    }

    /// A peer has said where it stands for good. Writes that down now and then; blocks while it does.
    pub(super) fn heard(&self, node: u64, footing: Footing) {
        {
            let mut peers = self.lock();
            let Some(known) = peers.known.get_mut(&node) else { return };
            known.footing = known.footing.farthest(footing);
            if peers.written.is_some_and(|written| written.elapsed() < WRITE_EVERY) {
                return;
            }
            peers.written = Some(Stopwatch::start());
        }
        let _writing = self.writing();
        let known = self.lock().known.clone();
        if let Err(error) = self.disk.write_durably(&self.dir.join(FILE), &known) {
            // What is in memory still counts; a disk that errs stops the node by way of its log.
            tracing::warn!(%error, "cannot write down where the peers stand");
        }
    }

    pub(super) const fn node(&self) -> u64 {
        self.node
    }

    pub(super) fn cluster(&self) -> String {
        self.marker().cluster.clone()
    }

    /// Refuses a directory whose log was there once and is empty now.
    pub(super) fn check_log(&self, log_is_empty: bool) -> Result<(), MarkerError> {
        self.marker().check_log(&self.dir, log_is_empty)
    }

    /// Remembers durably that the log holds something.
    pub(super) fn set_formed(&self) -> io::Result<()> {
        self.marker().set_formed(&self.disk, &self.dir)
    }

    /// Client address of a node, once it is known.
    pub(super) fn client_of(&self, node: u64) -> Option<String> {
        if node == self.node() { Some(self.client.clone()) } else { self.lock().clients.get(&node).cloned() }
    }

    /// Resolves when a peer says that this node has lost its directory.
    pub(super) async fn disowned(&self) -> String {
        let mut receiver = self.disowned.subscribe();
        // The sender lives in self, so waiting ends only with a reason.
        match receiver.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or_default(),
            Err(_) => std::future::pending().await,
        }
    }

    pub(super) fn hello(&self, to: u64) -> Hello {
        let marker = self.marker();
        Hello {
            protocol: PROTOCOL,
            cluster: marker.cluster.clone(),
            node: self.node,
            to,
            instance: marker.instance.clone(),
            client: self.client.clone(),
            footing: self.own.get().map(|own| own()).unwrap_or_default(),
            life: self.life,
        }
    }

    /// The dialled side: checks the caller and answers. One that waits for a cluster belongs to the first that dials it as
    /// itself.
    pub(super) fn answer(&self, hello: &Hello) -> Greeting {
        match self.adopt(hello).and_then(|()| self.meet(hello)) {
            Ok(()) => Greeting::Welcome(self.hello(hello.node)),
            Err(refused) => Greeting::Refused(refused),
        }
    }

    /// The dialling side: checks who answered. The error is for the log.
    pub(super) fn accept(&self, target: u64, greeting: &Greeting) -> Result<(), String> {
        match greeting {
            Greeting::Welcome(hello) if hello.node != target => {
                Err(format!("node {} answered where node {target} was expected", hello.node))
            }
            Greeting::Welcome(hello) => self.meet(hello).map_err(|refused| refused.detail),
            Greeting::Refused(refused) => {
                if refused.wiped {
                    self.disowned.send_if_modified(|reason| {
                        let first = reason.is_none();
                        reason.get_or_insert_with(|| refused.detail.clone());
                        first
                    });
                }
                Err(format!("node {target} refused this node: {}", refused.detail))
            }
        }
    }

    fn adopt(&self, hello: &Hello) -> Result<(), Refused> {
        let mut marker = self.marker();
        if !marker.waits_for_a_cluster() || hello.to != self.node || hello.node == self.node {
            return Ok(());
        }
        tracing::info!(cluster = hello.cluster, by = hello.node, "this node was added to a cluster");
        marker.adopted(&self.disk, &self.dir, &hello.cluster).map_err(|error| Refused {
            wiped: false,
            detail: format!("node {} cannot remember its cluster: {error}", self.node),
        })
    }

    fn meet(&self, hello: &Hello) -> Result<(), Refused> {
        let refuse = |detail: String| Err(Refused { wiped: false, detail });
        let (me, them) = (self.node(), hello.node);
        if hello.protocol != PROTOCOL {
            return refuse(format!("node {me} speaks protocol {PROTOCOL}, node {them} {}", hello.protocol));
        }
        if hello.to != me || them == me {
            return refuse(format!("this is node {me}, node {them} looks for node {}: check the members", hello.to));
        }
        let cluster = self.cluster();
        if hello.cluster != cluster {
            return refuse(format!(
                "node {me} belongs to cluster {}, node {them} to {}: all nodes of a cluster start with the same cluster \
                 name and the same members",
                cluster, hello.cluster
            ));
        }
        self.remember(hello)
    }

    fn remember(&self, hello: &Hello) -> Result<(), Refused> {
        let mut peers = self.lock();
        match peers.known.get(&hello.node) {
            // A process loses nothing while it lives: a greeting that says less was overtaken on its way.
            Some(known)
                if known.instance == hello.instance
                    && (hello.footing.covers(&known.footing) || peers.lives.get(&hello.node) == Some(&hello.life)) => {}
            Some(known) if known.instance == hello.instance => {
                return Err(Refused {
                    wiped: true,
                    detail: format!(
                        "node {} knows that node {} had got to {}, and now it stands at {}: its data directory is an old copy, \
                         or has lost its end. It must not go on under its id: it could vote twice and lose what it \
                         acknowledged. Bring the latest directory back, or replace the node by one with a new id",
                        self.node(),
                        hello.node,
                        known.footing,
                        hello.footing
                    ),
                });
            }
            Some(_) => {
                return Err(Refused {
                    wiped: true,
                    detail: format!(
                        "node {} met node {} before with another data directory. A node that lost its directory must not \
                         come back under its id: it could vote twice and lose what it acknowledged. Bring the old \
                         directory back, or replace the node by one with a new id",
                        self.node(),
                        hello.node
                    ),
                });
            }
            None => {
                drop(peers);
                self.remember_first(hello)?;
                return self.remember(hello);
            }
        }
        peers.clients.insert(hello.node, hello.client.clone());
        peers.lives.insert(hello.node, hello.life);
        Ok(())
    }

    fn marker(&self) -> MutexGuard<'_, Marker> {
        self.marker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a peer down that was never met before.
    fn remember_first(&self, hello: &Hello) -> Result<(), Refused> {
        let _writing = self.writing();
        let mut known = self.lock().known.clone();
        // Where it says to stand may not be synced yet, so that is not held against it.
        let first = || Known { instance: hello.instance.clone(), footing: Footing::default() };
        known.entry(hello.node).or_insert_with(first);
        self.disk.write_durably(&self.dir.join(FILE), &known).map_err(|error| Refused {
            wiped: false,
            detail: format!("node {} cannot remember its peers: {error}", self.node()),
        })?;
        let mut peers = self.lock();
        peers.known.entry(hello.node).or_insert_with(first);
        Ok(())
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads what is remembered. The first format had instances only.
fn read_known(bytes: &[u8]) -> serde_json::Result<BTreeMap<u64, Known>> {
    serde_json::from_slice(bytes).or_else(|error| {
        let instances: BTreeMap<u64, String> = serde_json::from_slice(bytes).map_err(|_| error)?;
        let known = |instance| Known { instance, footing: Footing::default() };
        Ok(instances.into_iter().map(|(node, instance)| (node, known(instance))).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::super::codec::WireLogId;
    use super::*;
    use crate::state::LeaderId;

    fn footing(term: u64, index: u64) -> Footing {
        Footing::new(Some(term), Some(WireLogId { leader: LeaderId { term, node: 1 }, index }))
    }

    #[tokio::test]
    async fn an_old_copy_is_recognised_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        two.stands_on(|| footing(3, 100));
        one.accept(2, &two.answer(&one.hello(2))).unwrap();
        one.heard(2, footing(3, 90));
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        two.stands_on(|| footing(3, 95));
        one.accept(2, &two.answer(&one.hello(2))).unwrap();
        let old = identity(dir.path(), 2, "c");
        old.stands_on(|| footing(2, 80));
        let error = old.accept(1, &one.answer(&old.hello(1))).unwrap_err();
        assert!(error.contains("entry 90 of term 3") && error.contains("old copy"), "{error}");
        assert!(old.disowned().await.contains("old copy"));
        assert!(one.accept(2, &old.answer(&one.hello(2))).is_err(), "and nobody talks to it either");
    }

    #[test]
    fn a_greeting_that_was_overtaken_is_none_of_an_old_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        two.stands_on(|| footing(3, 80));
        let early = two.hello(1);
        one.accept(2, &two.answer(&one.hello(2))).unwrap();
        one.heard(2, footing(3, 90));
        assert!(matches!(one.answer(&early), Greeting::Welcome(_)), "said by the same process before it got there");
        let again = identity(dir.path(), 2, "c");
        again.stands_on(|| footing(3, 80));
        assert!(matches!(one.answer(&again.hello(1)), Greeting::Refused(_)), "but another process never got there");
    }

    #[test]
    fn what_the_first_format_remembered_is_kept() {
        let known = read_known(br#"{"2": "abc", "3": "def"}"#).unwrap();
        assert_eq!(known[&2], Known { instance: "abc".to_owned(), footing: Footing::default() });
        assert!(read_known(b"[1]").is_err());
    }

    fn identity(dir: &Path, node: u64, cluster: &str) -> Identity {
        let data = dir.join(node.to_string());
        let disk = Disk::system();
        let marker = Marker::open(&disk, &data, node, Some(cluster)).unwrap();
        Identity::open(&disk, &data, marker, format!("http://127.0.0.1:{node}")).unwrap()
    }

    #[test]
    fn peers_learn_each_others_client_address() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        let greeting = two.answer(&one.hello(2));
        one.accept(2, &greeting).unwrap();
        assert_eq!(one.client_of(2).unwrap(), "http://127.0.0.1:2");
        assert_eq!(two.client_of(1).unwrap(), "http://127.0.0.1:1");
    }

    #[test]
    fn a_node_without_a_cluster_belongs_to_the_first_that_calls_it_and_to_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "other"));
        let joins = || identity(dir.path(), 4, Marker::NO_CLUSTER_YET);
        let error = one.accept(4, &joins().answer(&one.hello(5))).unwrap_err();
        assert!(error.contains("this is node 4"), "another node was meant: {error}");
        one.accept(4, &joins().answer(&one.hello(4))).unwrap();
        assert_eq!(joins().cluster(), "c", "also after a restart");
        let error = two.accept(4, &joins().answer(&two.hello(4))).unwrap_err();
        assert!(error.contains("belongs to cluster c"), "{error}");
    }

    #[test]
    fn strangers_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "other"));
        let error = one.accept(2, &two.answer(&one.hello(2))).unwrap_err();
        assert!(error.contains("belongs to cluster other"), "{error}");
        let three = identity(dir.path(), 3, "c");
        let error = one.accept(2, &three.answer(&one.hello(2))).unwrap_err();
        assert!(error.contains("this is node 3"), "{error}");
        let error = one.accept(1, &one.answer(&one.hello(1))).unwrap_err();
        assert!(error.contains("this is node 1"), "{error}");
    }

    #[tokio::test]
    async fn a_wiped_node_is_recognised_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        one.accept(2, &two.answer(&one.hello(2))).unwrap();
        std::fs::remove_dir_all(dir.path().join("2")).unwrap();
        let (one, two) = (identity(dir.path(), 1, "c"), identity(dir.path(), 2, "c"));
        let error = two.accept(1, &one.answer(&two.hello(1))).unwrap_err();
        assert!(error.contains("replace the node by one with a new id"), "{error}");
        assert!(two.disowned().await.contains("another data directory"));
        assert!(one.accept(2, &two.answer(&one.hello(2))).is_err(), "and nobody talks to it either");
    }
}
