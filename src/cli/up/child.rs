//! One child process and its restarts.
//!
//! Invariant: a child never outlives `quorate up`, however that ends. It reads its stdin, a pipe that only we hold, and
//! stops in good order when that ends; closing it is also how we ask it to stop.

use super::layout::Place;
use super::log;
use crate::clock::Stopwatch;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// First pause before a dead child is started again, doubled up to the second.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A child that ran this long was well: the next pause is the first again.
const WELL_AFTER: Duration = Duration::from_secs(30);
/// How many lines of its log are shown when a child died.
const LAST_LINES: usize = 8;

/// What happens to a child.
#[derive(Debug)]
pub(super) enum News {
    /// It runs.
    Started { id: u64, pid: u32 },
    /// It died unasked.
    Died { id: u64, how: String, last_lines: Vec<String>, again_in: Duration },
    /// It could not even be started.
    NotStarted { id: u64, why: String },
}

/// How to run one node.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    pub(super) place: Place,
    pub(super) log: PathBuf,
    /// How long it gets between being asked to stop and being killed.
    pub(super) patience: Duration,
}

/// Runs a child and starts it again whenever it dies, until `stop` turns true; then stops it and returns whether that
/// went in good order.
pub(super) async fn keep_running(recipe: Recipe, news: mpsc::Sender<News>, mut stop: watch::Receiver<bool>) -> bool {
    let id = recipe.place.id;
    let mut pause = PAUSE_MIN;
    loop {
        let began = Stopwatch::start();
        let log_from = log::length(&recipe.log);
        let (mut child, pipe) = match start(&recipe) {
            Ok(started) => started,
            Err(error) => {
                // Our own executable does not start: nothing gets better by trying again.
                let _ = news.send(News::NotStarted { id, why: error.to_string() }).await;
                return false;
            }
        };
        let _ = news.send(News::Started { id, pid: child.id().unwrap_or_default() }).await;
        let status = tokio::select! {
            status = child.wait() => status,
            () = asked(&mut stop) => return end(child, pipe, recipe.patience).await,
        };
        if began.elapsed() >= WELL_AFTER {
            pause = PAUSE_MIN;
        }
        let how = status.map_or_else(|error| error.to_string(), describe);
        let last_lines = log::tail(&recipe.log, log_from, LAST_LINES);
        let _ = news.send(News::Died { id, how, last_lines, again_in: pause }).await;
        tokio::select! {
            () = sleep(pause) => {}
            () = asked(&mut stop) => return true,
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn asked(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone means the same as one that said so.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The child, and the pipe that it lives by. They are apart because waiting for a child closes the pipe it still has.
fn start(recipe: &Recipe) -> std::io::Result<(Child, Option<ChildStdin>)> {
    let log = log::open(&recipe.log)?;
    let mut child = Command::new(&recipe.program)
        .args(&recipe.arguments)
        // Of the settings only those that were checked for all nodes alike are passed on: a file is for one.
        .env_remove("QUORATE_CONFIG")
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A group of its own: Ctrl-C reaches us alone, and we stop the children in good order.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let pipe = child.stdin.take();
    Ok((child, pipe))
}

/// Asks a child to stop and waits; past its patience it is killed.
async fn end(mut child: Child, pipe: Option<ChildStdin>, patience: Duration) -> bool {
    drop(pipe);
    if let Ok(status) = timeout(patience, child.wait()).await {
        return status.is_ok_and(|status| status.success());
    }
    let _ = child.kill().await;
    false
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(9)) => "was killed (signal 9)".to_owned(),
        (None, Some(signal)) => format!("died of signal {signal}"),
        (None, None) => status.to_string(),
    }
}
