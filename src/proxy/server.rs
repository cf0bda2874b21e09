//! The running proxy: one listener for requests, one for who watches it, and an orderly end.

use super::errands::Errands;
use super::forward::Forwarder;
use super::hold::Holder;
use super::meters::{Ending, Meters};
use super::options::{Options, client_of};
use super::refusal::Refusal;
use crate::client::Client;
use crate::edge::{self, Body, Bounds, Deadlines, Incoming, Peer};
use http::{Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// How long a client may take for its headers, between two requests, and until it takes a part of its answer.
const DEADLINES: Deadlines =
    Deadlines { header: Duration::from_secs(10), idle: Duration::from_secs(90), write: Duration::from_secs(60) };
/// Connections of those who watch.
const WATCHERS_MAX: usize = 64;

/// Where a proxy listens.
#[derive(Debug)]
pub struct Listeners {
    /// For requests.
    pub requests: TcpListener,
    /// For `GET /metrics` and probes, if anybody wants them.
    pub metrics: Option<TcpListener>,
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
    recorder: PrometheusHandle,
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
    let bounds = Bounds { connections_max: options.connections_max, deadlines: DEADLINES, grace: options.grace };
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
    let watched = async {
        match listeners.metrics {
            Some(listener) => watched(listener, recorder.clone()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = serve => {}
        () = watched => {}
        // Whether or not anybody looks: without it every sample would be kept.
        () = edge::upkeep(&recorder) => {}
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
        // What cannot be passed on takes no permit.
        let wanted = self.forwarder.target(&parts.method, &parts.uri);
        let wanted = wanted.and_then(|target| Ok((target, self.options.key.of(&parts).map_err(Refusal::NoKey)?)));
        let done = match wanted {
            Err(refusal) => Err(refusal),
            Ok((target, key)) => match self.pass(&key, &peer).await {
                // Nobody reads this; whatever was reserved is on its way back.
                None => return edge::text(StatusCode::SERVICE_UNAVAILABLE, ""),
                Some(Err(refusal)) => Err(refusal),
                Some(Ok(())) => {
                    self.forwarder.forward(Request::from_parts(parts, body), target, &client_of(&peer)).await
                }
            },
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
    let bounds = Bounds { connections_max: WATCHERS_MAX, deadlines: DEADLINES, grace: Duration::from_secs(1) };
    let handler = move |request: Request<Incoming>, _: Peer| {
        let response = match (request.method(), request.uri().path()) {
            (&Method::GET, "/metrics") => edge::metrics(&recorder),
            (&Method::GET, "/livez") => edge::text(StatusCode::OK, "ok\n"),
            _ => edge::text(StatusCode::NOT_FOUND, "GET /metrics or GET /livez\n"),
        };
        std::future::ready(response)
    };
    edge::serve(listener, bounds, handler, std::future::pending()).await;
}
