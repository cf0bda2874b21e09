//! `quorate acquire`: one permit, and with a command also the wait for its slot.
//!
//! With a start window the permit is checked once more right before it is used; one that came too late is discarded and
//! another one asked for, because its slot is spent.
//!
//! A signal that comes before the start gives the permit back, or the one that is on its way; a second one ends this at once.
//!
//! A command takes the place of this process, unless the permit is a lease: that has to be kept (`hold.rs`).

use super::exit::{Exit, Failure};
use super::hold::{SIGNALLED, Signals};
use super::output::{self, Output, seconds};
use super::reach::{Reach, duration};
use super::{hold, limit};
use crate::api::{AcquireRequest, Code, Limit, Millis, Wait};
use crate::client::{Client, Error, Permit};
use crate::limits::COST_MAX;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::future::pending;
use std::io;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::Command;
use std::time::Duration;

/// Permits that may come too late one after the other before something must be wrong with the window.
const DISCARDED_MAX: u32 = 10;
/// What `env` and the shells answer for a command that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

// Texts with words that a doc comment would want in backticks, which a terminal would show.
const LIMIT_HELP: &str =
    r#"The limit: 1/6s, 10/s, 100/1m, or an object such as '{"rate":"1/6s","start_window":"250ms"}'"#;
const COMMAND_HELP: &str = "The command to run at the slot, with QUORATE_KEY and QUORATE_PERMIT in its environment; its exit code is passed on. \
    A lease is renewed while it runs and given back when it has ended";

/// Arguments of `quorate acquire`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What is limited, such as github-token
    key: String,
    #[arg(long, value_parser = limit::read, help = LIMIT_HELP)]
    limit: Option<Limit>,
    /// How many permits' worth of capacity it takes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=COST_MAX))]
    cost: u64,
    /// Sleep until the slot before printing; a command always waits
    #[arg(long)]
    wait: bool,
    /// Take only a permit that is free now
    #[arg(long, conflicts_with = "max_wait")]
    now: bool,
    /// Be denied rather than wait longer than this for the slot
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    max_wait: Option<Duration>,
    /// Ask for a slot at least this far ahead, so that the answer arrives before it
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lead: Option<Duration>,
    /// Names the request: asking again under the same id gets the same permit [default: random]
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// A label for the history
    #[arg(long, value_name = "LABEL")]
    worker: Option<String>,
    /// Only warn when the lease of a running command is lost, instead of ending the command
    #[arg(long, requires = "command")]
    keep_going: bool,
    #[command(flatten)]
    reach: Reach,
    #[arg(last = true, value_name = "CMD", help = COMMAND_HELP)]
    command: Vec<OsString>,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let client = args.reach.client()?;
    let waits = args.wait || !args.command.is_empty();
    // Whoever does not wait has nothing to give back but what it is about to print.
    let mut signals = if waits { Some(Signals::listen()?) } else { None };
    for _ in 0..DISCARDED_MAX {
        let asked = {
            let mut asking = pin!(client.request(request(args)));
            tokio::select! {
                asked = &mut asking => asked,
                signal = next(&mut signals) => return Err(interrupted(&client, asking, signal, &mut signals).await),
            }
        };
        let permit = match asked {
            Ok(permit) => permit,
            Err(Error::Refused(problem)) if problem.code == Code::Expired && args.request_id.is_none() => {
                output::message("the permit came too late to be used; asking again");
                continue;
            }
            Err(error) => return Err(explained(error)),
        };
        if waits {
            announce(&permit);
            let waited = tokio::select! {
                biased;
                signal = next(&mut signals) => {
                    let there = std::future::ready(Ok(permit));
                    return Err(interrupted(&client, there, signal, &mut signals).await);
                }
                waited = permit.wait() => waited,
            };
            if let Err(late) = waited {
                if args.request_id.is_some() {
                    return Err(Failure::error(format!("{late}; ask again under another --request-id")));
                }
                output::message(&format!("{late}; permit {} is discarded, asking again", permit.grant.permit));
                continue;
            }
        }
        if let Some(command) = command(&args.command, &permit) {
            return match permit.lease(&client) {
                Some(lease) => hold::run(command, lease, &permit, args.keep_going).await,
                None => Err(become_command(command)),
            };
        }
        return output.data(&permit.grant, || describe(&permit, waits));
    }
    Err(Failure::error(format!(
        "{DISCARDED_MAX} permits in a row came too late to be used: the start window is too short for the way between \
         here and the cluster"
    )))
}

/// The next signal; none comes to whoever does not listen.
async fn next(signals: &mut Option<Signals>) -> &'static str {
    match signals {
        Some(signals) => signals.next().await,
        None => pending().await,
    }
}

/// Gives back what was asked for, unless another signal comes first; then ends as the signal would have ended it.
async fn interrupted(
    client: &Client,
    asking: impl Future<Output = Result<Permit, Error>>,
    signal: &'static str,
    signals: &mut Option<Signals>,
) -> Failure {
    let give_back = async {
        let Ok(permit) = asking.await else { return };
        let (key, number) = (&permit.grant.key, permit.grant.permit);
        match client.release(key, number).await {
            Ok(answer) if answer.released => output::message(&format!("permit {number} of {key} is given back")),
            Ok(_) => {}
            Err(error) => output::message(&format!("permit {number} of {key} is not given back: {error}")),
        }
    };
    tokio::select! {
        () = give_back => {}
        _ = next(signals) => {}
    }
    let number = match signal {
        "HUP" => 1,
        "INT" => 2,
        "QUIT" => 3,
        "USR1" => 10,
        "USR2" => 12,
        _ => 15,
    };
    let code = u8::try_from(SIGNALLED + number).unwrap_or(u8::MAX);
    Failure::new(Exit::Command(code), format!("ended by SIG{signal} before the slot had come"))
}

fn request(args: &Args) -> AcquireRequest {
    AcquireRequest {
        limit: args.limit.clone(),
        cost: Some(args.cost),
        max_wait_ms: args.max_wait.map(Millis::up_from),
        wait: if args.now { Wait::None } else { Wait::Client },
        lead_ms: args.lead.map(Millis::up_from),
        request_id: args.request_id.clone(),
        worker: args.worker.clone(),
        ..AcquireRequest::new(&args.key)
    }
}

fn explained(error: Error) -> Failure {
    let no_limit = error.problem().is_some_and(|problem| problem.code == Code::NoLimit);
    let mut failure = Failure::from(error);
    if no_limit {
        failure.message.push_str("\nsay what the limit is with --limit, such as --limit 1/6s");
    }
    failure
}

fn announce(permit: &Permit) {
    if permit.grant.wait_ms > Millis::ZERO {
        output::message(&format!("permit {} in {}", permit.grant.permit, seconds(permit.grant.wait_ms)));
    }
}

fn describe(permit: &Permit, waited: bool) -> String {
    let grant = &permit.grant;
    let mut text = format!("permit {} of {}", grant.permit, grant.key);
    if waited || grant.wait_ms == Millis::ZERO {
        text.push_str(": start now");
    } else {
        let _ = write!(text, ": start in {}", seconds(grant.wait_ms));
    }
    if let Some(before) = grant.start_before_ms {
        let _ = write!(text, ", within {} of asking", seconds(before));
    }
    if grant.replayed {
        text.push_str(" (the same as before)");
    }
    text
}

/// What to run under the permit, if anything.
fn command(words: &[OsString], permit: &Permit) -> Option<Command> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments);
    command.env("QUORATE_KEY", &permit.grant.key).env("QUORATE_PERMIT", permit.grant.permit.to_string());
    Some(command)
}

/// Replaces this process by the command: its exit code, its signals and its terminal are then its own. Comes back only
/// if that failed.
fn become_command(mut command: Command) -> Failure {
    let error = command.exec();
    not_run(command.get_program(), &error)
}

/// Why a command could not be started, with the exit code that the shells have for it.
pub(super) fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Failure::new(Exit::Command(code), format!("cannot run {}: {error}", program.display()))
}
