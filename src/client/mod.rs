//! The Rust client: any node will do, the leader is found on the way, and a retry never takes a second permit.
//!
//! ```no_run
//! use quorate::client::{Ask, Client, Error};
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::new(["http://127.0.0.1:7001", "http://127.0.0.1:7002", "http://127.0.0.1:7003"])?;
//! let github = Ask::new("github").limit("1/6s");
//! let pass = client.acquire(&github).await?; // waits; start the work now
//! if client.try_acquire(&github).await?.is_none() {
//!     // none is free now
//! }
//! let reservation = client.reserve(&github).await?; // its slot is known; dropped, it is given back
//! println!("in {:?}", reservation.starts_in());
//! let pass = reservation.start().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | outcome | what it says | what it means for the permit |
//! |---|---|---|
//! | [`Pass`] | start now | it is yours |
//! | [`Error::RateLimited`] | denied by the cluster | nothing was consumed, unless its detail names an attempt that was lost |
//! | [`Error::Timeout`] | the caller's patience ended first | nothing is held |
//! | [`Error::Unavailable`] | nobody decided | certainly nothing was consumed |
//! | [`Error::OutcomeUnknown`] | the answer was lost for good | a slot may have passed unused |
//! | [`Error::Refused`] | the request makes no sense to the cluster | nothing was consumed |
//!
//! Invariants
//! - A request that may have been applied is sent again only where twice means the same as once: an acquire under its
//!   request id (every one has one), a change of a policy, a release. A reset is not.
//! - Doubt sticks: once an attempt was lost on the way, "certainly not granted" is never said of the whole again. A refusal that
//!   follows names the lost attempt, and "nobody decided" becomes an unknown outcome.
//! - A wait counts from the receipt of the answer, the deadline of a start window from the first send. Both err on the
//!   safe side. All clocks are monotonic.
//! - A permit that nobody uses is given back, also where the call that asked for it was dropped.
//!
//! Not here: printing (`cli/`).

mod acquire;
mod all_of;
mod answer;
mod ask;
mod background;
mod backoff;
mod batch;
pub mod blocking;
mod counters;
mod degrade;
mod denials;
mod error;
mod exchange;
mod held;
mod layer;
mod lease;
mod local;
mod members;
mod nodes;
mod options;
mod outage;
mod pass;
mod permit;
mod policies;
mod release;
mod request;
mod reservation;
mod round_trip;
mod rules;
mod settle;
mod throttled;

pub use ask::Ask;
pub use counters::Counters;
pub use error::Error;
pub use layer::{Throttle, ThrottleError, ThrottleLayer};
pub use lease::{Lease, Lost};
pub use options::{Lead, OnUnavailable, Options};
pub use pass::{Pass, Source};
pub use permit::{Permit, TooLate};
pub use policies::{Precondition, Removed};
pub use reservation::Reservation;
pub use throttled::{skipping, throttled};

use crate::api::{AuditResponse, ClusterResponse, HistoryResponse, KeyHistoryResponse, KeyResponse};
use crate::clock::Stopwatch;
use background::Background;
use counters::Tally;
use denials::Denials;
use exchange::{Exchange, Reply, Wire};
use local::Local;
use nodes::Nodes;
use outage::Outage;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use round_trip::RoundTrip;
use rules::Rules;
use settle::Effect;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Requests for permits that are under way at once, over all tasks of a client: each has a connection.
const TURNS: usize = 128;

/// What a segment of a path cannot have as it is: everything but the characters that URLs call unreserved.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A client of one cluster. Cheap to clone; clones share connections and what they know of the cluster.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
    wire: Wire,
    timeout: Duration,
    attempt_timeout: Duration,
}

/// What all clones of a client know.
#[derive(Debug)]
struct Shared {
    options: Options,
    nodes: Nodes,
    tally: Tally,
    round_trip: RoundTrip,
    rules: Rules,
    denials: Denials,
    local: Local,
    outage: Outage,
    background: Arc<Background>,
    turns: Semaphore,
    /// What the client's own times count from.
    began: Stopwatch,
}

impl Client {
    /// A client of the cluster of these nodes.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::with(&Options::new(nodes))
    }

    /// A client of the cluster that the environment names. See [`Options::from_env`].
    pub fn from_env() -> Result<Self, Error> {
        Self::with(&Options::from_env()?)
    }

    /// A client with options of one's own.
    pub fn with(options: &Options) -> Result<Self, Error> {
        options.check()?;
        let attempt_timeout = options.attempt_timeout.min(options.timeout);
        let shared = Shared {
            nodes: Nodes::new(&options.nodes)?,
            options: options.clone(),
            tally: Tally::default(),
            round_trip: RoundTrip::default(),
            rules: Rules::default(),
            denials: Denials::default(),
            local: Local::default(),
            outage: Outage::default(),
            background: Arc::default(),
            turns: Semaphore::new(TURNS),
            began: Stopwatch::start(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            wire: Wire::new(attempt_timeout)?,
            timeout: options.timeout,
            attempt_timeout,
        })
    }

    /// What this client and its clones did so far.
    pub fn counters(&self) -> Counters {
        self.shared.tally.snapshot()
    }

    /// Waits until everything that is being given back now has arrived, or cannot. For the end of a program: what was dropped goes
    /// back in the background, and only as long as the runtime lives.
    pub async fn quiet(&self) {
        self.shared.background.quiet().await;
    }

    /// Looks at a key without consuming anything; linearizable.
    pub async fn peek(&self, key: &str) -> Result<KeyResponse, Error> {
        Ok(self.ask(&Exchange::get(path("keys", key)?), Effect::Nothing).await?.answer)
    }

    /// What the node remembers of a key that answers first: its own memory, with at most `limit` permits.
    pub async fn history(&self, key: &str, limit: u32) -> Result<KeyHistoryResponse, Error> {
        let path = format!("{}/history?limit={limit}", path("keys", key)?);
        Ok(self.ask(&Exchange::get(path), Effect::Nothing).await?.answer)
    }

    /// Usage over the last hour as the node remembers it that answers first, of everything or of one policy, with the `top`
    /// busiest keys.
    pub async fn usage(&self, policy: Option<&str>, top: u32) -> Result<HistoryResponse, Error> {
        let policy = policy.map(|policy| format!("&policy={}", utf8_percent_encode(policy, NON_ALPHANUMERIC)));
        let path = format!("/history?top={top}{}", policy.unwrap_or_default());
        Ok(self.ask(&Exchange::get(path), Effect::Nothing).await?.answer)
    }

    /// The audit trail as the node remembers it that answers first, with at most `limit` events.
    pub async fn audit(&self, limit: u32) -> Result<AuditResponse, Error> {
        Ok(self.ask(&Exchange::get(format!("/audit?limit={limit}")), Effect::Nothing).await?.answer)
    }

    /// The cluster as the node sees it that answers first.
    pub async fn cluster(&self) -> Result<ClusterResponse, Error> {
        Ok(self.ask(&Exchange::get("/cluster".to_owned()), Effect::Nothing).await?.answer)
    }

    /// Asks every node whether it should get traffic: its URL, and what is wrong if something is.
    pub async fn readiness(&self) -> Vec<(String, Result<(), String>)> {
        let readyz = Exchange::get("/readyz".to_owned());
        let one = async |node: &String| {
            let answer = match self.wire.exchange(node, &readyz, self.attempt_timeout).await {
                Reply::Answered { status: 200, .. } => Ok(()),
                Reply::Answered { status, body, .. } => {
                    Err(format!("{status} {}", String::from_utf8_lossy(&body).trim()))
                }
                Reply::NotSent(why) | Reply::Lost(why) => Err(why),
            };
            (node.clone(), answer)
        };
        futures::future::join_all(self.shared.nodes.configured().iter().map(one)).await
    }
}

/// The path of one thing in a collection. `.` and `..` mean directories to whatever reads URLs, also when encoded.
fn path(collection: &str, name: &str) -> Result<String, Error> {
    if matches!(name, "" | "." | "..") {
        return Err(Error::Misuse(format!("{name:?} cannot be part of a URL")));
    }
    Ok(format!("/{collection}/{}", utf8_percent_encode(name, ENCODED)))
}

/// 128 random bits as hexadecimal digits: nobody else's, without asking anybody.
fn random_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Misuse(format!("the system has no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
