//! The listener: accepts, bounds, serves, and stops without cutting anybody off.
//!
//! A loop of our own on hyper, because `axum::serve` has neither a timeout for headers nor a bound on connections.

use super::app::App;
use super::ceiling::Ceiling;
use super::express::Express;
use super::options::Options;
use super::rewound::Rewound;
use super::route;
use super::shell;
use super::upstream::Upstream;
use crate::edge::accept::{self, pause, until_stopped};
use crate::edge::reject::{self, REJECTIONS_MAX};
use crate::edge::{Deadlines, Guarded, Hangup, Phase, Socket};
use crate::limits::HEADER_BYTES_MAX;
use crate::node::Handle;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use metrics::Gauge;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// How often the recorder of the metrics tidies up: histograms keep every sample until then.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves clients on `listener` until `shutdown` completes; then accepts nobody any more, lets requests in flight
/// finish within `options.shutdown_grace`, and closes what is left.
pub async fn serve(listener: TcpListener, handle: Handle, options: Options, shutdown: impl Future<Output = ()>) {
    run(listener, Upstream::Node(handle), options, shutdown).await;
}

/// The same with nothing behind it: every request for a permit is granted at once. For benchmarks.
pub async fn serve_ceiling(listener: TcpListener, options: Options, shutdown: impl Future<Output = ()>) {
    run(listener, Upstream::Ceiling(Ceiling::default()), options, shutdown).await;
}

/// The same in front of anything.
pub(super) async fn run(
    listener: TcpListener,
    upstream: Upstream,
    options: Options,
    shutdown: impl Future<Output = ()>,
) {
    let mut server = Server::new(upstream, options);
    let mut upkeep = interval(UPKEEP);
    upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = server.tasks.join_next() => accept::ended(ended),
            _ = upkeep.tick() => server.upkeep(),
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => server.accept(socket),
                Err(error) => pause(&error).await,
            },
        }
    }
    drop(listener);
    server.drain().await;
}

struct Server {
    app: Arc<App>,
    router: Router,
    /// One permit per connection.
    places: Arc<Semaphore>,
    /// One permit per connection that is being turned away.
    rejections: Arc<Semaphore>,
    tasks: JoinSet<()>,
    /// Becomes true when connections should end after the request they are at.
    stopping: watch::Sender<bool>,
    /// Which thread gets the next connection; zero is this one.
    turn: usize,
}

impl Server {
    fn new(upstream: Upstream, options: Options) -> Self {
        let places = Arc::new(Semaphore::new(options.connections_max.min(Semaphore::MAX_PERMITS)));
        let app = Arc::new(App::new(upstream, options));
        Self {
            router: route::router(Arc::clone(&app)),
            app,
            places,
            rejections: Arc::new(Semaphore::new(REJECTIONS_MAX)),
            tasks: JoinSet::new(),
            stopping: watch::Sender::new(false),
            turn: 0,
        }
    }

    fn upkeep(&self) {
        if let Some(recorder) = &self.app.options.metrics {
            recorder.run_upkeep();
        }
    }

    fn accept(&mut self, socket: TcpStream) {
        // Answers are small and whole: holding one back to fill a packet would only make it late.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection broke before it began");
            return;
        }
        match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => {
                let open = Open::new(self.app.meters.connections.clone(), place);
                self.put(socket, open);
            }
            Err(_full) => self.turn_away(socket),
        }
    }

    /// Puts a connection on the thread whose turn it is.
    fn put(&mut self, socket: TcpStream, open: Open) {
        let (app, router, stopping) = (Arc::clone(&self.app), self.router.clone(), self.stopping.subscribe());
        let crew = &self.app.options.crew;
        self.turn = (self.turn + 1) % (crew.len() + 1);
        let Some(thread) = self.turn.checked_sub(1).and_then(|at| crew.get(at)) else {
            self.tasks.spawn(connection(socket, app, router, stopping, open));
            return;
        };
        let moved = async move {
            // Its readiness is told by the runtime of that thread from now on.
            match socket.into_std().and_then(TcpStream::from_std) {
                Ok(socket) => connection(socket, app, router, stopping, open).await,
                Err(error) => tracing::debug!(%error, "a connection broke before it began"),
            }
        };
        self.tasks.spawn_on(moved, thread);
    }

    fn turn_away(&mut self, socket: TcpStream) {
        self.app.meters.connections_rejected.increment(1);
        let Ok(place) = Arc::clone(&self.rejections).try_acquire_owned() else { return };
        let response = reject::response(
            "this node has as many connections as it takes; ask another one",
            shell::leader_url(&self.app).as_deref(),
        );
        self.tasks.spawn(async move {
            reject::reject(socket, &response).await;
            drop(place);
        });
    }

    async fn drain(self) {
        accept::drain(self.tasks, &self.stopping, self.app.options.shutdown_grace).await;
    }
}

/// A place among the connections, given back when the task ends in whatever way.
struct Open {
    connections: Gauge,
    _place: OwnedSemaphorePermit,
}

impl Open {
    fn new(connections: Gauge, place: OwnedSemaphorePermit) -> Self {
        connections.increment(1.0);
        Self { connections, _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connections.decrement(1.0);
    }
}

/// What all requests of one connection have in common.
struct Conversation {
    app: Arc<App>,
    router: Router,
    phase: Phase,
    hangup: Hangup,
}

async fn connection(socket: TcpStream, app: Arc<App>, router: Router, stopping: watch::Receiver<bool>, open: Open) {
    let (socket, hangup) = Socket::new(socket);
    let Options { header_timeout, idle_timeout, write_timeout, .. } = app.options;
    let deadlines = Deadlines { header: header_timeout, idle: idle_timeout, write: write_timeout };
    let guarded = Guarded::new(socket, deadlines);
    let conversation = Arc::new(Conversation { app, router, phase: guarded.phase(), hangup });
    let Conversation { app, phase, hangup, .. } = &*conversation;
    let left = Express { app, phase, hangup }.serve(guarded, &stopping).await;
    if let Some((guarded, read)) = left {
        // Large, and not what nearly every connection needs.
        Box::pin(library(Rewound::new(guarded, read), conversation, stopping)).await;
    }
    drop(open);
}

/// Serves a connection with the HTTP library, which knows all of HTTP.
async fn library(socket: Rewound<Guarded<Socket>>, conversation: Arc<Conversation>, stopping: watch::Receiver<bool>) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let at = Arc::clone(&conversation);
        at.phase.busy();
        async move {
            let response = shell::answer(&at.app, &at.router, request, &at.hangup).await;
            at.phase.idle();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        // Who works on a request sees by itself whether its client is still there: a read beside every request, and room for what
        // it might bring, would cost more than that.
        .half_close(true)
        // The guard has deadlines for headers; hyper's own would also end connections that rest.
        .header_read_timeout(None)
        .max_buf_size(HEADER_BYTES_MAX)
        // Answers are small: copied into one buffer they leave with a cheaper call.
        .writev(false)
        .serve_connection(TokioIo::new(socket), service);
    until_stopped(connection, stopping).await;
}
