//! Where settings come from: defaults, a file, the environment, flags; the later one wins and says who it was.
//!
//! Everything travels as text, whatever it came from, so that there is one reader of values (`config.rs`) and one
//! wording of what is wrong with them. Not here: what a value means.

use super::keys::{KEYS, Key, Kind};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use toml::de::{DeInteger, DeTable, DeValue};

/// Largest configuration file, in bytes: somebody who passes a database by mistake should not wait for it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Variables that are not settings of a node but ours all the same.
pub const OTHER_VARIABLES: &[&str] =
    &["QUORATE_CONFIG", "QUORATE_NODES", "QUORATE_TIMEOUT", "QUORATE_KEY", "QUORATE_PERMIT"];

/// Who said what a setting is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody.
    Default,
    /// A file.
    File {
        /// As it was named.
        path: String,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// A flag, with its dashes.
    Flag(String),
}

/// A place a person can go to: `node1.toml:7`, `QUORATE_LISTEN`, `--listen`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One setting as it stands after all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its text; `None` when it is unset and has no default of its own.
    pub text: Option<String>,
    /// Who said so.
    pub origin: Origin,
}

/// All settings, one layer laid over the other.
#[derive(Debug, Clone)]
pub struct Layers {
    settings: BTreeMap<&'static str, Setting>,
    problems: Vec<String>,
    notices: Vec<String>,
}

impl Layers {
    /// The defaults alone.
    pub fn defaults() -> Self {
        let default = |key: &'static Key| (key.name, Setting { text: key.default.text(), origin: Origin::Default });
        Self { settings: KEYS.iter().map(default).collect(), problems: Vec::new(), notices: Vec::new() }
    }

    /// Lays a file over what is there.
    pub fn file(&mut self, path: &Path) {
        match read(path) {
            Ok(text) => self.file_text(&path.display().to_string(), &text),
            Err(problem) => self.problems.push(format!("{}: {problem}", path.display())),
        }
    }

    /// Lays the text of a file over what is there.
    pub fn file_text(&mut self, path: &str, text: &str) {
        let line_of = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => {
                let line = error.span().map_or(1, |span| line_of(span.start));
                self.problems.push(format!("{path}:{line}: {}", error.message()));
                return;
            }
        };
        for (name, value) in &table {
            let line = line_of(name.span().start);
            let name = name.get_ref().as_ref();
            let Some(key) = Key::find(name) else {
                let hint = did_you_mean(name, KEYS.iter().map(|key| key.name.to_owned()));
                self.problems.push(format!("{path}:{line}: unknown key {name:?}{hint}"));
                continue;
            };
            match text_of(key, value.get_ref()) {
                Ok(text) => self.set(key, text, Origin::File { path: path.to_owned(), line }),
                Err(problem) => self.problems.push(format!("{path}:{line}: {name}: {problem}")),
            }
        }
    }

    /// Lays the `QUORATE_…` variables over what is there. One that looks like a misspelt setting is a problem: it would
    /// silently do nothing. Any other stranger is only named: a script may have variables of its own, such as the path of
    /// this program, and a node should start under it.
    pub fn environment(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        let mut ours: Vec<_> = variables
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| name.starts_with("QUORATE_"))
            .collect();
        ours.sort();
        for (name, value) in ours {
            let Ok(value) = value.into_string() else {
                self.problems.push(format!("{name}: is not UTF-8"));
                continue;
            };
            if let Some(key) = KEYS.iter().find(|key| key.variable() == name) {
                self.set(key, value, Origin::Variable(name));
            } else if !OTHER_VARIABLES.contains(&name.as_str()) && !is_service_link(&name, &value) {
                match misspelt(&name) {
                    Some(known) => self.problems.push(format!("unknown variable {name}: did you mean {known}?")),
                    None => self.notices.push(format!("{name} is no setting of this program; it is ignored")),
                }
            }
        }
    }

    /// Lays flags over what is there.
    pub fn flags<'a>(&mut self, flags: impl IntoIterator<Item = (&'static Key, &'a str)>) {
        for (key, text) in flags {
            self.set(key, text.to_owned(), Origin::Flag(format!("--{}", key.flag())));
        }
    }

    /// A setting as it stands.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.get(name)
    }

    /// What is wrong with the layers themselves.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// What is odd about them and does no harm.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    fn set(&mut self, key: &'static Key, text: String, origin: Origin) {
        self.settings.insert(key.name, Setting { text: Some(text), origin });
    }
}

fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("a configuration has at most {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|error| format!("is not UTF-8 at byte {}", error.utf8_error().valid_up_to()))
}

/// The text of a value in a file, if it has the type that its key wants.
fn text_of(key: &Key, value: &DeValue<'_>) -> Result<String, String> {
    match (key.kind, value) {
        (Kind::Integer { .. }, DeValue::Integer(number)) => decimal(number),
        (Kind::Members, DeValue::Table(table)) => members_text(table),
        (Kind::Bool, DeValue::Boolean(value)) => Ok(value.to_string()),
        (Kind::Bool, other) => Err(format!("has to be true or false, without quotes, found {}", other.type_str())),
        (Kind::Integer { .. }, other) => Err(format!("has to be a number, found {}", other.type_str())),
        (_, DeValue::String(text)) => Ok(text.to_string()),
        (Kind::Duration { .. }, DeValue::Integer(_)) => {
            Err("has to be a text with its unit, such as \"200ms\" or \"5s\"".to_owned())
        }
        (Kind::Members, other) => {
            Err(format!("has to be a table or a text such as \"1=host:port,2=host:port\", found {}", other.type_str()))
        }
        (_, other) => Err(format!("has to be a text in quotes, found {}", other.type_str())),
    }
}

/// TOML numbers may be hexadecimal, octal or binary; ours travel in decimal.
fn decimal(number: &DeInteger<'_>) -> Result<String, String> {
    i128::from_str_radix(number.as_str(), number.radix())
        .map(|value| value.to_string())
        .map_err(|_| format!("{number} is larger than any number here may be"))
}

fn members_text(table: &DeTable<'_>) -> Result<String, String> {
    let member = |(id, address): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let id: &std::borrow::Cow<'_, str> = id.get_ref();
        match address.get_ref() {
            DeValue::String(address) => Ok(format!("{id}={address}")),
            other => Err(format!("the address of member {id} has to be a text in quotes, found {}", other.type_str())),
        }
    };
    Ok(table.iter().map(member).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// Kubernetes puts the addresses of every service into the environment of every pod. For a service called `quorate` or
/// `quorate-…` they look like ours, and refusing them would keep the node from starting.
fn is_service_link(name: &str, value: &str) -> bool {
    let url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || (name.ends_with("_PORT") && url)
        || (name.contains("_PORT_") && ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol)))
}

/// The variable that was probably meant. The common prefix does not count, and short names have to be nearer than long ones.
fn misspelt(name: &str) -> Option<String> {
    let short = |name: &str| name.trim_start_matches("QUORATE_").to_owned();
    let known = KEYS.iter().map(Key::variable).chain(OTHER_VARIABLES.iter().map(ToString::to_string));
    let nearest = known.map(|known| (strsim::osa_distance(&short(name), &short(&known)), known)).min();
    nearest.filter(|(distance, known)| *distance <= 1 + short(known).len() / 4).map(|(_, known)| known)
}

/// `: did you mean …?` if something known is near enough, else what to do instead.
fn did_you_mean(name: &str, known: impl Iterator<Item = String>) -> String {
    let nearest = known.map(|known| (strsim::osa_distance(name, &known), known)).min();
    match nearest {
        Some((distance, known)) if distance <= 1 + known.len() / 3 => format!(": did you mean {known}?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(layers: &'a Layers, name: &str) -> &'a str {
        layers.get(name).and_then(|setting| setting.text.as_deref()).unwrap_or("nothing")
    }

    #[test]
    fn the_later_layer_wins_and_is_named() {
        let mut layers = Layers::defaults();
        assert_eq!(text(&layers, "keys_max"), "1000000");
        layers.file_text("a.toml", "\nkeys_max = 0x10\n[members]\n1 = \"a:1\"\n2 = \"b:2\"\n");
        assert_eq!((text(&layers, "keys_max"), text(&layers, "members")), ("16", "1=a:1,2=b:2"));
        assert_eq!(layers.get("keys_max").unwrap().origin.to_string(), "a.toml:2");
        layers.environment([("QUORATE_KEYS_MAX".into(), "17".into()), ("HOME".into(), "/".into())]);
        assert_eq!(
            (text(&layers, "keys_max"), layers.get("keys_max").unwrap().origin.to_string()),
            ("17", "QUORATE_KEYS_MAX".to_owned())
        );
        layers.flags([(Key::find("keys_max").unwrap(), "18")]);
        assert_eq!(
            (text(&layers, "keys_max"), layers.get("keys_max").unwrap().origin.to_string()),
            ("18", "--keys-max".to_owned())
        );
        assert_eq!(layers.problems(), [] as [String; 0]);
    }

    #[test]
    fn what_nobody_knows_is_named_with_what_was_meant() {
        let mut layers = Layers::defaults();
        layers.file_text("a.toml", "id = 1\nheartbeet = \"1s\"\nzebra_crossing_width = 2\n");
        layers.environment([("QUORATE_LISTN".into(), "x".into()), ("QUORATE_BIN".into(), "/bin/quorate".into())]);
        assert_eq!(layers.notices(), ["QUORATE_BIN is no setting of this program; it is ignored"]);
        assert_eq!(
            layers.problems(),
            [
                "a.toml:2: unknown key \"heartbeet\": did you mean heartbeat?",
                "a.toml:3: unknown key \"zebra_crossing_width\"",
                "unknown variable QUORATE_LISTN: did you mean QUORATE_LISTEN?",
            ]
        );
    }

    #[test]
    fn types_are_checked_where_they_stand() {
        let mut layers = Layers::defaults();
        layers.file_text("a.toml", "cluster = 3\ndrain = 5\nhistory = \"yes\"\nid = \"1\"\nmembers = [1]\n");
        assert_eq!(
            layers.problems(),
            [
                "a.toml:1: cluster: has to be a text in quotes, found integer",
                "a.toml:2: drain: has to be a text with its unit, such as \"200ms\" or \"5s\"",
                "a.toml:3: history: has to be true or false, without quotes, found string",
                "a.toml:4: id: has to be a number, found string",
                "a.toml:5: members: has to be a table or a text such as \"1=host:port,2=host:port\", found array",
            ]
        );
        let mut layers = Layers::defaults();
        layers.file_text("b.toml", "id = 1\nid = 2\n");
        assert_eq!(layers.problems(), ["b.toml:2: duplicate key"]);
    }

    #[test]
    fn links_of_kubernetes_services_are_not_ours() {
        let mut layers = Layers::defaults();
        layers.environment([
            ("QUORATE_PORT".into(), "tcp://10.0.0.1:7001".into()),
            ("QUORATE_SERVICE_HOST".into(), "10.0.0.1".into()),
            ("QUORATE_SERVICE_PORT_HTTP".into(), "7001".into()),
            ("QUORATE_PEERS_PORT_7101_TCP_ADDR".into(), "10.0.0.1".into()),
        ]);
        assert_eq!(layers.problems(), [] as [String; 0]);
    }
}
