//! `quorate chaos`: faults of every kind on a real cluster on this machine, and a verdict.
//!
//! Two hidden commands belong to it, which it runs as processes of their own: the workers and the target.

use super::exit::{Exit, Failure};
use super::output::{self, Output};
use super::reach::duration;
use crate::chaos::{self, Kind, Plan, Progress};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Arguments of `quorate chaos`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How long faults are injected
    #[arg(long = "for", value_name = "DURATION", default_value = "1m", value_parser = lasting)]
    duration: Duration,
    /// Decides what is injected and when; random if absent, and always printed
    #[arg(long)]
    seed: Option<u64>,
    /// What is injected [default: everything that is promised to be survived]
    #[arg(long, value_name = "KINDS", value_delimiter = ',')]
    faults: Vec<Kind>,
    /// How many nodes, 1 to 9
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    nodes: u64,
    /// How many workers
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    workers: u32,
    /// How many processes they are in
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// Where histories, logs and the report go, in a directory named after the seed
    #[arg(long, value_name = "DIR", default_value = "quorate-chaos")]
    out: PathBuf,
    /// Longest pause, partition and the like
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    longest: Duration,
    /// Answers a second, before and during the faults, below which the run proves nothing and fails
    #[arg(long, value_name = "RATE", default_value_t = 20)]
    floor: u64,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::error(format!("cannot find this very program to run it once a node: {error}")))?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => random_seed()?,
    };
    let plan = Plan {
        program,
        out: args.out.join(format!("seed-{seed}")),
        duration: args.duration,
        seed,
        faults: if args.faults.is_empty() { Kind::usual() } else { args.faults.clone() },
        nodes: args.nodes,
        workers: args.workers,
        processes: args.processes.min(args.workers),
        hold_max: args.longest,
        at_least: BTreeMap::new(),
        answers_at_least: 0,
        floor_per_second: args.floor,
        node_args: Vec::new(),
    };
    let mut progress = Progress::on_stderr();
    let interrupted = Signals::listen()?;
    let report = chaos::run_until(&plan, &mut progress, interrupted.first()).await.map_err(Failure::error)?;
    drop(progress);
    report.write(&plan.out).map_err(|error| Failure::error(format!("cannot write the report: {error}")))?;
    let shown = output.data(&report, || report.summary());
    output::message(&format!("report: {}", plan.out.join("report.html").display()));
    if report.held {
        return shown;
    }
    // The verdict decides, whether anybody reads it or not.
    output::message(&format!("again with: {}", report.again));
    Err(Failure::said(Exit::Error))
}

/// A duration in which something can happen.
fn lasting(text: &str) -> Result<Duration, String> {
    let duration = duration(text)?;
    if duration.is_zero() { Err("a run without faults proves nothing".to_owned()) } else { Ok(duration) }
}

/// What asks a run to end before its time.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::error(format!("cannot listen for signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    async fn first(mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hang_up.recv() => "SIGHUP",
        }
    }
}

fn random_seed() -> Result<u64, Failure> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| Failure::error(format!("no random numbers: {error}")))?;
    Ok(u64::from(u32::from_ne_bytes(bytes)))
}

/// Arguments of the hidden command for workers.
#[derive(Debug, clap::Args)]
pub(super) struct WorkerArgs {
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<String>,
    #[arg(long)]
    target: SocketAddr,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    first: u32,
    #[arg(long)]
    count: u32,
}

pub(super) async fn work(args: WorkerArgs) -> Result<(), Failure> {
    let WorkerArgs { nodes, target, out, seed, first, count } = args;
    let settings = chaos::worker::Settings { nodes, target, out, seed, first, count };
    chaos::worker::work(settings).await.map_err(|error| Failure::error(error.to_string()))
}

/// Arguments of the hidden command for the target.
#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    #[arg(long)]
    out: PathBuf,
}

pub(super) fn target(args: &TargetArgs) -> Result<(), Failure> {
    chaos::target::serve(&args.out).map_err(|error| Failure::error(error.to_string()))
}
