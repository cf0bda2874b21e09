//! A disk that stalls or errs: a tracer is attached to a running node and changes what its syncs do.

use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// How long the tracer gets to attach to every thread.
const ATTACHES_IN: Duration = Duration::from_millis(300);

/// A tracer at work.
#[derive(Debug)]
pub(super) struct Injection(Child);

impl Injection {
    /// Every sync of this process takes so much longer.
    pub(super) async fn slow(pid: u32, delay_ms: u64) -> Option<Self> {
        Self::attach(pid, &format!("delay_enter={}", delay_ms * 1_000)).await
    }

    /// Every sync of this process fails.
    pub(super) async fn error(pid: u32) -> Option<Self> {
        Self::attach(pid, "error=EIO").await
    }

    async fn attach(pid: u32, effect: &str) -> Option<Self> {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync", "-e"]);
        command.arg(format!("inject=fsync,fdatasync:{effect}")).args(["-p", &pid.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().ok()?;
        // There is no word from it when it has attached; if it cannot, it ends.
        let ended = tokio::time::timeout(ATTACHES_IN, child.wait()).await;
        ended.is_err().then_some(Self(child))
    }

    /// Lets go of the process.
    pub(super) async fn end(mut self) {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It detaches in order; a tracer that is killed would leave its last delay behind.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = tokio::time::timeout(Duration::from_secs(5), self.0.wait()).await;
    }
}
