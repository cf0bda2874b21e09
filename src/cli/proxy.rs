//! `quorate proxy`: a reverse proxy that holds each request until its permit.

use super::exit::Failure;
use super::listen::{announce, bind};
use super::reach::{Reach, duration};
use super::{limit, runtime};
use crate::api::{Kind, Limit};
use crate::edge::Signals;
use crate::metric_names;
use crate::proxy::{self, KeySource, Listeners, Options};
use crate::telemetry::{self, Format};
use http::uri::Authority;
use std::time::Duration;

const UPSTREAM_HELP: &str = "Where requests go, such as http://127.0.0.1:9000";
const KEY_HELP: &str = "What a request is limited by: path, header:NAME or const:NAME";
const LIMIT_HELP: &str = r#"The limit, where no stored policy matches: 100/1m, or an object such as '{"rate":"1/6s","start_window":"250ms"}'"#;

/// Arguments of `quorate proxy`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(long, value_name = "URL", value_parser = proxy::upstream, help = UPSTREAM_HELP)]
    upstream: Authority,
    #[arg(long, value_name = "SOURCE", default_value = "path", help = KEY_HELP)]
    key: KeySource,
    #[arg(long, value_parser = limit::read, help = LIMIT_HELP)]
    limit: Option<Limit>,
    /// Where to listen for requests
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Where to listen for GET /metrics
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Longest time that a request is held; one that would be held longer is answered 429 at once
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    max_wait: Duration,
    /// Requests held at once; one more is answered 503
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_waiting: u32,
    /// Connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 4_096, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_connections: u32,
    /// Longest silence of the upstream, before its answer and in the middle of it
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    upstream_timeout: Duration,
    /// Time for answers in flight when it stops
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    drain: Duration,
    /// What to log: a level, or module=level
    #[arg(long, value_name = "FILTER", env = "QUORATE_LOG", default_value = "info")]
    log: String,
    #[command(flatten)]
    reach: Reach,
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    if matches!(&args.limit, Some(Limit::Members(members)) if members.kind == Some(Kind::Concurrency)) {
        return Err(Failure::usage(
            "--limit: a proxy knows when requests start, not when their work ends: take another kind",
        ));
    }
    telemetry::init(&args.log, Format::Text).map_err(|error| Failure::error(error.to_string()))?;
    runtime(true)?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), Failure> {
    let client = args.reach.client()?;
    let recorder =
        metric_names::install().map_err(|error| Failure::error(format!("cannot record metrics: {error}")))?;
    let mut signals = Signals::new().map_err(|error| Failure::error(format!("cannot listen for signals: {error}")))?;
    let requests = bind(&args.listen).await?;
    announce("listening on", &requests, "")?;
    let metrics = match &args.metrics_listen {
        Some(place) => {
            let listener = bind(place).await?;
            announce("metrics on", &listener, "/metrics")?;
            Some(listener)
        }
        None => None,
    };
    let options = Options {
        upstream: args.upstream,
        key: args.key,
        limit: args.limit,
        max_wait: args.max_wait,
        waiting_max: args.max_waiting as usize,
        connections_max: args.max_connections as usize,
        upstream_timeout: args.upstream_timeout,
        grace: args.drain,
    };
    let asked = async move {
        let why = signals.asked().await;
        tracing::info!(%why, "stopping");
    };
    let done = proxy::run(Listeners { requests, metrics }, options, client, recorder, asked).await;
    done.map_err(Failure::error)
}
