//! `quorate agent`: leased blocks for a site that is far from the cluster.

use super::exit::Failure;
use super::listen::{announce, bind};
use super::reach::{Nodes, duration};
use super::runtime;
use crate::agent::{Agent, Options};
use crate::edge::Signals;
use crate::metric_names;
use crate::telemetry::{self, Format};
use std::time::Duration;

/// Arguments of `quorate agent`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where to listen for the workers of this site
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: String,
    #[command(flatten)]
    nodes: Nodes,
    /// How long to try before a worker is refused
    #[arg(long, value_name = "DURATION", env = "QUORATE_TIMEOUT", default_value = "3s", value_parser = duration)]
    timeout: Duration,
    /// How long one node may take before another is asked
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    attempt_timeout: Duration,
    /// Most slots of one key that are held ahead
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=900))]
    max_block: u32,
    /// Reserve nothing ahead that lies farther away
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration)]
    max_age: Duration,
    /// Keys known at once
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_keys: u32,
    /// Slots held at once, over all keys
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_slots: u32,
    /// Workers that wait at once
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_waiting: u32,
    /// Connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_connections: u32,
    /// Time for requests in flight, and for giving back, when it stops
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    drain: Duration,
    /// What to log: a level, or module=level
    #[arg(long, value_name = "FILTER", env = "QUORATE_LOG", default_value = "info")]
    log: String,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    telemetry::init(&args.log, Format::Text).map_err(|error| Failure::error(error.to_string()))?;
    runtime(true)?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), Failure> {
    let recorder =
        metric_names::install().map_err(|error| Failure::error(format!("cannot record metrics: {error}")))?;
    let mut signals = Signals::new().map_err(|error| Failure::error(format!("cannot listen for signals: {error}")))?;
    let options = Options {
        timeout: args.timeout,
        attempt_timeout: args.attempt_timeout.min(args.timeout),
        block_max: args.max_block,
        age_max: args.max_age,
        keys_max: args.max_keys as usize,
        slots_max: args.max_slots as usize,
        waiting_max: args.max_waiting as usize,
        connections_max: args.max_connections as usize,
        grace: args.drain,
        ..Options::new(args.nodes.urls())
    };
    // Whoever reads where it listens may rely on it: what is wrong with the nodes is said before.
    let agent = Agent::new(options).map_err(Failure::usage)?;
    let listener = bind(&args.listen).await?;
    announce("listening on", &listener, "")?;
    let asked = async move {
        let why = signals.asked().await;
        tracing::info!(%why, "stopping");
    };
    agent.run(listener, Some(recorder), asked).await;
    Ok(())
}
