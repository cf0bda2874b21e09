//! `quorate up`: a real cluster on this machine, one process a node, in one terminal.
//!
//! The nodes are children that run our own executable as `quorate node`, each with its data and log under one directory.
//! What is true of them is asked over HTTP like any client would; nothing is shared but the executable.

mod child;
mod layout;
mod log;
mod report;

use super::exit::{Exit, Failure};
use super::output::{self, Output};
use crate::api::ClusterResponse;
use crate::client::{Client, Options};
use crate::clock::Stopwatch;
use crate::config::{Config, Key, Layers};
use child::{News, Recipe, keep_running};
use layout::{Layout, Place};
use log::Follower;
use report::{Event, Report};
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// How often the cluster is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long one look may take: a node that is being debugged must not hold up the news of the others.
const LOOK_TIMEOUT: Duration = Duration::from_millis(800);
/// What a child gets on top of its own bounds before it is killed.
const PATIENCE_EXTRA: Duration = Duration::from_secs(3);
/// After this long without being ready, say where to look.
const SLOW_AFTER: Duration = Duration::from_secs(15);

/// Arguments of `quorate up`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many nodes, 1 to 9 [default: 3, or as many as the data is of]
    #[arg(long, value_name = "COUNT")]
    nodes: Option<u16>,
    /// Where the data lies, and stays when the cluster stops
    #[arg(long, value_name = "DIR", default_value = "quorate-data")]
    data: PathBuf,
    /// Clients connect on the ports after this one, peers a hundred above; 0 takes any [default: 7000, or as the data]
    #[arg(long)]
    port: Option<u16>,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::error(format!("cannot find this very program to run it once a node: {error}")))?;
    let layout = Layout::settle(&args.data, args.nodes, args.port)?;
    let mut recipes = Vec::new();
    for place in &layout.nodes {
        recipes.push(recipe(&program, &args.data, &layout, place)?);
    }
    layout.store(&args.data)?;
    Cluster::start(recipes, &layout, &args.data, Report::new(output))?.run().await
}

/// The flags of one node. What is not among them comes from `QUORATE_…`, and is checked here: once, and not by every child
/// in its log.
fn recipe(program: &Path, data: &Path, layout: &Layout, place: &Place) -> Result<Recipe, Failure> {
    let mut flags = vec![
        ("id", place.id.to_string()),
        ("data", place.data(data).display().to_string()),
        ("listen", place.client.to_string()),
        ("peer_listen", place.peer.to_string()),
        ("advertise", place.url()),
        ("members", layout.members()),
        ("log_format", "text".to_owned()),
    ];
    if std::env::var_os("QUORATE_THREADS").is_none() {
        // The nodes share one machine: with a thread for every core each, they would only wake one another up.
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        flags.push(("threads", (cores / layout.nodes.len().max(1)).max(1).to_string()));
    }
    let mut layers = Layers::defaults();
    layers.environment(std::env::vars_os());
    layers.flags(flags.iter().filter_map(|(name, text)| Some((Key::find(name)?, text.as_str()))));
    let config = Config::read(&layers)?;
    let mut arguments: Vec<OsString> = vec!["node".into(), "--stop-with-stdin".into()];
    for (key, text) in flags.iter().filter_map(|(name, text)| Some((Key::find(name)?, text))) {
        arguments.extend([format!("--{}", key.flag()).into(), text.into()]);
    }
    Ok(Recipe {
        program: program.to_owned(),
        arguments,
        place: place.clone(),
        log: place.log(data),
        // Once for requests in flight and once for the node itself.
        patience: config.drain * 2 + PATIENCE_EXTRA,
    })
}

/// The running cluster, seen from outside.
struct Cluster {
    children: JoinSet<bool>,
    news: mpsc::Receiver<News>,
    stop: watch::Sender<bool>,
    logs: Vec<(u64, Follower)>,
    /// One client a node: who leads is asked of all, because any of them may be cut off.
    clients: Vec<Client>,
    report: Report,
    began: Stopwatch,
    ready: bool,
    slow: bool,
    leader: Option<u64>,
}

impl Cluster {
    fn start(recipes: Vec<Recipe>, layout: &Layout, data: &Path, mut report: Report) -> Result<Self, Failure> {
        let (tell, news) = mpsc::channel(64);
        let (stop, stops) = watch::channel(false);
        let options =
            |url: String| Options { timeout: LOOK_TIMEOUT, attempt_timeout: LOOK_TIMEOUT, ..Options::new([url]) };
        let clients = layout.nodes.iter().map(|node| Client::with(&options(node.url()))).collect::<Result<_, _>>()?;
        let logs = layout.nodes.iter().map(|node| (node.id, Follower::new(node.log(data)))).collect();
        report.event(&Event::Starting { layout, data })?;
        let mut children = JoinSet::new();
        for recipe in recipes {
            children.spawn(keep_running(recipe, tell.clone(), stops.clone()));
        }
        let began = Stopwatch::start();
        Ok(Self { children, news, stop, logs, clients, report, began, ready: false, slow: false, leader: None })
    }

    async fn run(mut self) -> Result<(), Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::error(format!("cannot listen for signals: {error}")));
        let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        let mut hang_up = listen(SignalKind::hangup())?;
        let ended = tokio::select! {
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
            _ = hang_up.recv() => Ok(()),
            failure = self.watch() => Err(failure),
        };
        // Also when nobody reads any more, or something failed: no child is left behind.
        let stopped = tokio::select! {
            stopped = self.stop() => stopped,
            _ = interrupt.recv() => Err(Failure::error("interrupted once more: the nodes were killed")),
        };
        ended.and(stopped)
    }

    /// Tells what happens until that fails. May be dropped at any point: what it knows, it knows only after having told.
    async fn watch(&mut self) -> Failure {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let told = tokio::select! {
                Some(news) = self.news.recv() => self.tell(news),
                _ = ticks.tick() => self.look().await,
            };
            if let Err(failure) = told {
                return failure;
            }
        }
    }

    fn tell(&mut self, news: News) -> Result<(), Failure> {
        match news {
            News::Started { id, pid } => self.report.event(&Event::Started { id, pid }),
            News::Died { id, how, last_lines, again_in } => {
                self.report.event(&Event::Died { id, how: &how, last_lines: &last_lines, again_in })
            }
            News::NotStarted { id, why } => Err(Failure::error(format!("cannot start node {id}: {why}"))),
        }
    }

    /// Asks all nodes, and says what has changed.
    async fn look(&mut self) -> Result<(), Failure> {
        for (id, log) in &mut self.logs {
            let warnings = log.warnings();
            // Nodes that cannot find each other yet complain; that is news only once they had.
            if self.ready {
                for line in &warnings {
                    report::warning(*id, line);
                }
            }
        }
        if !self.ready {
            let checks = futures::future::join_all(self.clients.iter().map(Client::readiness)).await;
            let unready: Vec<_> =
                checks.into_iter().flatten().filter_map(|(url, check)| Some((url, check.err()?))).collect();
            if !unready.is_empty() {
                if !self.slow && self.began.elapsed() >= SLOW_AFTER {
                    self.slow = true;
                    for (url, why) in &unready {
                        output::message(&format!("still waiting for {url}: {why}"));
                    }
                }
                return Ok(());
            }
        }
        let views = futures::future::join_all(self.clients.iter().map(Client::cluster)).await;
        let leader = newest_leader(views.iter().flatten());
        if !self.ready {
            let Some(leader) = leader else { return Ok(()) };
            (self.ready, self.leader) = (true, Some(leader));
            return self.report.event(&Event::Ready { leader, after: self.began.elapsed() });
        }
        if leader != self.leader {
            self.leader = leader;
            self.report.event(&Event::Leader { leader })?;
        }
        Ok(())
    }

    async fn stop(&mut self) -> Result<(), Failure> {
        // A terminal that is gone is no reason to leave the children alone.
        let _ = self.report.event(&Event::Stopping);
        let _ = self.stop.send(true);
        let mut in_order = true;
        while let Some(ended) = self.children.join_next().await {
            in_order &= ended.unwrap_or(false);
        }
        let _ = self.report.event(&Event::Stopped { in_order });
        if in_order { Ok(()) } else { Err(Failure::said(Exit::Error)) }
    }
}

/// The leader that the view of the newest term names. An older view may name one that was deposed since.
fn newest_leader<'a>(views: impl Iterator<Item = &'a ClusterResponse>) -> Option<u64> {
    views.filter(|view| view.leader.is_some()).max_by_key(|view| view.term).and_then(|view| view.leader)
}
