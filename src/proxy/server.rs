//! The running proxy: one listener for requests, one for who watches it, and an orderly end.

use super::errands::Errands;
use super::forward::Forwarder;
use super::hold::Holder;
use super::meters::{Ending, Meters};
use super::options::{Options, client_of};
use super::refusal::Refusal;
use crate::client::Client;
use crate::edge::{self, Body, Bounds, Incoming, Peer};
use http::{Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Time for the headers of a request, and for a rest between two.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections of those who watch.
const WATCHERS_MAX: usize = 64;

/// Where a proxy listens.
#[derive(Debug)]
pub struct Listeners {
    /// For requests.
    pub requests: TcpListener,
    /// For `GET /metrics` and probes, if anybody wants them.
    pub metrics: Option<(TcpListener, PrometheusHandle)>,
}

struct Proxy {
    options: Arc<Options>,
    holder: Holder,
    forwarder: Forwarder,
    meters: Meters,
    /// One place for every request that is held.
    places: Semaphore,
    /// Becomes true when held requests are sent away.
    stopping: watch::Sender<bool>,
}

/// Runs until `shutdown` completes, then: accepts nobody, sends away who is held, lets answers in flight finish, and gives back
/// every permit that was not used. Fails only if it cannot begin.
pub async fn run(
    listeners: Listeners,
    options: Options,
    client: Client,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String> {
    let options = Arc::new(options);
    let (errands, mut all_done) = Errands::new(client);
    let proxy = Arc::new(Proxy {
        holder: Holder::new(Arc::clone(&options), errands),
        forwarder: Forwarder::new(options.upstream.clone(), options.upstream_timeout)?,
        meters: Meters::new(),
        places: Semaphore::new(options.waiting_max.clamp(1, Semaphore::MAX_PERMITS)),
        stopping: watch::Sender::new(false),
        options: Arc::clone(&options),
    });
    let bounds =
        Bounds { connections_max: options.connections_max, header_timeout: HEADER_TIMEOUT, grace: options.grace };
    let (answering, stopping) = (Arc::clone(&proxy), proxy.stopping.clone());
    let handler = move |request, peer| {
        let proxy = Arc::clone(&answering);
        async move { proxy.answer(request, peer).await }
    };
    let stop = async move {
        shutdown.await;
        stopping.send_replace(true);
    };
    let serve = edge::serve(listeners.requests, bounds, handler, stop);
    match listeners.metrics {
        Some((listener, recorder)) => {
            tokio::select! {
                () = serve => {}
                () = watched(listener, recorder) => {}
            }
        }
        None => serve.await,
    }
    // The last holder of the errands: what is still underway ends by itself.
    drop(proxy);
    if timeout(options.grace, all_done.recv()).await.is_err() {
        tracing::warn!("some permits could not be given back in time and are wasted");
    }
    Ok(())
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let ending = Ending::new();
        let (parts, body) = request.into_parts();
        let passed = match self.options.key.of(&parts) {
            Ok(key) => self.pass(&key, &peer).await,
            Err(why) => Some(Err(Refusal::NoKey(why))),
        };
        let done = match passed {
            // Nobody reads this; whatever was reserved is on its way back.
            None => return edge::text(StatusCode::SERVICE_UNAVAILABLE, ""),
            Some(Ok(())) => self.forwarder.forward(Request::from_parts(parts, body), &client_of(&peer)).await,
            Some(Err(refusal)) => Err(refusal),
        };
        match done {
            Ok(response) => {
                ending.with("forwarded");
                response
            }
            Err(refusal) => {
                ending.with(refusal.outcome());
                refusal.response()
            }
        }
    }

    /// Holds a request; `None` if its client has gone meanwhile.
    async fn pass(&self, key: &str, peer: &Peer) -> Option<Result<(), Refusal>> {
        let Ok(_place) = self.places.try_acquire() else {
            return Some(Err(Refusal::Full(self.options.waiting_max)));
        };
        let _waiting = self.meters.waits();
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            held = self.holder.hold(key) => Some(held.map(|held| self.meters.held(&held))),
            () = peer.hangup.closed() => None,
            _ = stopping.wait_for(|stopping| *stopping) => Some(Err(Refusal::Stopping)),
        }
    }
}

/// `GET /metrics` and `GET /livez`, for as long as it is polled.
async fn watched(listener: TcpListener, recorder: PrometheusHandle) {
    let bounds =
        Bounds { connections_max: WATCHERS_MAX, header_timeout: HEADER_TIMEOUT, grace: Duration::from_secs(1) };
    let shown = recorder.clone();
    let handler = move |request: Request<Incoming>, _: Peer| {
        let response = match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => edge::metrics(&shown),
            (&Method::GET, "/livez") => edge::text(StatusCode::OK, "ok\n"),
            _ => edge::text(StatusCode::NOT_FOUND, "GET /metrics or GET /livez\n"),
        };
        std::future::ready(response)
    };
    tokio::join!(edge::serve(listener, bounds, handler, std::future::pending()), edge::upkeep(&recorder));
}
