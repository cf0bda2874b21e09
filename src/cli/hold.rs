//! A command that runs under a lease: kept while it runs, given back when it has ended.
//!
//! Invariants
//! - The lease is given back however the command ended, also if it never began.
//! - A command whose lease is lost is ended, because another one may be in flight by then: asked first, killed when it does
//!   not listen. Only `--keep-going` lets it run.
//! - Stdin and stdout are the command's; what is said here goes to stderr.
//!
//! Signals that would end this process are passed on, because a command without it would run without a lease. What the
//! command starts itself is its own business: it gets no signals from here.

use super::acquire::not_run;
use super::exit::{Exit, Failure};
use super::output::{self, seconds};
use crate::api::Millis;
use crate::client::{Lease, Lost, Permit};
use std::future::{pending, poll_fn};
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

/// How long a command gets between being asked to end and being killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// What shells add to the number of the signal that ended a command.
pub(super) const SIGNALLED: i32 = 128;

/// How sure the place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Held.
    Held,
    /// Past the deadline, and the cluster has not said anything.
    Doubtful,
    /// The cluster has said that it is over.
    Over,
}

/// Runs the command and ends as it ends.
pub(super) async fn run(
    command: std::process::Command,
    mut lease: Lease,
    permit: &Permit,
    keep_going: bool,
) -> Result<(), Failure> {
    let name = format!("permit {} of {}", permit.grant.permit, permit.grant.key);
    let mut standing = Standing::Held;
    let ended = hold(Command::from(command), &mut lease, &mut standing, &name, keep_going).await;
    if standing != Standing::Over {
        give_back(&lease, &name).await;
    }
    match ended? {
        Some(status) => exit_as(status),
        None => Err(Failure::said(Exit::Error)),
    }
}

/// How the command ended; `None` if it had to be ended because the lease was lost.
async fn hold(
    mut command: Command,
    lease: &mut Lease,
    standing: &mut Standing,
    name: &str,
    keep_going: bool,
) -> Result<Option<ExitStatus>, Failure> {
    let mut signals = Signals::listen()?;
    let spawned = command.kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|error| not_run(command.as_std().get_program(), &error))?;
    loop {
        tokio::select! {
            biased;
            status = child.wait() => return status.map(Some).map_err(|error| unseen(&error)),
            news = news(lease, *standing) => {
                *standing = tell(name, &news);
                if *standing != Standing::Held && !keep_going {
                    output::message("ending the command");
                    return end(&mut child, PATIENCE).await.map(|_| None).map_err(|error| unseen(&error));
                }
            }
            signal = signals.next() => {
                if !reaches_all(signal) && let Err(why) = send(&child, signal).await {
                    output::message(&format!("cannot pass SIG{signal} on to the command: {why}"));
                }
            }
        }
    }
}

/// Waits for a change of the standing: lost, or renewed after all.
async fn news(lease: &mut Lease, standing: Standing) -> Result<(), Lost> {
    match standing {
        Standing::Held => Err(lease.keep().await),
        Standing::Doubtful => lease.recover().await,
        Standing::Over => pending().await,
    }
}

/// Says what has changed, and how things stand now.
fn tell(name: &str, news: &Result<(), Lost>) -> Standing {
    match news {
        Ok(()) => {
            output::message(&format!("{name}: renewed after all, nobody else had its place"));
            Standing::Held
        }
        Err(lost) => {
            output::message(&format!("LEASE LOST: {name}: {lost}; another may be in flight"));
            if matches!(lost, Lost::Over(_)) { Standing::Over } else { Standing::Doubtful }
        }
    }
}

/// A failure here changes nothing about how the command ended: the lease then ends by itself.
async fn give_back(lease: &Lease, name: &str) {
    match lease.release().await {
        Ok(answer) if answer.released => {}
        Ok(answer) => {
            let detail = answer.detail.map(|detail| format!(", {detail}")).unwrap_or_default();
            output::message(&format!("{name}: not given back{detail}"));
        }
        Err(error) => {
            let left = seconds(Millis::up_from(lease.left()));
            output::message(&format!("{name}: not given back, it ends by itself in {left}: {error}"));
        }
    }
}

fn exit_as(status: ExitStatus) -> Result<(), Failure> {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::said(Exit::Command(code))),
        None => Err(Failure::error(format!("the command ended in a way that has no exit code: {status}"))),
    }
}

fn unseen(error: &io::Error) -> Failure {
    Failure::error(format!("cannot see how the command ended: {error}"))
}

/// Asks a command to end, and kills it if it has not after a while.
async fn end(child: &mut Child, patience: Duration) -> io::Result<ExitStatus> {
    let asked = send(child, "TERM").await;
    if asked.is_ok()
        && let Ok(ended) = timeout(patience, child.wait()).await
    {
        return ended;
    }
    output::message("the command does not end: killing it");
    child.start_kill()?;
    child.wait().await
}

/// Sends a signal by way of a shell, which has `kill` built in: the call itself is not safe Rust. Nobody waits for the child
/// meanwhile, so its number stays its own.
async fn send(child: &Child, signal: &str) -> Result<(), String> {
    let Some(pid) = child.id() else { return Ok(()) };
    let status = Command::new("/bin/sh")
        .args(["-c", r#"kill -s "$0" "$1""#, signal, &pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // In a group of its own, so that what ends all others does not end it before it has done its work.
        .process_group(0)
        .status()
        .await
        .map_err(|error| format!("/bin/sh: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("/bin/sh: {status}")) }
}

/// Whether the command has had this signal already. What is typed at a terminal goes to the whole group, and a second one
/// means "at once" to many programs.
fn reaches_all(signal: &str) -> bool {
    let terminal = io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
    terminal && matches!(signal, "INT" | "QUIT")
}

/// The signals that would end this process.
pub(super) struct Signals(Vec<(Signal, &'static str)>);

impl Signals {
    /// Listens for all that would end this process. What whoever started it wants ignored (`nohup`) stays that way, here and
    /// in the command.
    pub(super) fn listen() -> Result<Self, Failure> {
        let kinds = [
            (SignalKind::hangup(), "HUP"),
            (SignalKind::interrupt(), "INT"),
            (SignalKind::quit(), "QUIT"),
            (SignalKind::terminate(), "TERM"),
            (SignalKind::user_defined1(), "USR1"),
            (SignalKind::user_defined2(), "USR2"),
        ];
        let ignored = ignored();
        let heeded = kinds.into_iter().filter(|(kind, _)| ignored >> (kind.as_raw_value() - 1) & 1 == 0);
        let listen = |(kind, name)| signal(kind).map(|signal| (signal, name));
        let signals = heeded.map(listen).collect::<Result<_, _>>();
        signals.map(Self).map_err(|error| Failure::error(format!("cannot listen for signals: {error}")))
    }

    /// The name of the next one that arrives.
    pub(super) async fn next(&mut self) -> &'static str {
        poll_fn(|context| {
            for (signal, name) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*name);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Which signals this process was told to ignore, one bit each; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};

    /// A shell that has come as far as to say so.
    async fn shell(script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", script]).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).await.unwrap();
        assert_eq!(line, "ready\n");
        child
    }

    #[tokio::test]
    async fn a_command_is_asked_to_end_and_killed_if_it_does_not() {
        let mut child = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done").await;
        assert_eq!(end(&mut child, PATIENCE).await.unwrap().code(), Some(7));
        let mut child = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done").await;
        assert_eq!(end(&mut child, Duration::from_millis(50)).await.unwrap().signal(), Some(9));
        assert_eq!(send(&child, "TERM").await, Ok(()), "it is gone");
    }

    #[test]
    fn exit_codes_are_those_of_the_shells() {
        let code = |raw| exit_as(ExitStatus::from_raw(raw)).map_err(|failure| failure.exit.code());
        assert_eq!(code(0), Ok(()));
        assert_eq!(code(42 << 8), Err(42));
        assert_eq!(code(15), Err(143));
    }
}
