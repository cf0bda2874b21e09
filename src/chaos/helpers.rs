//! The other processes of a run: the target, and the workers in several processes. Each ends when its stdin does.

use super::history::{self, Event};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// Workers finish what they have begun: a request is given up after eight seconds.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// The target's process.
pub(super) struct Target {
    child: tokio::sync::Mutex<Child>,
    pub(super) address: SocketAddr,
    pub(super) history: PathBuf,
}

impl Target {
    pub(super) async fn start(program: &Path, out: &Path) -> io::Result<Self> {
        let history = out.join("target.jsonl");
        let mut child =
            spawn(program, &["chaos-target".to_owned(), "--out".to_owned(), history.display().to_string()], out)?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).await?;
        let address = line.trim().parse().map_err(|_| io::Error::other(format!("the target said {line:?}")))?;
        Ok(Self { child: tokio::sync::Mutex::new(child), address, history })
    }

    pub(super) async fn stop(&self) {
        end(&mut *self.child.lock().await).await;
    }
}

/// Who works.
pub(super) struct Crew {
    pub(super) seed: u64,
    pub(super) workers: u32,
    pub(super) processes: u32,
}

/// The workers' processes.
pub(super) struct Workers {
    children: Vec<Child>,
    histories: Vec<PathBuf>,
    counts: Vec<Arc<AtomicU64>>,
}

impl Workers {
    pub(super) fn start(
        program: &Path,
        out: &Path,
        nodes: &[String],
        target: SocketAddr,
        crew: &Crew,
    ) -> io::Result<Self> {
        let mut workers = Self { children: Vec::new(), histories: Vec::new(), counts: Vec::new() };
        for process in 0..crew.processes {
            let first = crew.workers * process / crew.processes;
            let count = crew.workers * (process + 1) / crew.processes - first;
            let history = out.join(format!("workers{process}.jsonl"));
            let args = [
                "chaos-worker".to_owned(),
                format!("--nodes={}", nodes.join(",")),
                format!("--target={target}"),
                format!("--out={}", history.display()),
                format!("--seed={}", crew.seed),
                format!("--first={first}"),
                format!("--count={count}"),
            ];
            let mut child = spawn(program, &args, out)?;
            let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
            let answers = Arc::new(AtomicU64::new(0));
            workers.counts.push(Arc::clone(&answers));
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Ok(count) = line.parse() {
                        answers.store(count, Ordering::Relaxed);
                    }
                }
            });
            workers.children.push(child);
            workers.histories.push(history);
        }
        Ok(workers)
    }

    /// Answers so far, as the workers say.
    pub(super) fn answers(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub(super) async fn stop(&mut self) {
        let ends = self.children.iter_mut().map(end);
        futures::future::join_all(ends).await;
    }

    pub(super) fn histories(&self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        for path in &self.histories {
            events.extend(history::read::<Event>(path)?);
        }
        Ok(events)
    }
}

fn spawn(program: &Path, args: &[String], out: &Path) -> io::Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(out.join("helpers.log"))?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    command.process_group(0).kill_on_drop(true).spawn()
}

async fn end(child: &mut Child) {
    drop(child.stdin.take());
    if tokio::time::timeout(ENDS_WITHIN, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
