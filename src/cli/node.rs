//! `quorate node`: one node, from its settings to its last flush.
//!
//! It stops in this order: unready, no new connections, requests in flight answered, leadership handed over, log flushed, history
//! closed.
//! Each step is bounded, and a second signal skips the rest.
//!
//! Not here: anything a node does while it runs.

use super::exit::Failure;
use super::settings::Settings;
use super::stdin;
use crate::config::Config;
use crate::history::{self, Audit, History, feed};
use crate::http::Crew;
use crate::limiter::Time;
use crate::limits::HISTORY_OPEN_MS_MAX;
use crate::node::Observer;
use crate::state::{Applied, Batch};
use crate::{http, metric_names, node, telemetry};
use metrics_exporter_prometheus::PrometheusHandle;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Files of the log, connections to peers and whatever else is open beside clients.
const FILES_BESIDE_CONNECTIONS: u64 = 512;
/// What the client listener gets on top of the bound that it hands on.
const HTTP_EXTRA: Duration = Duration::from_secs(1);
/// What the history gets to write its end; it is no reason to stop late.
const HISTORY_CLOSES_WITHIN: Duration = Duration::from_secs(2);

/// Arguments of `quorate node`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Stop when stdin ends: so that the children of `quorate up` never outlive it, however it ended.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let layers = args.settings.layers();
    for notice in layers.notices() {
        // A closed stderr is no reason not to start.
        let _ = writeln!(std::io::stderr(), "quorate: {notice}");
    }
    let config = Config::read(&layers)?;
    telemetry::init(&config.log, config.log_format).map_err(|error| Failure::error(error.to_string()))?;
    keep_pages_small();
    let runtime = super::engine_runtime()?;
    let crew = Crew::start(super::threads(config.threads) - 1);
    let crew = crew.map_err(|error| Failure::error(format!("cannot start threads: {error}")))?;
    let done = runtime.block_on(serve(&config, args.stop_with_stdin, crew.handles()));
    // Whatever still runs has been told to stop and given its time.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

async fn serve(config: &Config, stop_with_stdin: bool, crew: Vec<Handle>) -> Result<(), Failure> {
    let metrics = metric_names::install().map_err(|error| Failure::error(format!("cannot record metrics: {error}")))?;
    let mut stop = Stop::new(stop_with_stdin)?;
    allow_connections(config.connections_max);
    let listener = bind(&config.listen, "clients").await?;
    let peer_listener = bind(&config.peer_listen, "peers").await?;
    let advertise = advertised(config, listener.local_addr());
    let options = node::Options {
        id: config.id,
        data: config.data.clone(),
        members: config.members.clone(),
        join: config.join,
        cluster: config.cluster.clone(),
        advertise: advertise.clone(),
        keys_max: config.keys_max,
        heartbeat_ms: millis(config.heartbeat),
        election_ms_min: millis(config.election_min),
        election_ms_max: millis(config.election_max),
        request_timeout_ms: millis(config.request_timeout),
        snapshot_every_entries: config.snapshot_every,
        log_keep_entries: config.log_keep,
        disk_reserve_bytes: config.disk_reserve,
    };
    let history = history(config);
    let observer = history.clone().map(|history| Arc::new(Remembering(history)) as Arc<dyn Observer>);
    let started = node::start(&options, peer_listener, observer).await;
    let node = started.map_err(|error| Failure::error(error.to_string()))?;

    let (stop_http, http_stops) = oneshot::channel::<()>();
    let http_options = http::Options { crew, ..http_options(config, metrics, history.clone()) };
    let mut server = tokio::spawn(http::serve(listener, node.handle(), http_options, async {
        // A sender that is gone means the same as one that sent.
        let _ = http_stops.await;
    }));
    tracing::info!(node = config.id, client = %advertise, peer = %config.peer_listen, data = %config.data.display(), "started");

    let failure = tokio::select! {
        why = stop.asked() => {
            tracing::info!(node = config.id, %why, "stopping");
            None
        }
        why = node.failed() => Some(why),
        ended = &mut server => Some(format!("the client listener ended by itself: {ended:?}")),
    };
    if let Some(why) = failure {
        // Consensus or storage is broken: nothing that this process could still flush or hand over is to be trusted.
        return Err(Failure::error(format!("node {} failed and stops: {why}", config.id)));
    }
    let orderly = async {
        node.begin_shutdown();
        let _ = stop_http.send(());
        if timeout(config.drain + HTTP_EXTRA, &mut server).await.is_err() {
            tracing::warn!(drain = ?config.drain, "requests were still in flight when the drain time ended");
            server.abort();
        }
        node.shutdown(config.drain).await;
        if let Some(history) = history {
            // A thread that panicked has said so.
            let _ = tokio::task::spawn_blocking(move || history.close(HISTORY_CLOSES_WITHIN)).await;
        }
    };
    tokio::select! {
        () = orderly => tracing::info!(node = config.id, "stopped"),
        why = stop.asked() => return Err(Failure::error(format!("{why} once more: stopped at once"))),
    }
    Ok(())
}

/// Memory comes in pages of the usual size. A huge one is two megabytes of zeros when it is first touched, in the middle of whatever a
/// thread was doing, and a node that gives memory back as its queues empty touches them again and again (docs/adr/0016).
fn keep_pages_small() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "the system may use huge pages");
    }
}

/// Raises the bound on open files as far as it may be raised, and says so if that is not enough.
fn allow_connections(connections_max: usize) {
    let wanted = connections_max as u64 + FILES_BESIDE_CONNECTIONS;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(allowed) if allowed < wanted => {
            tracing::warn!(
                allowed,
                wanted,
                "the system allows fewer open files than connections_max needs: raise `ulimit -n`"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "cannot raise the bound on open files"),
    }
}

/// Tells the history what this node applies.
struct Remembering(History);

impl Observer for Remembering {
    fn applied(&self, index: u64, batch: &Batch, applied: &Applied) {
        if let Some(entry) = feed::entry(index, batch, applied) {
            self.0.feed(entry);
        }
    }

    fn membership(&self, index: u64, at: Time, voters: Vec<u64>, learners: Vec<u64>) {
        self.0.feed(feed::membership(index, at, voters, learners));
    }

    fn leader(&self, node: u64, term: u64) {
        self.0.note(Audit::Leader { node, term });
    }
}

/// Begins to remember, unless told not to. Opening happens apart: no node waits for its history.
fn history(config: &Config) -> Option<History> {
    config.history.then(|| {
        History::start(history::Settings {
            dir: config.data.join("history"),
            bytes_max: config.history_bytes_max,
            age_max: config.history_age,
            open_within: Duration::from_millis(HISTORY_OPEN_MS_MAX),
        })
    })
}

fn http_options(config: &Config, metrics: PrometheusHandle, history: Option<History>) -> http::Options {
    http::Options {
        connections_max: config.connections_max,
        header_timeout: config.header_timeout,
        body_timeout: config.body_timeout,
        // The node gives up first, and says more precisely why.
        request_timeout: config.request_timeout + HTTP_EXTRA,
        shutdown_grace: config.drain,
        metrics: Some(metrics),
        history,
        ..http::Options::default()
    }
}

/// What the others are told. With port 0 only the listener knows.
fn advertised(config: &Config, listens_on: std::io::Result<SocketAddr>) -> String {
    match (&config.advertise, listens_on) {
        (Some(url), _) => url.clone(),
        (None, Ok(address)) if config.listen.ends_with(":0") => format!("http://{address}"),
        (None, _) => format!("http://{}", config.listen),
    }
}

async fn bind(address: &str, whom: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => ": another program has it, perhaps this node is running already",
            std::io::ErrorKind::AddrNotAvailable => ": this machine does not have that address",
            std::io::ErrorKind::PermissionDenied => ": ports below 1024 need a privilege",
            _ => "",
        };
        Failure::error(format!("cannot listen on {address} for {whom}: {error}{hint}"))
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whatever asks a node to stop.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
    stdin_ends: Option<oneshot::Receiver<()>>,
}

impl Stop {
    fn new(with_stdin: bool) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::error(format!("cannot listen for signals: {error}")));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            stdin_ends: with_stdin.then(stdin::ends),
        })
    }

    /// Resolves with the reason; may be asked again for the next one.
    async fn asked(&mut self) -> &'static str {
        let stdin = async {
            match &mut self.stdin_ends {
                Some(ends) => {
                    // A reader that is gone means the same as one that read the end.
                    let _ = ends.await;
                    self.stdin_ends = None;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = stdin => "end of stdin",
        }
    }
}
