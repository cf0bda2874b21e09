//! Where a cluster is, how much patience to have with it, and what to do without it.

use super::error::Error;
use crate::limits::{LEAD_NS_MAX, REQUEST_ID_RETENTION_NS, WORKER_BYTES_MAX};
use std::time::Duration;

/// Longest timeout: within half of the time that a request id is remembered.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_nanos(REQUEST_ID_RETENTION_NS / 2);
const PROBE_EVERY_MAX: Duration = Duration::from_secs(3_600);
const LEAD_MAX: Duration = Duration::from_nanos(LEAD_NS_MAX);

/// Where `quorate up` listens.
const NODES_DEFAULT: &str = "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003";

/// How a client behaves.
///
/// ```
/// use quorate::client::{OnUnavailable, Options};
/// use std::time::Duration;
///
/// let options = Options {
///     timeout: Duration::from_secs(2),
///     on_unavailable: OnUnavailable::Local { fraction: 0.1 },
///     ..Options::new(["http://127.0.0.1:7001", "http://127.0.0.1:7002"])
/// };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// URLs of the nodes, such as `http://127.0.0.1:7001`. One is enough, more survive its loss.
    pub nodes: Vec<String>,
    /// How long one question may take until somebody has decided it, retries and all. How long to wait for a permit is another
    /// matter: see [`Ask::max_wait`](super::Ask::max_wait).
    pub timeout: Duration,
    /// One attempt; then another node is asked.
    pub attempt_timeout: Duration,
    /// What to do while the cluster cannot be asked.
    pub on_unavailable: OnUnavailable,
    /// How long to try before going on without the cluster, where [`Options::on_unavailable`] says so.
    pub degrade_after: Duration,
    /// How long to go on without it before one call tries it again.
    pub probe_every: Duration,
    /// Whether a denial is remembered until it is worth asking again. In that time the same question is denied here, without a
    /// request; a permit that somebody else gives back is then found later.
    pub denial_cache: bool,
    /// How far ahead of now slots are asked for, so that the answer is here before they come.
    pub lead: Lead,
    /// How long the last clone of a [`blocking`](super::blocking) client waits for what is still being given back.
    pub farewell: Duration,
    /// A label for the history.
    pub worker: Option<String>,
}

/// What to do while the cluster cannot be asked. Whatever is let through here is no permit: nobody else knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum OnUnavailable {
    /// Nothing starts.
    #[default]
    Closed,
    /// Everything starts.
    Open,
    /// This process paces itself, at a part of the limit's rate, beginning at a random instant and no sooner than the last
    /// grant of the cluster allows. With as many processes as the part has in one, all of them together keep to the rate,
    /// though not to its spacing.
    Local {
        /// More than 0, at most 1.
        fraction: f64,
    },
}

/// How far ahead of now slots are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lead {
    /// As far as the way there and back takes, as measured.
    #[default]
    Measured,
    /// This far.
    Fixed(Duration),
    /// Not at all.
    None,
}

impl Options {
    /// These nodes, ten seconds in all and three for each attempt.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            nodes: nodes.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(3),
            on_unavailable: OnUnavailable::Closed,
            degrade_after: Duration::from_secs(2),
            probe_every: Duration::from_secs(1),
            denial_cache: true,
            lead: Lead::Measured,
            farewell: Duration::from_secs(5),
            worker: None,
        }
    }

    /// The nodes that the environment names, as the command line does: `QUORATE_NODES`, with commas between their URLs, or else the
    /// three of `quorate up`.
    pub fn from_env() -> Result<Self, Error> {
        match std::env::var("QUORATE_NODES") {
            Ok(nodes) => Ok(Self::named(&nodes)),
            Err(std::env::VarError::NotPresent) => Ok(Self::named(NODES_DEFAULT)),
            Err(error) => Err(Error::Misuse(format!("QUORATE_NODES: {error}"))),
        }
    }

    fn named(nodes: &str) -> Self {
        Self::new(nodes.split(',').map(str::trim).filter(|node| !node.is_empty()))
    }

    /// What is wrong with them, if anything is.
    pub(super) fn check(&self) -> Result<(), Error> {
        let misuse = |what| Err(Error::Misuse(what));
        if self.timeout.is_zero() || self.timeout > TIMEOUT_MAX {
            return misuse(format!("a timeout lies between 1ms and {TIMEOUT_MAX:?}: {:?}", self.timeout));
        }
        if self.attempt_timeout.is_zero() {
            return misuse("no attempt succeeds in no time: attempt_timeout".to_owned());
        }
        if self.degrade_after.is_zero() || self.degrade_after > TIMEOUT_MAX {
            return misuse(format!("degrade_after lies between 1ms and {TIMEOUT_MAX:?}: {:?}", self.degrade_after));
        }
        if self.probe_every > PROBE_EVERY_MAX {
            return misuse(format!("probe_every is at most {PROBE_EVERY_MAX:?}: {:?}", self.probe_every));
        }
        if self.farewell > TIMEOUT_MAX {
            return misuse(format!("a farewell takes at most {TIMEOUT_MAX:?}: {:?}", self.farewell));
        }
        if let OnUnavailable::Local { fraction } = self.on_unavailable
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return misuse(format!("a part of the rate is more than 0 and at most 1: {fraction}"));
        }
        if let Lead::Fixed(lead) = self.lead
            && lead > LEAD_MAX
        {
            return misuse(format!("a lead is at most {LEAD_MAX:?}: {lead:?}"));
        }
        match &self.worker {
            Some(worker) if worker.len() > WORKER_BYTES_MAX => {
                misuse(format!("a label has at most {WORKER_BYTES_MAX} bytes, this one has {}", worker.len()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let good = Options::new(["http://a:1"]);
        assert_eq!(good.check(), Ok(()));
        for bad in [
            Options { timeout: Duration::ZERO, ..good.clone() },
            Options { timeout: Duration::from_secs(61), ..good.clone() },
            Options { attempt_timeout: Duration::ZERO, ..good.clone() },
            Options { degrade_after: Duration::ZERO, ..good.clone() },
            Options { degrade_after: Duration::from_secs(61), ..good.clone() },
            Options { probe_every: Duration::from_secs(3_601), ..good.clone() },
            Options { farewell: Duration::from_secs(61), ..good.clone() },
            Options { on_unavailable: OnUnavailable::Local { fraction: 0.0 }, ..good.clone() },
            Options { on_unavailable: OnUnavailable::Local { fraction: 1.1 }, ..good.clone() },
            Options { on_unavailable: OnUnavailable::Local { fraction: f64::NAN }, ..good.clone() },
            Options { lead: Lead::Fixed(Duration::from_secs(61)), ..good.clone() },
            Options { worker: Some("w".repeat(65)), ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nodes_are_named_as_on_the_command_line() {
        assert_eq!(Options::named(NODES_DEFAULT).nodes.len(), 3);
        assert_eq!(Options::named(" http://a:1, ,http://b:2,").nodes, ["http://a:1", "http://b:2"]);
        assert!(super::super::Client::with(&Options::named("")).is_err(), "no nodes, no client");
    }
}
