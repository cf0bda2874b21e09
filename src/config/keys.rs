//! The one table of settings: name, default, bounds and a sentence each.
//!
//! Invariant: the flags of `quorate node`, the `QUORATE_…` variables, the keys of a file, the defaults and the help all
//! come from here, and `cluster/node1.toml` is checked against it by a test.

use crate::limiter::Span;
use crate::limits::{
    BODY_TIMEOUT_MS, CONNECTIONS_DEFAULT, DISK_RESERVE_BYTES_DEFAULT, DISK_RESERVE_BYTES_MAX, HEADER_TIMEOUT_MS,
    HISTORY_AGE_MS_DEFAULT, HISTORY_BYTES_DEFAULT, HISTORY_BYTES_MAX, HISTORY_BYTES_MIN, KEYS_DEFAULT, KEYS_MAX,
    NODE_ID_MAX, REQUEST_TIMEOUT_MS, THREADS_MAX,
};

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// As it stands in a file.
    pub name: &'static str,
    /// What it is when nobody says.
    pub default: Fallback,
    /// What its text has to be.
    pub kind: Kind,
    /// For a person, one sentence.
    pub help: &'static str,
}

/// What a setting is when nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: somebody has to say.
    Required,
    /// Worked out from other settings, as described.
    Derived(&'static str),
    /// A number.
    Integer(u64),
    /// A duration in milliseconds.
    Millis(u64),
    /// A text.
    Text(&'static str),
    /// Yes or no.
    Bool(bool),
}

/// What the text of a setting has to be. Bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
    },
    /// A duration such as `200ms`.
    Duration {
        /// Shortest, in milliseconds.
        min_ms: u64,
        /// Longest, in milliseconds.
        max_ms: u64,
    },
    /// `true` or `false`.
    Bool,
    /// `host:port`; port 0 lets the system choose.
    Address,
    /// `http://host:port`.
    Url,
    /// `1=host:port,2=host:port`, or a table in a file.
    Members,
    /// A path.
    Path,
    /// A short name.
    Name,
    /// A filter in the grammar of `tracing`.
    Filter,
    /// `text` or `json`.
    Format,
}

/// Largest node id: ids are never reused, so there have to be plenty.
/// A minute: past it nobody waits for an answer any more.
const TIMEOUT_MS_MAX: u64 = 60_000;

/// Every setting, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    Key {
        name: "id",
        default: Fallback::Required,
        kind: Kind::Integer { min: 1, max: NODE_ID_MAX },
        help: "This node's number in the cluster, never reused",
    },
    Key {
        name: "data",
        default: Fallback::Derived("quorate-data/node<id>"),
        kind: Kind::Path,
        help: "Directory of this node's log and snapshots",
    },
    Key {
        name: "listen",
        default: Fallback::Text("127.0.0.1:7001"),
        kind: Kind::Address,
        help: "Where clients connect: host:port",
    },
    Key {
        name: "peer_listen",
        default: Fallback::Text("127.0.0.1:7101"),
        kind: Kind::Address,
        help: "Where the other nodes connect: host:port",
    },
    Key {
        name: "advertise",
        default: Fallback::Derived("http:// and what it listens on"),
        kind: Kind::Url,
        help: "The client URL announced to the other nodes, as clients reach it",
    },
    Key {
        name: "members",
        default: Fallback::Derived("none: a node with data knows them"),
        kind: Kind::Members,
        help: "The first members of the cluster with their peer addresses: 1=host:port,2=host:port,3=host:port",
    },
    Key {
        name: "join",
        default: Fallback::Bool(false),
        kind: Kind::Bool,
        help: "Whether a node with an empty directory waits for a cluster to add it, in place of `members`: true or false",
    },
    Key {
        name: "cluster",
        default: Fallback::Text("quorate"),
        kind: Kind::Name,
        help: "Name of the cluster; nodes of another name are turned away",
    },
    Key {
        name: "keys_max",
        default: Fallback::Integer(KEYS_DEFAULT),
        kind: Kind::Integer { min: 1, max: KEYS_MAX },
        help: "Keys held at once; past it new keys are refused",
    },
    Key {
        name: "connections_max",
        default: Fallback::Integer(CONNECTIONS_DEFAULT as u64),
        kind: Kind::Integer { min: 1, max: 1_000_000 },
        help: "Client connections accepted at once",
    },
    Key {
        name: "heartbeat",
        default: Fallback::Millis(100),
        kind: Kind::Duration { min_ms: 10, max_ms: 10_000 },
        help: "How often a leader says that it is there",
    },
    Key {
        name: "election_min",
        default: Fallback::Millis(200),
        kind: Kind::Duration { min_ms: 20, max_ms: TIMEOUT_MS_MAX },
        help: "Shortest time beyond the leader's lease before a node stands for election; at least twice the heartbeat",
    },
    Key {
        name: "election_max",
        default: Fallback::Millis(350),
        kind: Kind::Duration { min_ms: 21, max_ms: TIMEOUT_MS_MAX },
        help: "Longest such time, and how long a leader's lease lasts after its last heartbeat; longer than election_min",
    },
    Key {
        name: "request_timeout",
        default: Fallback::Millis(REQUEST_TIMEOUT_MS),
        kind: Kind::Duration { min_ms: 100, max_ms: TIMEOUT_MS_MAX },
        help: "How long a node works on one request before it answers that it could not",
    },
    Key {
        name: "header_timeout",
        default: Fallback::Millis(HEADER_TIMEOUT_MS),
        kind: Kind::Duration { min_ms: 100, max_ms: TIMEOUT_MS_MAX },
        help: "How long a client may take to send the headers of a request",
    },
    Key {
        name: "body_timeout",
        default: Fallback::Millis(BODY_TIMEOUT_MS),
        kind: Kind::Duration { min_ms: 100, max_ms: TIMEOUT_MS_MAX },
        help: "How long a client may take to send the body of a request",
    },
    Key {
        name: "snapshot_every",
        default: Fallback::Integer(100_000),
        kind: Kind::Integer { min: 100, max: 1_000_000_000 },
        help: "Log entries between two snapshots",
    },
    Key {
        name: "log_keep",
        default: Fallback::Integer(50_000),
        kind: Kind::Integer { min: 10, max: 1_000_000_000 },
        help: "Log entries kept behind a snapshot, so that a node that paused catches up without one",
    },
    Key {
        name: "disk_reserve",
        default: Fallback::Integer(DISK_RESERVE_BYTES_DEFAULT),
        kind: Kind::Integer { min: 0, max: DISK_RESERVE_BYTES_MAX },
        help: "Free disk space in bytes, besides that for a snapshot, below which a node takes no more; 0 turns it off",
    },
    Key {
        name: "drain",
        default: Fallback::Millis(5_000),
        kind: Kind::Duration { min_ms: 0, max_ms: TIMEOUT_MS_MAX },
        help: "How long a node that stops waits for the requests it is working on",
    },
    Key {
        name: "threads",
        default: Fallback::Integer(0),
        kind: Kind::Integer { min: 0, max: THREADS_MAX },
        help: "Threads that answer requests and talk to peers; 0 for as many as the machine has cores",
    },
    Key {
        name: "history",
        default: Fallback::Bool(true),
        kind: Kind::Bool,
        help: "Whether to remember recent permits, usage and changes of the cluster: true or false",
    },
    Key {
        name: "history_bytes_max",
        default: Fallback::Integer(HISTORY_BYTES_DEFAULT),
        kind: Kind::Integer { min: HISTORY_BYTES_MIN, max: HISTORY_BYTES_MAX },
        help: "Disk space for the history, in bytes; the oldest is forgotten first",
    },
    Key {
        name: "history_age",
        default: Fallback::Millis(HISTORY_AGE_MS_DEFAULT),
        kind: Kind::Duration { min_ms: 60_000, max_ms: 366 * 86_400_000 },
        help: "How long the history goes back",
    },
    Key {
        name: "log",
        default: Fallback::Text("info"),
        kind: Kind::Filter,
        help: "What is logged: a level (error, warn, info, debug, trace) or a filter such as info,quorate::node=debug",
    },
    Key {
        name: "log_format",
        default: Fallback::Text("text"),
        kind: Kind::Format,
        help: "How it is logged: text or json",
    },
];

impl Key {
    /// The setting of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// Its environment variable: `QUORATE_PEER_LISTEN`.
    pub fn variable(&self) -> String {
        format!("QUORATE_{}", self.name.to_ascii_uppercase())
    }

    /// Its flag without the dashes: `peer-listen`.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// A value as it stands in a file: numbers, `true` and `false` bare, everything else quoted.
    pub fn in_toml(&self, text: &str) -> String {
        match self.kind {
            Kind::Integer { .. } | Kind::Bool => text.to_owned(),
            _ => toml::Value::String(text.to_owned()).to_string(),
        }
    }
}

impl Fallback {
    /// Its text, if there is one to be had without the other settings.
    pub fn text(self) -> Option<String> {
        match self {
            Self::Required | Self::Derived(_) => None,
            Self::Integer(value) => Some(value.to_string()),
            Self::Millis(value) => Some(Span::from_millis(value).to_string()),
            Self::Text(value) => Some(value.to_owned()),
            Self::Bool(value) => Some(value.to_string()),
        }
    }

    /// For help and documentation.
    pub fn described(self) -> String {
        match self {
            Self::Required => "required".to_owned(),
            Self::Derived(how) => how.to_owned(),
            other => other.text().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct_and_defaults_lie_within_bounds() {
        assert_eq!(KEYS.iter().map(|key| key.name).collect::<BTreeSet<_>>().len(), KEYS.len());
        for key in KEYS {
            match (key.default, key.kind) {
                (Fallback::Integer(value), Kind::Integer { min, max }) => assert!((min..=max).contains(&value)),
                (Fallback::Millis(value), Kind::Duration { min_ms, max_ms }) => {
                    assert!((min_ms..=max_ms).contains(&value), "{}", key.name);
                }
                (Fallback::Integer(_) | Fallback::Millis(_), _) => {
                    panic!("{} has a default of another kind", key.name)
                }
                _ => {}
            }
        }
    }
}
