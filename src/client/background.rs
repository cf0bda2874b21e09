//! What goes on after its caller has gone: learning what a dropped question was granted, and giving it back.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// How deep one task follows from another: a question, and giving back what it was granted.
const GENERATIONS: usize = 2;

/// The tasks of a client and its clones.
#[derive(Debug, Default)]
pub(super) struct Background {
    tasks: Mutex<Tasks>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Tasks {
    /// By number, in the order they began.
    running: BTreeSet<u64>,
    next: u64,
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

    /// Waits until nothing runs any more of what runs now, and of what follows from it. What others begin meanwhile is not waited
    /// for: a busy client is never without.
    pub(super) async fn quiet(&self) {
        for _ in 0..GENERATIONS {
            let newest = self.tasks().next;
            loop {
                let ended = self.ended.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if self.tasks().running.first().is_none_or(|oldest| *oldest >= newest) {
                    break;
                }
                ended.await;
            }
        }
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Running {
    background: Arc<Background>,
    number: u64,
}

impl Running {
    fn new(background: Arc<Background>) -> Self {
        let mut tasks = background.tasks();
        let number = tasks.next;
        tasks.next += 1;
        tasks.running.insert(number);
        drop(tasks);
        Self { background, number }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.background.tasks().running.remove(&self.number);
        self.background.ended.notify_waiters();
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
        let next = Arc::clone(&background);
        let (last, over) = oneshot::channel::<()>();
        background.spawn(&Handle::current(), async move {
            let _ = gone.await;
            next.spawn(&Handle::current(), async move {
                let _ = over.await;
            });
        });
        let mut quiet = Box::pin(background.quiet());
        assert!(futures::poll!(&mut quiet).is_pending());
        go.send(()).unwrap();
        while background.tasks().next < 2 {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut quiet).is_pending(), "what follows from it is waited for");
        last.send(()).unwrap();
        quiet.await;
    }

    #[tokio::test]
    async fn what_began_later_is_not_waited_for() {
        let background = Arc::new(Background::default());
        let task = || {
            let (end, ended) = oneshot::channel::<()>();
            background.spawn(&Handle::current(), async move {
                let _ = ended.await;
            });
            end
        };
        let first = task();
        let mut quiet = Box::pin(background.quiet());
        assert!(futures::poll!(&mut quiet).is_pending());
        let second = task();
        drop(first);
        while background.tasks().running.len() > 1 {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut quiet).is_pending(), "the second may follow from the first");
        let _third = task();
        drop(second);
        quiet.await;
        assert_eq!(background.tasks().running.len(), 1);
    }
}
