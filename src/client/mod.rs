//! The Rust client: any node will do, the leader is found on the way, and a retry never takes a second permit.
//!
//! Invariants
//! - A request that may have been applied is sent again only where twice means the same as once: an acquire under its
//!   request id (every one has one), a change of a policy, a release. A reset is not.
//! - Doubt sticks: once an attempt was lost on the way, "certainly not granted" is never said of the whole again.
//! - A wait counts from the receipt of the answer, the deadline of a start window from the first send. Both err on the
//!   safe side.
//!
//! Not here: reading limits and durations (`limiter/`), printing (`cli/`).

mod error;
mod exchange;
mod lease;
mod members;
mod nodes;
mod permit;
mod policies;
mod release;

pub use error::Error;
pub use lease::{Lease, Lost};
pub use permit::{Permit, TooLate};
pub use policies::{Precondition, Removed};

use crate::api::{
    AcquireRequest, AcquireResponse, AuditResponse, ClusterResponse, Code, HistoryResponse, KeyHistoryResponse,
    KeyResponse, Problem,
};
use crate::clock::{Deadline, Stopwatch};
use crate::limits::REQUEST_ID_RETENTION_NS;
use exchange::{Exchange, Reply, Wire};
use nodes::Nodes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// First pause after all nodes have turned a request away.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest such pause: elections take about a second, and nobody should sleep through the end of one.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Rounds in which nobody even took the connection before giving up: one more than the first, for a node that is just
/// being restarted.
const SILENT_ROUNDS_MAX: u32 = 2;
/// Longest deadline: within half of the time that a request id is remembered.
const TIMEOUT_MAX: Duration = Duration::from_nanos(REQUEST_ID_RETENTION_NS / 2);

/// What a segment of a path cannot have as it is: everything but the characters that URLs call unreserved.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where a cluster is and how much patience to have with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// URLs of the nodes, such as `http://127.0.0.1:7001`. One is enough, more survive its loss.
    pub nodes: Vec<String>,
    /// The whole call, retries and all.
    pub timeout: Duration,
    /// One attempt; then another node is asked.
    pub attempt_timeout: Duration,
}

impl Options {
    /// These nodes, ten seconds in all and three for each attempt.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            nodes: nodes.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(3),
        }
    }
}

/// A client of one cluster. Cheap to clone; clones share connections and what they know of the leader.
#[derive(Debug, Clone)]
pub struct Client {
    nodes: Arc<Nodes>,
    wire: Wire,
    timeout: Duration,
    attempt_timeout: Duration,
}

/// What came of one question, put to as many nodes as it took.
struct Settled<T> {
    answer: T,
    /// How many attempts reached a node, this one included.
    sends: u32,
    /// How an earlier attempt was lost that may have been applied.
    doubt: Option<String>,
}

/// Why a question was not settled.
struct Unsettled {
    error: Error,
    /// How an earlier attempt was lost that may have been applied.
    doubt: Option<String>,
}

impl From<Unsettled> for Error {
    fn from(unsettled: Unsettled) -> Self {
        unsettled.error
    }
}

/// What asking does, and so what is safe to do after an attempt was lost.
#[derive(Debug, Clone, Copy)]
enum Effect<'a> {
    /// Nothing: asked again at will, and never in doubt.
    Nothing,
    /// Takes a permit under this id: asked again at will.
    Permit(&'a str),
    /// The same whether it is applied once or twice: asked again at will.
    Repeatable,
    /// Something else each time: never asked again once it may have been applied.
    Once,
}

impl Client {
    /// A client of the cluster of these nodes.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::with(&Options::new(nodes))
    }

    /// A client with options of one's own.
    pub fn with(options: &Options) -> Result<Self, Error> {
        if options.timeout.is_zero() || options.timeout > TIMEOUT_MAX {
            return Err(Error::Misuse(format!(
                "a timeout lies between 1ms and {TIMEOUT_MAX:?}: {:?}",
                options.timeout
            )));
        }
        let attempt_timeout = options.attempt_timeout.min(options.timeout);
        Ok(Self {
            nodes: Arc::new(Nodes::new(&options.nodes)?),
            wire: Wire::new(attempt_timeout)?,
            timeout: options.timeout,
            attempt_timeout,
        })
    }

    /// Asks for a permit. Without a request id the request gets a random one.
    pub async fn acquire(&self, mut request: AcquireRequest) -> Result<Permit, Error> {
        let request_id = match request.request_id.take() {
            Some(id) => id,
            None => random_id()?,
        };
        request.request_id = Some(request_id.clone());
        let asked = Stopwatch::start();
        let settled =
            self.ask::<AcquireResponse>(&Exchange::post("/acquire", &request)?, Effect::Permit(&request_id)).await?;
        Ok(Permit::new(settled.answer, request_id, asked, settled.sends))
    }

    /// Looks at a key without consuming anything; linearizable.
    pub async fn key(&self, key: &str) -> Result<KeyResponse, Error> {
        Ok(self.ask(&Exchange::get(path("keys", key)?), Effect::Nothing).await?.answer)
    }

    /// What the node remembers of a key that answers first: its own memory, with at most `limit` permits.
    pub async fn history(&self, key: &str, limit: u32) -> Result<KeyHistoryResponse, Error> {
        let path = format!("/keys/{}/history?limit={limit}", utf8_percent_encode(key, NON_ALPHANUMERIC));
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
        futures::future::join_all(self.nodes.configured().iter().map(one)).await
    }

    /// Puts one question to the nodes in turn until one settles it or the deadline has come.
    async fn ask<T: DeserializeOwned>(&self, exchange: &Exchange, effect: Effect<'_>) -> Result<Settled<T>, Unsettled> {
        let deadline = Deadline::after(self.timeout);
        let mut doubt = None;
        let mut last = Again::new("no node was asked".to_owned());
        let (mut sends, mut silent_rounds, mut pause) = (0, 0, PAUSE_MIN);
        loop {
            let mut heard = false;
            for node in self.nodes.in_turn() {
                let left = deadline.remaining();
                if left.is_zero() {
                    return Err(give_up(last, doubt, effect));
                }
                let reply = self.wire.exchange(&node, exchange, left.min(self.attempt_timeout)).await;
                self.nodes.learn(&node, &reply);
                let sent = !matches!(reply, Reply::NotSent(_));
                heard |= sent;
                sends += u32::from(sent);
                match judge(&node, reply) {
                    Judgement::Settled(answer) => return Ok(Settled { answer, sends, doubt }),
                    // The change that is under way may be this very one.
                    Judgement::Final(Error::Refused(problem))
                        if doubt.is_some() && problem.code == Code::MembershipConflict =>
                    {
                        last = Again { problem: Some(problem.clone()), ..Again::new(problem.detail) };
                    }
                    Judgement::Final(error) => return Err(Unsettled { error, doubt }),
                    Judgement::Again(again) => {
                        if again.in_doubt {
                            doubt = Some(again.detail.clone());
                        }
                        last = again;
                    }
                }
                if doubt.is_some() && matches!(effect, Effect::Once) {
                    return Err(give_up(last, doubt, effect));
                }
            }
            silent_rounds = if heard { 0 } else { silent_rounds + 1 };
            if silent_rounds >= SILENT_ROUNDS_MAX && doubt.is_none() {
                return Err(give_up(last, doubt, effect));
            }
            let nap = last.retry_after.unwrap_or(pause).clamp(PAUSE_MIN, PAUSE_MAX);
            if nap >= deadline.remaining() {
                return Err(give_up(last, doubt, effect));
            }
            sleep(nap).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// The path of one thing in a collection. `.` and `..` mean directories to whatever reads URLs, also when encoded.
fn path(collection: &str, name: &str) -> Result<String, Error> {
    if matches!(name, "" | "." | "..") {
        return Err(Error::Misuse(format!("{name:?} cannot be part of a URL")));
    }
    Ok(format!("/{collection}/{}", utf8_percent_encode(name, ENCODED)))
}

/// Why to ask another node.
struct Again {
    detail: String,
    in_doubt: bool,
    retry_after: Option<Duration>,
    problem: Option<Box<Problem>>,
}

impl Again {
    fn new(detail: String) -> Self {
        Self { detail, in_doubt: false, retry_after: None, problem: None }
    }
}

enum Judgement<T> {
    Settled(T),
    Final(Error),
    Again(Again),
}

/// What one reply means. Only a node of ours can say that nothing was consumed: a 503 without our code comes from
/// something in between, which may well have passed the request on.
fn judge<T: DeserializeOwned>(node: &str, reply: Reply) -> Judgement<T> {
    let (status, body) = match reply {
        Reply::NotSent(why) => return Judgement::Again(Again::new(format!("{node}: {why}"))),
        Reply::Lost(why) => {
            return Judgement::Again(Again { in_doubt: true, ..Again::new(format!("{node}: {why}")) });
        }
        Reply::Answered { status, body, .. } => (status, body),
    };
    if status == 200 {
        return match serde_json::from_slice(&body) {
            Ok(answer) => Judgement::Settled(answer),
            Err(error) => {
                let detail = format!("{node}: an answer that no node of ours gives: {error}");
                Judgement::Again(Again { in_doubt: true, ..Again::new(detail) })
            }
        };
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
        let detail = format!("{node}: status {status}, and not from a node of ours");
        return Judgement::Again(Again { in_doubt: status >= 500, ..Again::new(detail) });
    };
    let again = |in_doubt, problem: Problem| {
        Judgement::Again(Again {
            detail: format!("{node}: {}", problem.detail),
            in_doubt,
            retry_after: problem.retry_after_ms.map(crate::api::Millis::duration),
            problem: Some(Box::new(problem)),
        })
    };
    match problem.code {
        Code::Denied => Judgement::Final(Error::Denied(Box::new(problem))),
        Code::NoQuorum | Code::NoLeader | Code::DiskFull | Code::Overloaded | Code::ShuttingDown => {
            again(false, problem)
        }
        // The whole cluster decided the first: another node says the same. The second is about one node, and asking until it
        // changes its mind would make people wait for nothing.
        Code::TooManyKeys | Code::HistoryUnavailable => Judgement::Final(Error::unavailable(problem)),
        Code::Unrecognized if status < 500 => Judgement::Final(Error::Refused(Box::new(problem))),
        Code::OutcomeUnknown | Code::Internal | Code::Unrecognized => again(true, problem),
        _ => Judgement::Final(Error::Refused(Box::new(problem))),
    }
}

fn give_up(last: Again, doubt: Option<String>, effect: Effect<'_>) -> Unsettled {
    let error = match (&doubt, effect) {
        (None, _) | (_, Effect::Nothing) => Error::Unavailable { detail: last.detail, problem: last.problem },
        (Some(detail), Effect::Permit(id)) => {
            Error::OutcomeUnknown { detail: detail.clone(), request_id: Some(id.to_owned()) }
        }
        (Some(detail), Effect::Repeatable | Effect::Once) => {
            Error::OutcomeUnknown { detail: detail.clone(), request_id: None }
        }
    };
    Unsettled { error, doubt }
}

/// 128 random bits as hexadecimal digits: nobody else's, without asking anybody.
fn random_id() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Misuse(format!("the system has no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
