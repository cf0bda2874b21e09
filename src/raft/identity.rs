//! Who talks to whom: the greeting that opens every connection between peers, and what a node remembers of its peers.
//!
//! Both sides check that they belong to one cluster, that the dialled node is the one that was meant, and that each is the
//! same instance as at their first meeting. The first meeting is remembered durably before anything else is said, so a node
//! whose directory was wiped is recognised and refused: under its old id it could vote twice.

use super::disk::Disk;
use super::marker::Marker;
use crate::watch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The version of the conversation: both sides speak the same or none.
const PROTOCOL: u32 = 1;
const FILE: &str = "peers.json";

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
    /// The refused node has lost its directory: it must not go on under its id.
    pub(super) wiped: bool,
    pub(super) detail: String,
}

/// This node's own papers and its memory of others.
#[derive(Debug)]
pub(super) struct Identity {
    marker: Marker,
    client: String,
    disk: Disk,
    path: PathBuf,
    peers: Mutex<Peers>,
    /// Set once a peer has said that this node was wiped.
    disowned: watch::Sender<Option<String>>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Instance of every peer ever met; durable.
    instances: BTreeMap<u64, String>,
    /// Client address of every peer, as it last said.
    clients: BTreeMap<u64, String>,
}

impl Identity {
    pub(super) fn open(disk: &Disk, dir: &Path, marker: Marker, client: String) -> io::Result<Self> {
        let path = dir.join(FILE);
        let instances = match disk.read(&path)? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))?,
            None => BTreeMap::new(),
        };
        let peers = Mutex::new(Peers { instances, clients: BTreeMap::new() });
        Ok(Self { marker, client, disk: disk.clone(), path, peers, disowned: watch::Sender::new(None) })
    }

    pub(super) const fn node(&self) -> u64 {
        self.marker.node
    }

    pub(super) fn cluster(&self) -> &str {
        &self.marker.cluster
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
        Hello {
            protocol: PROTOCOL,
            cluster: self.marker.cluster.clone(),
            node: self.node(),
            to,
            instance: self.marker.instance.clone(),
            client: self.client.clone(),
        }
    }

    /// The dialled side: checks the caller and answers.
    pub(super) fn answer(&self, hello: &Hello) -> Greeting {
        match self.meet(hello) {
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

    fn meet(&self, hello: &Hello) -> Result<(), Refused> {
        let refuse = |detail: String| Err(Refused { wiped: false, detail });
        let (me, them) = (self.node(), hello.node);
        if hello.protocol != PROTOCOL {
            return refuse(format!("node {me} speaks protocol {PROTOCOL}, node {them} {}", hello.protocol));
        }
        if hello.cluster != self.marker.cluster {
            return refuse(format!(
                "node {me} belongs to cluster {}, node {them} to {}: all nodes of a cluster start with the same cluster \
                 name and the same members",
                self.marker.cluster, hello.cluster
            ));
        }
        if hello.to != me || them == me {
            return refuse(format!("this is node {me}, node {them} looks for node {}: check the members", hello.to));
        }
        self.remember(hello)
    }

    fn remember(&self, hello: &Hello) -> Result<(), Refused> {
        let mut peers = self.lock();
        match peers.instances.get(&hello.node) {
            Some(known) if *known == hello.instance => {}
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
                let mut instances = peers.instances.clone();
                instances.insert(hello.node, hello.instance.clone());
                self.disk.write_durably(&self.path, &instances).map_err(|error| Refused {
                    wiped: false,
                    detail: format!("node {} cannot remember its peers: {error}", self.node()),
                })?;
                peers.instances = instances;
            }
        }
        peers.clients.insert(hello.node, hello.client.clone());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
