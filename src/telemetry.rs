//! Logging: to stderr, as text or JSON, through one filter.
//!
//! Invariant: logging never stops a node. A closed or full stderr loses lines, it does not panic and does not fail.
//!
//! Not here: metrics (`http/` shows them, whoever counts names them).

use std::io::{self, IsTerminal, Write};
use std::str::FromStr;
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Libraries that tell more than an operator wants. A filter that names one of them has all the say about it.
///
/// Replication repeats itself for every attempt to reach a node that is down, several times a second for as long as it is.
const QUIET: &[(&str, &str)] = &[
    ("openraft", "openraft=warn,openraft::replication=error,openraft::engine::handler::replication_handler=error"),
    ("hyper", "hyper=warn,hyper_util=warn"),
    ("reqwest", "reqwest=warn"),
    ("sled", "sled=warn"),
];

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("has to be text or json, this is {other:?}")),
        }
    }
}

/// Why nothing can be logged.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The filter is none.
    #[error("{0}")]
    Filter(String),
    /// Somebody else was first.
    #[error("logging was set up twice: {0}")]
    Twice(String),
}

/// Reads a filter such as `info` or `info,quorate::node=debug`.
pub fn filter(text: &str) -> Result<EnvFilter, TelemetryError> {
    // The library takes any word for the name of a module, and `inof` would silence everything.
    for word in text.split(',').map(str::trim).filter(|word| !word.contains(['=', '[', ':', '_'])) {
        if tracing::level_filters::LevelFilter::from_str(word).is_err() && word != env!("CARGO_PKG_NAME") {
            return Err(TelemetryError::Filter(format!(
                "{word:?} is no level (error, warn, info, debug, trace or off); for a module write module=level"
            )));
        }
    }
    let quiet = QUIET.iter().filter(|(library, _)| !text.contains(library)).map(|(_, directives)| *directives);
    EnvFilter::builder()
        .parse(quiet.chain([text]).collect::<Vec<_>>().join(","))
        .map_err(|error| TelemetryError::Filter(format!("{text:?} is no filter: {error}")))
}

/// Begins to log. Once in a process.
pub fn init(filter_text: &str, format: Format) -> Result<(), TelemetryError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(filter_text)?)
        .with_writer(|| LossyStderr)
        .with_ansi(colour(io::stderr().is_terminal()));
    match format {
        Format::Text => builder.finish().try_init(),
        Format::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|error| TelemetryError::Twice(error.to_string()))
}

/// Whether to colour what goes to a terminal: not if `NO_COLOR` is there and not empty (no-color.org).
pub fn colour(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Standard error without errors: the subscriber answers a failed write with `eprintln!`, which panics when stderr is a
/// closed pipe, and a node must not die of that.
struct LossyStderr;

impl Write for LossyStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read_and_typing_errors_refused() {
        for good in ["info", "off", "warn,quorate::node=debug", "info,openraft=debug", "quorate=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
        assert!(filter("inof").unwrap_err().to_string().starts_with("\"inof\" is no level"));
        assert!(filter("quorate=loud").is_err());
    }

    #[test]
    fn libraries_are_quiet_unless_named() {
        assert!(filter("info").unwrap().to_string().contains("openraft=warn"));
        assert!(filter("info,openraft=debug").unwrap().to_string().contains("openraft=debug"));
        assert!(!filter("info,openraft=debug").unwrap().to_string().contains("openraft::"), "not even in part");
    }
}
