//! Whose directory this is: a small file written once, before anything else.
//!
//! Starting a node on another node's directory, or under a known id with an empty one, would let one id vote twice and a
//! quorum forget what it acknowledged. The marker refuses the first; for the second it holds an instance number, drawn once
//! per directory, that the peers remember (`raft/identity.rs`).

use super::disk::Disk;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

const FORMAT: u32 = 1;
const FILE: &str = "marker.json";

/// What a directory says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    /// Layout of the whole directory.
    format: u32,
    /// The cluster it belongs to.
    pub(super) cluster: String,
    /// The node it belongs to.
    pub(super) node: u64,
    /// Drawn when the directory was made: a new directory under an old id is another instance.
    pub(super) instance: String,
    /// Set once the log holds anything: from then on an empty log is a lost one.
    formed: bool,
}

/// Why a directory cannot be used.
#[derive(Debug, Error)]
pub enum MarkerError {
    /// The directory cannot be read or written.
    #[error("cannot use the data directory {dir}: {error}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The marker is not one.
    #[error("{path} is damaged ({what}): restore it from a backup, or give the node a new id and an empty directory")]
    Damaged {
        /// The marker file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Written by a later version.
    #[error("{dir} has layout {format}, this version knows {FORMAT}: start a newer version on it")]
    Format {
        /// The directory.
        dir: PathBuf,
        /// Its layout.
        format: u32,
    },
    /// Somebody else's.
    #[error(
        "{dir} belongs to node {owner} of cluster {cluster}, not to node {asked}: start node {asked} with its own \
         directory, or this one with --id {owner}"
    )]
    OtherNode {
        /// The directory.
        dir: PathBuf,
        /// The cluster in the marker.
        cluster: String,
        /// The node in the marker.
        owner: u64,
        /// The node that was to start.
        asked: u64,
    },
    /// Data, but no marker.
    #[error(
        "{dir} has data but no {FILE}, so nobody can say whose it is: restore the file, or give the node a new id and an \
         empty directory"
    )]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The marker says that there was a log, and there is none.
    #[error(
        "the log of {dir} is gone: a node that lost its log must not go on under its id, because it could vote twice and \
         forget what it acknowledged. Bring the log back (is a volume not mounted?), or replace the node by one with a new id"
    )]
    LogLost {
        /// The directory.
        dir: PathBuf,
    },
    /// Nothing there, and no list of members to begin with.
    #[error(
        "{dir} is empty and no members are given: the first nodes of a cluster start with --members 1=host:port,2=host:port,…, \
         one that joins later with --join true"
    )]
    NoMembers {
        /// The directory.
        dir: PathBuf,
    },
}

impl Marker {
    /// Of a node that waits for a cluster to add it.
    pub(super) const NO_CLUSTER_YET: &str = "";

    /// Whether no cluster has added this node yet.
    pub(super) fn waits_for_a_cluster(&self) -> bool {
        self.cluster == Self::NO_CLUSTER_YET
    }

    /// Belongs to `cluster` from now on, durably.
    pub(super) fn adopted(&mut self, disk: &Disk, dir: &Path, cluster: &str) -> io::Result<()> {
        let adopted = Self { cluster: cluster.to_owned(), ..self.clone() };
        disk.write_durably(&dir.join(FILE), &adopted)?;
        *self = adopted;
        Ok(())
    }

    /// Reads the marker of `dir`, or writes one into an empty directory for `node` of `cluster`.
    pub(super) fn open(disk: &Disk, dir: &Path, node: u64, cluster: Option<&str>) -> Result<Self, MarkerError> {
        let io_error = |error| MarkerError::Io { dir: dir.to_owned(), error };
        disk.files().create_dir_all(dir).map_err(io_error)?;
        let path = dir.join(FILE);
        match disk.read(&path) {
            Ok(Some(bytes)) => Self::check(&bytes, dir, &path, node),
            Ok(None) => {
                if ["log", "snapshots", "peers.json"].iter().any(|name| disk.files().exists(&dir.join(name))) {
                    return Err(MarkerError::Missing { dir: dir.to_owned() });
                }
                let cluster = cluster.ok_or_else(|| MarkerError::NoMembers { dir: dir.to_owned() })?;
                let instance = random_hex().map_err(io_error)?;
                let marker = Self { format: FORMAT, cluster: cluster.to_owned(), node, instance, formed: false };
                disk.write_durably(&path, &marker).map_err(io_error)?;
                Ok(marker)
            }
            Err(error) => Err(io_error(error)),
        }
    }

    /// Refuses a directory whose log was there once and is empty now.
    pub(super) fn check_log(&self, dir: &Path, log_is_empty: bool) -> Result<(), MarkerError> {
        if self.formed && log_is_empty { Err(MarkerError::LogLost { dir: dir.to_owned() }) } else { Ok(()) }
    }

    /// Remembers durably that the log holds something.
    pub(super) fn set_formed(&mut self, disk: &Disk, dir: &Path) -> io::Result<()> {
        if self.formed {
            return Ok(());
        }
        let formed = Self { formed: true, ..self.clone() };
        disk.write_durably(&dir.join(FILE), &formed)?;
        *self = formed;
        Ok(())
    }

    fn check(bytes: &[u8], dir: &Path, path: &Path, node: u64) -> Result<Self, MarkerError> {
        let marker: Self = serde_json::from_slice(bytes)
            .map_err(|error| MarkerError::Damaged { path: path.to_owned(), what: error.to_string() })?;
        if marker.format != FORMAT {
            return Err(MarkerError::Format { dir: dir.to_owned(), format: marker.format });
        }
        if marker.node != node {
            let (cluster, owner) = (marker.cluster, marker.node);
            return Err(MarkerError::OtherNode { dir: dir.to_owned(), cluster, owner, asked: node });
        }
        Ok(marker)
    }
}

fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(dir: &Path, node: u64, cluster: Option<&str>) -> Result<Marker, MarkerError> {
        Marker::open(&Disk::system(), dir, node, cluster)
    }

    #[test]
    fn a_directory_keeps_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("node1");
        let made = open(&data, 1, Some("abc")).unwrap();
        assert_eq!(open(&data, 1, Some("another list of members")).unwrap(), made);
        let error = open(&data, 2, Some("abc")).unwrap_err().to_string();
        assert!(error.contains("belongs to node 1 of cluster abc, not to node 2"), "{error}");
    }

    #[test]
    fn a_log_that_was_there_must_still_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let mut marker = open(dir.path(), 1, Some("abc")).unwrap();
        marker.check_log(dir.path(), true).unwrap();
        marker.set_formed(&Disk::system(), dir.path()).unwrap();
        let marker = open(dir.path(), 1, Some("abc")).unwrap();
        marker.check_log(dir.path(), false).unwrap();
        let error = marker.check_log(dir.path(), true).unwrap_err().to_string();
        assert!(error.contains("replace the node by one with a new id"), "{error}");
    }

    #[test]
    fn instances_differ() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(&dir.path().join("a"), 1, Some("abc")).unwrap();
        let second = open(&dir.path().join("b"), 1, Some("abc")).unwrap();
        assert_ne!(first.instance, second.instance);
    }

    #[test]
    fn what_cannot_be_trusted_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(open(&dir.path().join("new"), 1, None), Err(MarkerError::NoMembers { .. })));
        let orphan = dir.path().join("orphan");
        fs::create_dir_all(orphan.join("log")).unwrap();
        assert!(matches!(open(&orphan, 1, Some("abc")), Err(MarkerError::Missing { .. })));
        let damaged = dir.path().join("damaged");
        fs::create_dir_all(&damaged).unwrap();
        fs::write(damaged.join(FILE), "{").unwrap();
        assert!(matches!(open(&damaged, 1, Some("abc")), Err(MarkerError::Damaged { .. })));
        let newer = r#"{"format": 2, "cluster": "abc", "node": 1, "instance": "0", "formed": false}"#;
        fs::write(damaged.join(FILE), newer).unwrap();
        assert!(matches!(open(&damaged, 1, Some("abc")), Err(MarkerError::Format { format: 2, .. })));
    }
}
