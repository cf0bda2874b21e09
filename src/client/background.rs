//! What goes on after its caller has gone: learning what a dropped question was granted, and giving it back.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The tasks of a client and its clones.
#[derive(Debug, Default)]
pub(super) struct Background {
    running: AtomicUsize,
    ended: Notify,
}

impl Background {
    pub(super) fn spawn(self: &Arc<Self>, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        // Counted as long as the task lives, also where a runtime that shuts down drops it.
        let running = Running::new(Arc::clone(self));
        runtime.spawn(async move {
            task.await;
            drop(running);
        });
    }

    /// Waits until nothing runs any more.
    pub(super) async fn quiet(&self) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

struct Running(Arc<Background>);

impl Running {
    fn new(background: Arc<Background>) -> Self {
        background.running.fetch_add(1, Ordering::AcqRel);
        Self(background)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn quiet_comes_when_all_have_ended() {
        let background = Arc::new(Background::default());
        background.quiet().await;
        let (go, gone) = oneshot::channel::<()>();
        background.spawn(&Handle::current(), async move {
            let _ = gone.await;
        });
        assert!(futures::poll!(Box::pin(background.quiet())).is_pending());
        go.send(()).unwrap();
        background.quiet().await;
    }
}
