//! Which nodes `quorate up` runs, and on which ports.
//!
//! Invariant: a data directory keeps the ports it began with. The members of a cluster are in its log with their peer
//! addresses, so nodes that came back on other ports would not find each other.

use crate::cli::exit::Failure;
use crate::limits::MEMBERS_MAX;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Client ports begin one above the base port, peer ports one hundred above those.
const PEER_OFFSET: u16 = 100;
const PORT_DEFAULT: u16 = 7_000;
const NODES_DEFAULT: u16 = 3;
/// The file in the data directory that remembers the layout.
const FILE: &str = "up.json";

/// A cluster on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layout {
    pub(super) nodes: Vec<Place>,
}

/// One of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Place {
    pub(super) id: u64,
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
}

impl Place {
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.client)
    }

    pub(super) fn data(&self, data: &Path) -> PathBuf {
        data.join(format!("node{}", self.id))
    }

    pub(super) fn log(&self, data: &Path) -> PathBuf {
        self.data(data).join("node.log")
    }
}

impl Layout {
    /// The layout that lies in `data` if there is one, else a new one. Flags that contradict the former are an error.
    pub(super) fn settle(data: &Path, nodes: Option<u16>, port: Option<u16>) -> Result<Self, Failure> {
        let Some(known) = Self::load(data)? else {
            let layout = Self::plan(nodes.unwrap_or(NODES_DEFAULT), port.unwrap_or(PORT_DEFAULT))?;
            layout.check_free()?;
            return Ok(layout);
        };
        let (count, first) = (known.nodes.len(), known.nodes[0].client.port());
        let other_count = nodes.is_some_and(|nodes| usize::from(nodes) != count);
        // Port 0 asks for any ports, and these are some.
        let other_port = port.is_some_and(|port| port != 0 && port.checked_add(1) != Some(first));
        if other_count || other_port {
            return Err(Failure::usage(format!(
                "{} holds a cluster of {count} nodes with client ports from {first}: leave out --nodes and --port to start \
                 that one, or give another --data",
                data.display()
            )));
        }
        known.check_free()?;
        Ok(known)
    }

    pub(super) fn members(&self) -> String {
        self.nodes.iter().map(|node| format!("{}={}", node.id, node.peer)).collect::<Vec<_>>().join(",")
    }

    fn plan(nodes: u16, port: u16) -> Result<Self, Failure> {
        if nodes == 0 || usize::from(nodes) > MEMBERS_MAX {
            return Err(Failure::usage(format!("--nodes has to lie between 1 and {MEMBERS_MAX}, this one is {nodes}")));
        }
        if port == 0 {
            return Self::anywhere(nodes).map_err(|error| Failure::error(format!("no free ports: {error}")));
        }
        let port_max = u16::MAX - PEER_OFFSET - nodes;
        if port > port_max {
            return Err(Failure::usage(format!("--port is at most {port_max} for {nodes} nodes, this one is {port}")));
        }
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let place = |n: u16| Place { id: n.into(), client: local(port + n), peer: local(port + PEER_OFFSET + n) };
        Ok(Self { nodes: (1..=nodes).map(place).collect() })
    }

    /// Any ports that are free. All are taken before any is given back, so that they are distinct.
    fn anywhere(nodes: u16) -> io::Result<Self> {
        let take = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let taken = (0..nodes * 2).map(take).collect::<io::Result<Vec<_>>>()?;
        let ports = taken.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
        let place = |(id, pair): (u64, &[SocketAddr])| Place { id, client: pair[0], peer: pair[1] };
        Ok(Self { nodes: (1..).zip(ports.chunks_exact(2)).map(place).collect() })
    }

    /// Found out here and not by three children in three logs.
    fn check_free(&self) -> Result<(), Failure> {
        for address in self.nodes.iter().flat_map(|node| [node.client, node.peer]) {
            if let Err(error) = TcpListener::bind(address) {
                let hint = match error.kind() {
                    ErrorKind::AddrInUse => {
                        ": another program has it, perhaps a cluster that is already running; another --port with another \
                         --data runs beside it"
                    }
                    ErrorKind::PermissionDenied => ": ports below 1024 need a privilege",
                    _ => "",
                };
                return Err(Failure::error(format!("cannot listen on {address}: {error}{hint}")));
            }
        }
        Ok(())
    }

    fn load(data: &Path) -> Result<Option<Self>, Failure> {
        let file = data.join(FILE);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::error(format!("cannot read {}: {error}", file.display()))),
        };
        match serde_json::from_str::<Self>(&text) {
            Ok(layout) if !layout.nodes.is_empty() => Ok(Some(layout)),
            Ok(_) => Err(Failure::error(format!("{}: names no nodes", file.display()))),
            Err(error) => Err(Failure::error(format!("{}: {error}", file.display()))),
        }
    }

    /// Remembers the layout in `data`. Whole or not at all: half a layout would make the data unusable for `up`.
    pub(super) fn store(&self, data: &Path) -> Result<(), Failure> {
        let store = || -> io::Result<()> {
            fs::create_dir_all(data)?;
            let (file, draft) = (data.join(FILE), data.join(format!("{FILE}.new")));
            let mut writer = fs::File::create(&draft)?;
            writer.write_all(&serde_json::to_vec_pretty(self)?)?;
            writer.sync_all()?;
            fs::rename(draft, file)
        };
        store().map_err(|error| Failure::error(format!("cannot write to {}: {error}", data.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_the_contract() {
        let layout = Layout::plan(3, 7_000).unwrap();
        assert_eq!(layout.members(), "1=127.0.0.1:7101,2=127.0.0.1:7102,3=127.0.0.1:7103");
        assert_eq!(layout.nodes[2].url(), "http://127.0.0.1:7003");
        assert!(Layout::plan(0, 7_000).is_err());
        assert!(Layout::plan(10, 7_000).is_err());
        assert!(Layout::plan(9, u16::MAX).is_err());
        assert!(Layout::plan(9, u16::MAX - 109).is_ok());
    }

    #[test]
    fn a_directory_keeps_its_ports() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let first = Layout::settle(&data, Some(2), Some(0)).unwrap();
        first.store(&data).unwrap();
        assert_eq!(Layout::settle(&data, None, None).unwrap(), first);
        assert_eq!(Layout::settle(&data, Some(2), Some(0)).unwrap(), first);
        assert_eq!(Layout::settle(&data, None, Some(first.nodes[0].client.port() - 1)).unwrap(), first);
        assert!(Layout::settle(&data, Some(3), None).unwrap_err().message.contains("holds a cluster of 2 nodes"));
        let taken = TcpListener::bind(first.nodes[1].peer).unwrap();
        assert!(Layout::settle(&data, None, None).unwrap_err().message.contains("another program has it"));
        drop(taken);
    }
}
