//! A real target server: it notes when each request arrives, and gives every body back as it comes.

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use quorate::clock::Stopwatch;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// What the target saw.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) url: String,
    clock: Stopwatch,
    seen: Arc<Mutex<Vec<Seen>>>,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Duration,
    pub(crate) path: String,
    pub(crate) headers: http::HeaderMap,
}

impl Target {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let target = Self { url, clock: Stopwatch::start(), seen: Arc::default() };
        let answering = target.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let target = answering.clone();
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let target = target.clone();
                        async move { Ok::<_, Infallible>(target.answer(request).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        target
    }

    /// `/silent` is never answered, `/whole` when all of its body is there, anything else at once.
    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<BoxBody<Bytes, hyper::Error>> {
        let at = self.clock.elapsed();
        let (parts, body) = request.into_parts();
        let path = parts.uri.to_string();
        self.seen.lock().unwrap().push(Seen { at, path: path.clone(), headers: parts.headers });
        let response = http::Response::builder()
            .header("x-target", "yes")
            .header("connection", "x-private")
            .header("x-private", "for the proxy alone");
        let body = match path.as_str() {
            "/silent" => std::future::pending().await,
            "/whole" => {
                let whole = body.collect().await.expect("a body").to_bytes();
                http_body_util::Full::new(whole).map_err(|never| match never {}).boxed()
            }
            _ => body.boxed(),
        };
        response.body(body).expect("a response")
    }

    /// All requests in the order they came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The shortest time between two arrivals.
    pub(crate) fn closest(&self) -> Option<Duration> {
        let mut all: Vec<_> = self.seen().iter().map(|seen| seen.at).collect();
        all.sort();
        all.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).min()
    }
}
