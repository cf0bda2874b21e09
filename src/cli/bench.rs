//! `quorate bench`: how fast a cluster is, and how that compares.
//!
//! A hidden command belongs to it, which it runs as a process of its own: the HTTP server with nothing behind it.

use super::exit::Failure;
use super::output::{self, Output};
use super::reach::duration;
use super::stdin;
use crate::bench::{self, Dialect, Plan, WaitMode};
use crate::http;
use crate::limiter::Rate;
use crate::progress::Progress;
use clap::ValueEnum;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;

/// Arguments of `quorate bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Whom to ask; connections take turns
    #[arg(
        long,
        value_name = "URLS",
        env = "QUORATE_NODES",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003"
    )]
    nodes: Vec<String>,
    /// How many connections, each with one request at a time
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    connections: u64,
    /// How many threads drive them
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Requests a second, due whether or not answers have come [default: as fast as they come]
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// How many different keys
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    keys: u64,
    /// Ask once for every key before measuring; with a slow --limit all of them are in memory then
    #[arg(long, conflicts_with = "compare")]
    fill: bool,
    /// How many of a hundred requests go to one and the same key
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    hot: u64,
    /// The limit of every key; under a slow one keys stay in memory, with up to a hundred reservations [default: 1000000/s]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit: Option<String>,
    /// Ask for so many permits in one `POST /acquire/batch`
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000), conflicts_with_all = ["wait", "ids"])]
    batch: Option<u64>,
    /// How to wait for the slot
    #[arg(long, value_enum, default_value = "client")]
    wait: Wait,
    /// Give every request an id of its own, as clients that retry do
    #[arg(long)]
    ids: bool,
    /// How long to measure, after a second of warming up
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Measure clusters of its own beside etcd, Redis and throttlecrab, as far as they are installed here, and print ratios
    #[arg(long, conflicts_with_all = ["nodes", "rate", "hot", "batch", "wait"])]
    compare: bool,
    /// How often everything is measured in a comparison, in turns; the middle one counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=99), requires = "compare")]
    rounds: u64,
    /// Where the systems of a comparison keep their data: on the disk that counts
    #[arg(long, value_name = "DIR", default_value = "quorate-bench", requires = "compare")]
    dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Wait {
    Client,
    Server,
    None,
}

pub(super) fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let wait = match args.wait {
        Wait::Client => WaitMode::Client,
        Wait::Server => WaitMode::Server,
        Wait::None => WaitMode::None,
    };
    let dialect = match args.batch {
        Some(count) => Dialect::Batch(whole(count)),
        None => Dialect::Acquire { wait, ids: args.ids },
    };
    if args.duration.is_zero() {
        return Err(Failure::usage("--for has to be longer than nothing"));
    }
    let usual = Plan::usual(args.duration);
    let plan = Plan {
        addresses: Vec::new(),
        dialect,
        connections: whole(args.connections),
        threads: whole(args.threads),
        #[expect(clippy::cast_precision_loss, reason = "ten million at most")]
        rate: args.rate.map(|rate| rate as f64),
        keys: args.keys,
        hot_percent: args.hot,
        limit: args.limit.as_ref().map_or(usual.limit, |rate| format!(r#"{{"rate":"{rate}","max_reserved":100}}"#)),
        ..usual
    };
    if args.compare { compare(&plan, args, output) } else { measure(plan, args, output) }
}

fn measure(plan: Plan, args: &Args, output: Output) -> Result<(), Failure> {
    let addresses = args.nodes.iter().map(|url| address(url)).collect::<Result<Vec<_>, _>>()?;
    let plan = Plan { addresses, ..plan };
    let mut progress = Progress::on_stderr();
    if args.fill {
        let filled = bench::fill(&plan, &mut |keys| progress.now(&format!("{keys:>11} of {} keys", plan.keys)));
        filled.map_err(|error| Failure::error(format!("cannot fill {}: {error}", args.nodes.join(", "))))?;
    }
    let all = plan.warm_up + plan.duration;
    let measured = bench::measure(&plan, &mut |elapsed, decided| {
        progress.now(&format!("{:>4} s of {}  {decided:>10} decisions", elapsed.as_secs(), all.as_secs()));
    });
    drop(progress);
    let measured =
        measured.map_err(|error| Failure::error(format!("cannot measure {}: {error}", args.nodes.join(", "))))?;
    output.data(&measured, || bench::text(&measured))
}

fn compare(plan: &Plan, args: &Args, output: Output) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::error(format!("cannot find this very program to run it once a node: {error}")))?;
    let mut progress = Progress::on_stderr();
    let compared = bench::compare(plan, (&program, &args.dir), whole(args.rounds), &mut |line| progress.now(line));
    drop(progress);
    let compared = compared.map_err(|error| {
        Failure::error(format!("the comparison failed: {error}; logs of what it started are in {}", args.dir.display()))
    })?;
    output.data(&compared, || bench::table(&compared))
}

/// A rate as it is written, if it is one.
fn rate(text: &str) -> Result<String, String> {
    text.parse::<Rate>().map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn address(url: &str) -> Result<SocketAddr, Failure> {
    let wrong =
        |why: &str| Failure::usage(format!("{url:?} is no address of a node, such as http://127.0.0.1:7001: {why}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| wrong("it does not begin with http://"))?;
    let mut found = rest.trim_end_matches('/').to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    found.next().ok_or_else(|| wrong("no such host"))
}

/// The hidden command: says where it listens, and ends with its stdin.
pub(super) fn ceiling() -> Result<(), Failure> {
    let cannot = |error: std::io::Error| Failure::error(format!("cannot listen: {error}"));
    let crew = http::Crew::start(super::threads(0) - 1).map_err(cannot)?;
    super::engine_runtime()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(cannot)?;
        output::line(&listener.local_addr().map_err(cannot)?.to_string())?;
        let options = http::Options { crew: crew.handles(), ..http::Options::default() };
        // On a thread of the runtime, as in a node.
        let served = tokio::spawn(http::serve_ceiling(listener, options, async {
            // A reader that is gone means the same as one that read the end.
            let _ = stdin::ends().await;
        }));
        served.await.map_err(|error| Failure::error(format!("the server failed: {error}")))
    })
}
