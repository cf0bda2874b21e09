//! The way to the nodes: asked in turn, the leader first once it is known, and never in doubt without saying so.
//!
//! Everything that is sent here may be repeated: acquires carry their ids, releases and renewals mean the same twice.

use crate::api::{Code, Millis, Problem, QUORATE_LEADER};
use crate::clock::Deadline;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Method};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// Largest answer that is read: room for a thousand permits with long keys and limits.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest wait for a connection: past it the next node is more likely to answer.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(1);
/// Pause after all nodes have turned a request away.
const PAUSE: Duration = Duration::from_millis(100);
/// Nodes named at once.
const NODES_MAX: usize = 64;
/// What a worker may want to see of a node's headers.
const PASSED_BACK: [HeaderName; 5] = [
    CONTENT_TYPE,
    RETRY_AFTER,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static(QUORATE_LEADER),
];

/// One question.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) body: Bytes,
    /// One attempt.
    pub(super) attempt_timeout: Duration,
    /// All of them.
    pub(super) timeout: Duration,
}

/// What a node said.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why no node said anything that counts.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// Certainly nothing was applied.
    Unavailable(Box<Problem>),
    /// An attempt was lost on its way.
    Unknown(String),
}

impl Failed {
    /// For a worker whose own request was passed on.
    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Unavailable(problem) => *problem,
            Self::Unknown(detail) => {
                Problem::new(Code::OutcomeUnknown, format!("{detail}; only a retry with the same request_id is safe"))
            }
        }
    }
}

/// Whoever answers for the cluster: its nodes, or in a test somebody in their place.
pub(super) trait Upstream: Send + Sync {
    /// Puts a question until it is settled or its time is over.
    fn put(&self, question: Question) -> BoxFuture<'_, Result<Answer, Failed>>;
}

/// The nodes of a cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    urls: Vec<String>,
    /// Where the leader was last seen. A hint: any node answers, the leader just answers without a hop.
    leader: Mutex<Option<String>>,
    http: reqwest::Client,
}

enum Attempt {
    Answered(Answer),
    NotSent(String),
    Lost(String),
}

impl Nodes {
    pub(super) fn new(urls: &[String], attempt_timeout: Duration) -> Result<Self, String> {
        if urls.is_empty() || urls.len() > NODES_MAX {
            return Err(format!("an agent needs 1 to {NODES_MAX} nodes, these are {}", urls.len()));
        }
        let http = reqwest::Client::builder()
            // Half at most, so that a connection that does not come about is known as such, and certain.
            .connect_timeout((attempt_timeout / 2).min(CONNECT_TIMEOUT_MAX))
            // A proxy would answer for a node that is not there, and a redirect would repeat a request unasked.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .user_agent(concat!("quorate-agent/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no HTTP here: {error}"))?;
        let urls = urls.iter().map(|url| base(url)).collect::<Result<_, _>>()?;
        Ok(Self { urls, leader: Mutex::new(None), http })
    }

    async fn settle(&self, question: Question) -> Result<Answer, Failed> {
        let deadline = Deadline::after(question.timeout);
        let mut doubt = None;
        let mut last = Problem::new(Code::NoLeader, "no node was asked");
        loop {
            let mut heard = false;
            for node in self.in_turn() {
                let left = deadline.remaining();
                if left.is_zero() {
                    return Err(gave_up(last, doubt));
                }
                let attempt = self.attempt(&node, &question, left.min(question.attempt_timeout)).await;
                self.learn(&node, &attempt);
                match attempt {
                    Attempt::Answered(answer) => match turned_away(&answer) {
                        None => return Ok(answer),
                        Some(problem) => {
                            heard = true;
                            if problem.code.certainty() == crate::api::Certainty::Unknown {
                                doubt = Some(format!("{node}: {}", problem.detail));
                            }
                            last = problem;
                        }
                    },
                    Attempt::NotSent(why) => last = unreachable(&node, &why),
                    Attempt::Lost(why) => {
                        heard = true;
                        doubt = Some(format!("{node}: {why}"));
                        last = unreachable(&node, &why);
                    }
                }
            }
            // Where nobody even takes the connection, asking again is for whoever comes next.
            if !heard && doubt.is_none() || deadline.remaining() <= PAUSE {
                return Err(gave_up(last, doubt));
            }
            sleep(PAUSE).await;
        }
    }

    async fn attempt(&self, node: &str, question: &Question, within: Duration) -> Attempt {
        let mut request =
            self.http.request(question.method.clone(), format!("{node}{}", question.path)).timeout(within);
        if !question.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json").body(question.body.clone());
        }
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Attempt::NotSent(cause(&error)),
            Err(error) => return Attempt::Lost(cause(&error)),
        };
        let mut headers = HeaderMap::new();
        for name in &PASSED_BACK {
            if let Some(value) = response.headers().get(name) {
                headers.insert(name, value.clone());
            }
        }
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => body.extend_from_slice(&chunk),
                Ok(Some(_)) => return Attempt::Lost(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")),
                Ok(None) => break,
                Err(error) => return Attempt::Lost(cause(&error)),
            }
        }
        Attempt::Answered(Answer { status: response.status().as_u16(), headers, body: body.freeze() })
    }

    fn in_turn(&self) -> Vec<String> {
        let leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let others = self.urls.iter().filter(|node| Some(*node) != leader.as_ref()).cloned();
        leader.iter().cloned().chain(others).collect()
    }

    /// Only nodes that were named are asked: others may not be where an agent can reach them, or only by another way.
    fn learn(&self, node: &str, attempt: &Attempt) {
        let mut leader = self.leader.lock().unwrap_or_else(PoisonError::into_inner);
        match attempt {
            Attempt::Answered(answer) => {
                let named = answer.headers.get(QUORATE_LEADER).and_then(|value| value.to_str().ok());
                if let Some(named) = named.and_then(|named| self.urls.iter().find(|url| *url == named)) {
                    *leader = Some(named.clone());
                } else if answer.status < 500 && named.is_none() {
                    *leader = Some(node.to_owned());
                }
            }
            Attempt::NotSent(_) | Attempt::Lost(_) => {
                if leader.as_deref() == Some(node) {
                    *leader = None;
                }
            }
        }
    }
}

impl Upstream for Nodes {
    fn put(&self, question: Question) -> BoxFuture<'_, Result<Answer, Failed>> {
        Box::pin(self.settle(question))
    }
}

/// The problem of an answer that another node, or the same one later, may well answer otherwise.
fn turned_away(answer: &Answer) -> Option<Problem> {
    if answer.status < 500 {
        return None;
    }
    let Ok(problem) = serde_json::from_slice::<Problem>(&answer.body) else {
        // Something in between, which may well have passed the request on.
        let detail = format!("status {}, and not from a node", answer.status);
        return Some(Problem::new(Code::OutcomeUnknown, detail));
    };
    // The whole cluster decided this: another node says the same.
    (problem.code != Code::TooManyKeys).then_some(problem)
}

fn unreachable(node: &str, why: &str) -> Problem {
    Problem::new(Code::NoLeader, format!("no node of the cluster can be reached; {node}: {why}"))
        .retry_after(Millis::up_from_ns(1_000_000_000))
}

fn gave_up(last: Problem, doubt: Option<String>) -> Failed {
    doubt.map_or_else(|| Failed::Unavailable(Box::new(last)), Failed::Unknown)
}

/// The innermost cause says what happened ("connection refused").
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() && !error.is_connect() {
        return "no answer in time".to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The URL without what a person may have put at its end.
fn base(url: &str) -> Result<String, String> {
    let parsed: http::Uri = url.trim().parse().map_err(|error| format!("{url:?} is no URL of a node: {error}"))?;
    let plain = matches!(parsed.path(), "" | "/") && parsed.query().is_none();
    match parsed.authority() {
        Some(authority) if parsed.scheme_str() == Some("http") && plain => Ok(format!("http://{authority}")),
        _ => Err(format!("{url:?} is no URL of a node: http://host:port")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        assert_eq!(base("http://a:1/").unwrap(), "http://a:1");
        for bad in ["", "a:1", "https://a:1", "http://a:1/x", "http://a:1?x"] {
            assert!(base(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_somebody_else_says_is_no_certainty() {
        let answer = |status, body: &str| Answer { status, headers: HeaderMap::new(), body: body.to_owned().into() };
        assert!(turned_away(&answer(429, "{}")).is_none());
        assert_eq!(turned_away(&answer(503, "<html>")).unwrap().code, Code::OutcomeUnknown);
        let said = serde_json::to_string(&Problem::new(Code::NoQuorum, "")).unwrap();
        assert_eq!(turned_away(&answer(503, &said)).unwrap().code, Code::NoQuorum);
    }

    #[tokio::test]
    async fn nobody_there_is_certain_and_quick() {
        // Bound, so that nobody else gets the port, and not listening.
        let bound = tokio::net::TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", bound.local_addr().unwrap());
        let nodes = Nodes::new(&[url], Duration::from_secs(1)).unwrap();
        let question = Question {
            method: Method::GET,
            path: "/livez".to_owned(),
            body: Bytes::new(),
            attempt_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
        };
        let Err(Failed::Unavailable(problem)) = nodes.put(question).await else { panic!("certain") };
        assert_eq!(problem.code, Code::NoLeader);
    }
}
