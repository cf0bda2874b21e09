//! One request to one node, and how certain it is that it never arrived.

use super::error::Error;
use crate::api::QUORATE_LEADER;
use reqwest::Method;
use serde::Serialize;
use std::time::Duration;

/// Largest answer that is read, in bytes: room for ten thousand policies.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How long a connection is kept for the next request. A node closes one after 90 s: past that, a request would be lost on it.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Longest wait for a connection: past it the next node is more likely to answer.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// A request, ready to be sent to whichever node, as often as need be.
pub(super) struct Exchange {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    /// JSON, for methods that bring some.
    body: Option<Vec<u8>>,
}

/// What came back.
pub(super) enum Reply {
    /// A whole answer.
    Answered { status: u16, body: Vec<u8>, leader: Option<String> },
    /// The request never left: certain.
    NotSent(String),
    /// The request may have arrived.
    Lost(String),
}

impl Exchange {
    pub(super) fn get(path: String) -> Self {
        Self { method: Method::GET, path, headers: Vec::new(), body: None }
    }

    pub(super) fn delete(path: String) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub(super) fn post(path: &str, body: &impl Serialize) -> Result<Self, Error> {
        Self::with_body(Method::POST, path.to_owned(), body)
    }

    pub(super) fn put(path: String, body: &impl Serialize) -> Result<Self, Error> {
        Self::with_body(Method::PUT, path, body)
    }

    fn with_body(method: Method, path: String, body: &impl Serialize) -> Result<Self, Error> {
        let body =
            serde_json::to_vec(body).map_err(|error| Error::Misuse(format!("no JSON comes of that: {error}")))?;
        Ok(Self { method, body: Some(body), ..Self::get(path) })
    }

    /// The same, with one more header.
    pub(super) fn header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// The connections.
#[derive(Debug, Clone)]
pub(super) struct Wire(reqwest::Client);

impl Wire {
    pub(super) fn new(attempt_timeout: Duration) -> Result<Self, Error> {
        reqwest::Client::builder()
            // Half at most, so that a connection that does not come about is known as such, and certain.
            .connect_timeout((attempt_timeout / 2).min(CONNECT_TIMEOUT_MAX))
            .pool_idle_timeout(IDLE_MAX)
            // A proxy would answer for a node that is not there, and a redirect would repeat a request unasked.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("quorate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map(Self)
            .map_err(|error| Error::Misuse(format!("no HTTP here: {}", causes(&error))))
    }

    pub(super) async fn exchange(&self, node: &str, exchange: &Exchange, timeout: Duration) -> Reply {
        let url = format!("{node}{}", exchange.path);
        let mut request = self.0.request(exchange.method.clone(), url);
        for (name, value) in &exchange.headers {
            request = request.header(*name, value);
        }
        if let Some(body) = &exchange.body {
            request = request.header("content-type", "application/json").body(body.clone());
        }
        let mut response = match request.timeout(timeout).send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Reply::NotSent(causes(&error)),
            Err(error) => return Reply::Lost(causes(&error)),
        };
        let status = response.status().as_u16();
        let leader = response.headers().get(QUORATE_LEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_BYTES_MAX => body.extend_from_slice(&chunk),
                Ok(Some(_)) => return Reply::Lost(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")),
                Ok(None) => return Reply::Answered { status, body, leader },
                Err(error) => return Reply::Lost(causes(&error)),
            }
        }
    }
}

/// The innermost cause says what happened ("connection refused"); the layers around it only say that something did.
fn causes(error: &reqwest::Error) -> String {
    if error.is_timeout() && !error.is_connect() {
        return "no answer in time".to_owned();
    }
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
