//! The settings of a node: flags over `QUORATE_…` variables over a file over defaults.
//!
//! Invariants
//! - A [`Config`] that exists has been checked: every value within its bounds, and the values among each other.
//! - All that is wrong is said at once, each with the place it was said in and the bound it broke.
//!
//! Not here: what clients of a cluster are told (`cli/`), and whether a directory holds another node's data (`node/`).

mod keys;
mod layers;

pub use keys::{Fallback, KEYS, Key, Kind};
pub use layers::{Layers, OTHER_VARIABLES, Origin, Setting};

use crate::limiter::{Span, parse_duration};
use crate::limits::MEMBERS_MAX;
use crate::telemetry;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Longest name of a cluster, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The settings of a node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// This node's number in the cluster.
    pub id: u64,
    /// Where its log and snapshots lie.
    pub data: PathBuf,
    /// Where clients connect.
    pub listen: String,
    /// Where peers connect.
    pub peer_listen: String,
    /// The client URL announced to the others; `None` for what it turns out to listen on.
    pub advertise: Option<String>,
    /// The first members and their peer addresses; empty when the data has to know.
    pub members: BTreeMap<u64, String>,
    /// Whether it waits for a cluster to add it.
    pub join: bool,
    /// Name of the cluster.
    pub cluster: String,
    /// Keys held at once.
    pub keys_max: u64,
    /// Client connections accepted at once.
    pub connections_max: usize,
    /// How often a leader says that it is there.
    pub heartbeat: Duration,
    /// Shortest silence before an election.
    pub election_min: Duration,
    /// Longest silence before an election.
    pub election_max: Duration,
    /// Bound of the work on one request.
    pub request_timeout: Duration,
    /// Bound of the sending of headers.
    pub header_timeout: Duration,
    /// Bound of the sending of a body.
    pub body_timeout: Duration,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
    /// Log entries kept behind a snapshot.
    pub log_keep: u64,
    /// Disk space below which nothing more is taken.
    pub disk_reserve: u64,
    /// Bound of the wait for requests in flight when the node stops.
    pub drain: Duration,
    /// Whether to remember what happened.
    pub history: bool,
    /// Bound of what is remembered, in bytes on disk.
    pub history_bytes_max: u64,
    /// Bound of its age.
    pub history_age: Duration,
    /// Threads that serve; zero for as many as the machine has cores.
    pub threads: usize,
    /// What is logged.
    pub log: String,
    /// How it is logged.
    pub log_format: telemetry::Format,
}

/// All that is wrong with a configuration, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Problems {}

impl Config {
    /// Reads and checks the settings as they stand after all layers.
    pub fn read(layers: &Layers) -> Result<Self, Problems> {
        let mut reader = Reader { layers, problems: layers.problems().to_vec() };
        let id = reader.integer("id");
        let config = Self {
            id,
            data: reader.text("data").map_or_else(|| data_default(id), PathBuf::from),
            listen: reader.checked("listen", address),
            peer_listen: reader.checked("peer_listen", address),
            advertise: reader.optional("advertise", url),
            members: reader.optional("members", members).unwrap_or_default(),
            join: reader.optional("join", truth).unwrap_or_default(),
            cluster: reader.checked("cluster", name),
            keys_max: reader.integer("keys_max"),
            connections_max: usize::try_from(reader.integer("connections_max")).unwrap_or(usize::MAX),
            heartbeat: reader.duration("heartbeat"),
            election_min: reader.duration("election_min"),
            election_max: reader.duration("election_max"),
            request_timeout: reader.duration("request_timeout"),
            header_timeout: reader.duration("header_timeout"),
            body_timeout: reader.duration("body_timeout"),
            snapshot_every: reader.integer("snapshot_every"),
            log_keep: reader.integer("log_keep"),
            disk_reserve: reader.integer("disk_reserve"),
            drain: reader.duration("drain"),
            history: reader.optional("history", truth).unwrap_or_default(),
            history_bytes_max: reader.integer("history_bytes_max"),
            history_age: reader.duration("history_age"),
            threads: usize::try_from(reader.integer("threads")).unwrap_or(0),
            log: reader.checked("log", |text| {
                telemetry::filter(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
            }),
            log_format: reader.optional("log_format", str::parse).unwrap_or(telemetry::Format::Text),
        };
        // Values that are wrong by themselves would only make noise among each other.
        if reader.problems.is_empty() {
            reader.among_each_other(&config);
        }
        if reader.problems.is_empty() { Ok(config) } else { Err(Problems(reader.problems)) }
    }

    /// The text of a setting as it takes effect, defaults that depend on other settings included; `None` if it has none.
    pub fn effective(layers: &Layers, key: &Key) -> Option<String> {
        let said = |name: &str| layers.get(name).and_then(|setting| setting.text.clone());
        said(key.name).or_else(|| match key.name {
            "data" => Some(data_default(said("id")?.parse().ok()?).display().to_string()),
            "advertise" => Some(format!("http://{}", said("listen")?)),
            _ => None,
        })
    }
}

/// Beside the data of the other nodes that `quorate up` starts in the same place.
fn data_default(id: u64) -> PathBuf {
    PathBuf::from(format!("quorate-data/node{id}"))
}

/// Reads values one by one and collects what is wrong; the values it gives for those are never seen by anybody.
struct Reader<'a> {
    layers: &'a Layers,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        self.layers.get(name).and_then(|setting| setting.text.clone())
    }

    fn wrong(&mut self, name: &str, what: impl fmt::Display) {
        let place = match self.layers.get(name).map(|setting| &setting.origin) {
            None | Some(Origin::Default) => name.to_owned(),
            Some(origin @ Origin::File { .. }) => format!("{origin}: {name}"),
            Some(origin) => origin.to_string(),
        };
        self.problems.push(format!("{place}: {what}"));
    }

    fn optional<T>(&mut self, name: &str, check: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        match check(&self.text(name)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.wrong(name, problem);
                None
            }
        }
    }

    fn checked(&mut self, name: &str, check: impl FnOnce(&str) -> Result<String, String>) -> String {
        self.optional(name, check).unwrap_or_default()
    }

    fn integer(&mut self, name: &str) -> u64 {
        let Some(Key { kind: Kind::Integer { min, max }, .. }) = Key::find(name) else { return 0 };
        if self.text(name).is_none() {
            let key = Key::find(name).map(Key::variable).unwrap_or_default();
            self.wrong(name, format!("is required: give --{name}, {key} or {name} in the file"));
            return 0;
        }
        let check = |text: &str| match text.parse::<i128>() {
            Ok(value) if (i128::from(*min)..=i128::from(*max)).contains(&value) => {
                u64::try_from(value).map_err(|error| error.to_string())
            }
            Ok(value) => Err(format!("has to lie between {min} and {max}, this one is {value}")),
            Err(_) => Err(format!("has to be a whole number between {min} and {max}, this is {text:?}")),
        };
        self.optional(name, check).unwrap_or_default()
    }

    fn duration(&mut self, name: &str) -> Duration {
        let Some(Key { kind: Kind::Duration { min_ms, max_ms }, .. }) = Key::find(name) else { return Duration::ZERO };
        let (min, max) = (Span::from_millis(*min_ms), Span::from_millis(*max_ms));
        let check = |text: &str| match parse_duration(text).map_err(|error| error.to_string())? {
            span if span < min || span > max => Err(format!("has to lie between {min} and {max}, this one is {span}")),
            span => Ok(Duration::from_nanos(span.0)),
        };
        self.optional(name, check).unwrap_or_default()
    }

    fn among_each_other(&mut self, config: &Config) {
        if config.election_min < config.heartbeat * 2 {
            let (short, beat) = (config.election_min, config.heartbeat);
            self.wrong(
                "election_min",
                format!(
                    "is {short:?}, and has to be at least twice the heartbeat ({beat:?}): one lost heartbeat must not \
                     unseat a leader"
                ),
            );
        }
        if config.election_max <= config.election_min {
            let (long, short) = (config.election_max, config.election_min);
            self.wrong("election_max", format!("is {long:?}, and has to be longer than election_min ({short:?})"));
        }
        if !config.members.is_empty() && !config.members.contains_key(&config.id) {
            let ids: Vec<_> = config.members.keys().map(u64::to_string).collect();
            self.wrong("members", format!("names nodes {} and not this one, {}", ids.join(", "), config.id));
        }
        if config.advertise.is_none() && is_wildcard(&config.listen) {
            self.wrong(
                "listen",
                format!(
                    "{} is no address that clients can be sent to: set advertise to the URL they reach this node by",
                    config.listen
                ),
            );
        }
    }
}

/// `host:port`. Names are looked up when they are used, not here.
fn address(text: &str) -> Result<String, String> {
    split_address(text).map(|_| text.to_owned())
}

fn split_address(text: &str) -> Result<(&str, u16), String> {
    let wrong = || format!("has to be host:port, such as 127.0.0.1:7001 or [::1]:7001, this is {text:?}");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let unfit = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | '?' | '#' | ',' | '=');
    if host.is_empty() || host.contains(unfit) || (host.contains(':') && !bracketed) {
        return Err(wrong());
    }
    let port = port.parse().map_err(|_| format!("has to end in a port between 0 and 65535, this is {text:?}"))?;
    Ok((host, port))
}

fn is_wildcard(listen: &str) -> bool {
    split_address(listen).is_ok_and(|(host, _)| matches!(host, "0.0.0.0" | "[::]"))
}

/// `http://host:port`, and nothing behind it.
fn url(text: &str) -> Result<String, String> {
    let wrong = || format!("has to be a URL such as http://host:7001, this is {text:?}");
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (_, port) = split_address(rest).map_err(|_| wrong())?;
    if port == 0 { Err(wrong()) } else { Ok(format!("http://{rest}")) }
}

/// `true` or `false`.
fn truth(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("has to be true or false, this is {text:?}"))
}

/// A name that is safe in a file name, a log line and a label.
fn name(text: &str) -> Result<String, String> {
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(fit) {
        return Err(format!("has to be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', this is {text:?}"));
    }
    Ok(text.to_owned())
}

/// `1=host:port,2=host:port`.
fn members(text: &str) -> Result<BTreeMap<u64, String>, String> {
    let mut members = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (id, peer) = part.split_once('=').ok_or_else(|| format!("has to be id=host:port, this is {part:?}"))?;
        let (id, peer) = (id.trim(), peer.trim());
        let id: u64 = id.parse().ok().filter(|id| *id > 0).ok_or_else(|| format!("{id:?} is no node id"))?;
        let (_, port) = split_address(peer).map_err(|problem| format!("the address of member {id} {problem}"))?;
        if port == 0 {
            return Err(format!("the address of member {id} needs the port it will listen on, this is {peer:?}"));
        }
        if let Some((other, _)) = members.iter().find(|(_, known)| *known == peer) {
            return Err(format!("members {other} and {id} have the same address {peer}"));
        }
        if members.insert(id, peer.to_owned()).is_some() {
            return Err(format!("member {id} is named twice"));
        }
    }
    if members.len() > MEMBERS_MAX {
        return Err(format!("a cluster has at most {MEMBERS_MAX} members, these are {}", members.len()));
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, Problems> {
        let mut layers = Layers::defaults();
        layers.file_text("f", text);
        Config::read(&layers)
    }

    fn problems(text: &str) -> Vec<String> {
        read(text).map_or_else(|problems| problems.0, |_| Vec::new())
    }

    #[test]
    fn the_defaults_need_only_an_id() {
        let config = read("id = 3").unwrap();
        assert_eq!(config.data, PathBuf::from("quorate-data/node3"));
        assert_eq!((config.heartbeat, config.election_max), (Duration::from_millis(100), Duration::from_millis(350)));
        assert_eq!(problems(""), ["id: is required: give --id, QUORATE_ID or id in the file"]);
    }

    #[test]
    fn bounds_are_in_the_message() {
        for (text, problem) in [
            ("id = 0", "f:1: id: has to lie between 1 and 65535, this one is 0"),
            ("id = -1", "f:1: id: has to lie between 1 and 65535, this one is -1"),
            ("id = 1\nkeys_max = 0", "f:2: keys_max: has to lie between 1 and 100000000, this one is 0"),
            ("id = 1\nheartbeat = \"1ms\"", "f:2: heartbeat: has to lie between 10ms and 10s, this one is 1ms"),
            (
                "id = 1\nheartbeat = \"1\"",
                "f:2: heartbeat: expected a unit (ms, s, m, h or d) at column 2 of \"1\", found the end",
            ),
            ("id = 1\nhistory_age = \"1s\"", "f:2: history_age: has to lie between 1m and 366d, this one is 1s"),
            (
                "id = 1\nhistory_bytes_max = 1",
                "f:2: history_bytes_max: has to lie between 16777216 and 1099511627776, this one is 1",
            ),
            ("id = 1\nlog_format = \"xml\"", "f:2: log_format: has to be text or json, this is \"xml\""),
            (
                "id = 1\nheartbeat = \"400ms\"",
                "election_min: is 200ms, and has to be at least twice the heartbeat (400ms): one lost heartbeat must not \
                 unseat a leader",
            ),
            (
                "id = 1\nelection_max = \"200ms\"",
                "f:2: election_max: is 200ms, and has to be longer than election_min (200ms)",
            ),
            (
                "id = 1\nlisten = \"0.0.0.0:7001\"",
                "f:2: listen: 0.0.0.0:7001 is no address that clients can be sent to: set advertise to the URL they reach \
                 this node by",
            ),
        ] {
            assert_eq!(problems(text), [problem], "{text}");
        }
    }

    #[test]
    fn members_are_told_apart() {
        let good = read("id = 2\nmembers = \"1=a:1, 2=[::1]:2,3=c:3\"").unwrap();
        assert_eq!(good.members.get(&2).map(String::as_str), Some("[::1]:2"));
        for (text, problem) in [
            ("1=a:1,1=b:2", "member 1 is named twice"),
            ("1=a:1,2=a:1", "members 1 and 2 have the same address a:1"),
            ("1=a:0", "the address of member 1 needs the port it will listen on, this is \"a:0\""),
            ("a:1", "has to be id=host:port, this is \"a:1\""),
            ("0=a:1", "\"0\" is no node id"),
            ("2=b:2,3=c:3", "names nodes 2, 3 and not this one, 1"),
        ] {
            assert_eq!(
                problems(&format!("id = 1\nmembers = {text:?}")),
                [format!("f:2: members: {problem}")],
                "{text}"
            );
        }
    }

    #[test]
    fn addresses_and_urls() {
        for good in ["127.0.0.1:0", "[::1]:7001", "node1.example:7001"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in ["", "7001", ":7001", "a:65536", "::1:7001", "http://a:1", "a b:1", "a:"] {
            assert!(address(bad).is_err(), "{bad}");
        }
        assert_eq!(url("http://a:1/").as_deref(), Ok("http://a:1"));
        for bad in ["a:1", "https://a:1", "http://a", "http://a:0", "http://a:1/x"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        assert_eq!(problems("id = 0\nlisten = \"x\"\nwat = 1").len(), 3);
    }
}
