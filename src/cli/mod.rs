//! The command line.
//!
//! Invariants
//! - Data goes to stdout, messages to stderr; with `--json` the data is JSON, failures included.
//! - Exit codes are a contract ([`exit::Exit`]).
//! - Every command but `node`, `up` and `agent` is a user of `client` like any other program.
//! - A closed pipe ends the program quietly.
//!
//! Not here: what settings mean (`config.rs`), how requests are retried (`client/`).

mod acquire;
mod agent;
mod audit;
mod bench;
mod chaos;
mod chart;
mod cluster;
mod completions;
mod config;
mod exit;
mod history;
mod hold;
mod key;
mod limit;
mod listen;
mod node;
mod output;
mod policy;
mod proxy;
mod reach;
mod release;
mod renew;
mod settings;
mod status;
mod stdin;
mod up;

use crate::failpoint;
use clap::{Parser, Subcommand};
use exit::{Exit, Failure};
use output::Output;
use std::process::ExitCode;

/// A rate limiter that does not forget and does not lie.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, about, long_about = None, propagate_version = true, max_term_width = 110)]
#[command(
    after_help = "Exit codes: 0 granted or done, 1 error, 2 usage, 3 denied, 4 unavailable, 5 outcome unknown.\n\
    Begin with `quorate up`: a cluster of three nodes on this machine."
)]
struct Cli {
    /// Write JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cluster on this machine, one process a node
    Up(up::Args),
    /// Run one node
    Node(node::Args),
    /// Ask for one permit; with a command, wait for the slot and run it
    Acquire(acquire::Args),
    /// Give a permit back
    Release(release::Args),
    /// Extend the lease of a permit
    Renew(renew::Args),
    /// Look at a key without consuming anything, or reset it
    Key(key::Args),
    /// Read and change the stored rules
    #[command(subcommand)]
    Policy(policy::Command),
    /// Show what a node remembers of a key, with a chart
    History(history::Args),
    /// Show changes of policies, members and leaders
    Audit(audit::Args),
    /// Show the nodes of the cluster and who leads
    Status(status::Args),
    /// Add and remove nodes, hand leadership over
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// Run a reverse proxy that holds each request until its permit
    Proxy(proxy::Args),
    /// Run an agent that reserves slots ahead for a site far from the cluster
    Agent(agent::Args),
    /// Measure how fast a cluster is, and compare it with others in the same run
    Bench(bench::Args),
    #[command(hide = true)]
    BenchCeiling,
    /// Inject faults of every kind into a real cluster on this machine, and judge what came of it
    Chaos(chaos::Args),
    #[command(hide = true)]
    ChaosWorker(chaos::WorkerArgs),
    #[command(hide = true)]
    ChaosTarget(chaos::TargetArgs),
    /// Check configuration files, or print what takes effect
    #[command(subcommand)]
    Config(config::Command),
    /// Print the completions of a shell
    Completions(completions::Args),
}

/// Runs the program.
pub fn main() -> ExitCode {
    failpoint::from_environment();
    let Cli { json, command } = Cli::parse();
    let output = Output::new(json);
    let done = match command {
        Command::Up(args) => runtime(true).and_then(|runtime| runtime.block_on(up::run(&args, output))),
        Command::Node(args) => node::run(&args),
        Command::Acquire(args) => runtime(false).and_then(|runtime| runtime.block_on(acquire::run(&args, output))),
        Command::Release(args) => runtime(false).and_then(|runtime| runtime.block_on(release::run(&args, output))),
        Command::Renew(args) => runtime(false).and_then(|runtime| runtime.block_on(renew::run(&args, output))),
        Command::Policy(command) => runtime(false).and_then(|runtime| runtime.block_on(policy::run(&command, output))),
        Command::Key(args) => runtime(false).and_then(|runtime| runtime.block_on(key::run(&args, output))),
        Command::History(args) => runtime(false).and_then(|runtime| runtime.block_on(history::run(&args, output))),
        Command::Audit(args) => runtime(false).and_then(|runtime| runtime.block_on(audit::run(&args, output))),
        Command::Status(args) => runtime(false).and_then(|runtime| runtime.block_on(status::run(&args, output))),
        Command::Cluster(command) => {
            runtime(false).and_then(|runtime| runtime.block_on(cluster::run(&command, output)))
        }
        Command::Proxy(args) => proxy::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Bench(args) => bench::run(&args, output),
        Command::BenchCeiling => bench::ceiling(),
        Command::Chaos(args) => runtime(true).and_then(|runtime| runtime.block_on(chaos::run(&args, output))),
        Command::ChaosWorker(args) => runtime(false).and_then(|runtime| runtime.block_on(chaos::work(args))),
        Command::ChaosTarget(args) => chaos::target(&args),
        Command::Config(command) => config::run(&command, output),
        Command::Completions(args) => completions::run(&args, output),
    };
    let exit = done.map_or_else(|failure| output.failed(&failure), |()| Exit::Done);
    ExitCode::from(exit.code())
}

/// What a node's engine runs on: one thread. It is the work-stealing runtime all the same: with the single-threaded one, 64
/// connections got half as much or less (docs/adr/0018). Further threads serve connections only.
fn engine_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1);
    built(builder)
}

/// One thread is plenty for a question.
fn runtime(many: bool) -> Result<tokio::runtime::Runtime, Failure> {
    let builder =
        if many { tokio::runtime::Builder::new_multi_thread() } else { tokio::runtime::Builder::new_current_thread() };
    built(builder)
}

/// How many threads a node has: as many as were asked for, or as the machine has cores.
fn threads(wanted: usize) -> usize {
    if wanted > 0 { wanted } else { std::thread::available_parallelism().map_or(1, std::num::NonZero::get) }
}

fn built(mut builder: tokio::runtime::Builder) -> Result<tokio::runtime::Runtime, Failure> {
    builder.enable_all().build().map_err(|error| Failure::error(format!("cannot start: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
