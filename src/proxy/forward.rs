//! Passing a request on, and its answer back, as they come.

use super::headers;
use super::refusal::Refusal;
use super::timed::Timed;
use crate::edge::{Body, HttpBody, Incoming};
use http::header::TRANSFER_ENCODING;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::BodyExt;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::time::Duration;
use tokio::time::timeout;

/// Longest time for a connection to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may be silent in the middle of its body.
const BODY_IDLE: Duration = Duration::from_secs(60);
/// How long a connection rests before it is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections to the upstream that rest at once.
const IDLE_MAX: usize = 256;

/// The way to the upstream.
#[derive(Debug, Clone)]
pub(super) struct Forwarder {
    client: Client<HttpConnector, Timed<Incoming>>,
    upstream: Authority,
    host: HeaderValue,
    /// Longest silence of the upstream.
    answer_within: Duration,
}

impl Forwarder {
    pub(super) fn new(upstream: Authority, answer_within: Duration) -> Result<Self, String> {
        let host = HeaderValue::from_str(upstream.as_str()).map_err(|error| error.to_string())?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(connector);
        Ok(Self { client, upstream, host, answer_within })
    }

    /// Where a request goes; else why it cannot be passed on.
    pub(super) fn target(&self, method: &Method, asked: &Uri) -> Result<Uri, Refusal> {
        passed_on(&self.upstream, method, asked).map_err(Refusal::NoKey)
    }

    /// The answer of the upstream, its body still to come.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        target: Uri,
        client: &str,
    ) -> Result<Response<Body>, Refusal> {
        let request = self.prepared(request, target, client).map(|body| Timed::new(body, BODY_IDLE));
        let upload = request.body().progress();
        let mut answer = std::pin::pin!(self.client.request(request));
        // The time for an answer begins when the upstream has taken all there is to take: a long upload is not its silence.
        let response = loop {
            let left = self.answer_within.saturating_sub(upload.still());
            match timeout(left, &mut answer).await {
                Ok(done) => break done,
                Err(_) if upload.still() >= self.answer_within => return Err(Refusal::Silent(self.answer_within)),
                Err(_) => {}
            }
        };
        let mut response = response.map_err(|error| {
            if upload.given_up() { Refusal::SlowBody } else { Refusal::Unreachable(causes(&error)) }
        })?;
        let version = response.version();
        headers::towards_client(response.headers_mut(), version);
        // The next hop is ours to speak with.
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(|body| Timed::new(body, self.answer_within).boxed()))
    }

    fn prepared(&self, mut request: Request<Incoming>, target: Uri, client: &str) -> Request<Incoming> {
        *request.uri_mut() = target;
        let version = request.version();
        headers::towards_upstream(request.headers_mut(), &self.host, client, version);
        if request.body().size_hint().exact().is_none() {
            // Without it a GET would be taken for one without a body, whatever follows.
            request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        *request.version_mut() = Version::HTTP_11;
        request
    }
}

/// The same path and query at the upstream.
fn passed_on(upstream: &Authority, method: &Method, asked: &Uri) -> Result<Uri, String> {
    let Some(path) = asked.path_and_query().filter(|_| method != Method::CONNECT) else {
        return Err("only requests for a path are passed on".to_owned());
    };
    let uri = Uri::builder().scheme(Scheme::HTTP).authority(upstream.clone()).path_and_query(path.clone()).build();
    uri.map_err(|error| format!("a path that cannot be passed on: {error}"))
}

/// What happened, with the innermost cause.
fn causes(error: &Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let stage = if error.is_connect() { "no connection to the upstream" } else { "the upstream broke off" };
    format!("{stage}: {innermost}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_on_as_they_are() {
        let upstream: Authority = "127.0.0.1:9000".parse().unwrap();
        let to = |method: Method, asked: &str| {
            passed_on(&upstream, &method, &asked.parse().unwrap()).map(|uri| uri.to_string())
        };
        assert_eq!(to(Method::GET, "/a%2Fb/../c?d=%20e").unwrap(), "http://127.0.0.1:9000/a%2Fb/../c?d=%20e");
        assert_eq!(to(Method::GET, "http://elsewhere/x").unwrap(), "http://127.0.0.1:9000/x");
        assert!(to(Method::CONNECT, "elsewhere:443").is_err());
    }
}
