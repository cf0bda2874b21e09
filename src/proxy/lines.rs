//! Lines of requests whose limit has no reservation left, one for each key: first come, first served.
//!
//! Only those at the head of a line ask the cluster again. Without it, all that were refused would come back at the same instant.
//! There are several of them, because each pays the way to the cluster before the next one can.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// At the head of one line at once: over a way of 80 ms that is two hundred permits a second.
const HEADS: usize = 16;

type Head = Arc<Semaphore>;

/// All lines. There are never more than held requests, so they need no bound of their own.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    heads: usize,
    lines: Arc<Mutex<HashMap<String, Head>>>,
}

impl Default for Lines {
    fn default() -> Self {
        Self::with_heads(HEADS)
    }
}

/// A place in a line: at its head, once it is there.
#[derive(Debug)]
pub(super) struct Place {
    lines: Lines,
    key: String,
    /// `None` only while it is being given up.
    head: Option<OwnedSemaphorePermit>,
}

impl Lines {
    fn with_heads(heads: usize) -> Self {
        Self { heads, lines: Arc::default() }
    }

    /// Whether somebody stands in line for this key.
    pub(super) fn any(&self, key: &str) -> bool {
        self.with(|lines| lines.contains_key(key))
    }

    /// Waits until it is at the head of the line.
    pub(super) async fn stand(&self, key: &str) -> Place {
        // Given up while it waits, it leaves the line, and whoever is last takes the line away: so this is dropped last.
        let _leaving = Leaving { lines: self, key };
        let new = || Arc::new(Semaphore::new(self.heads));
        let head = self.with(|lines| Arc::clone(lines.entry(key.to_owned()).or_insert_with(new)));
        // Lines are never closed; if one were, nobody would have to wait.
        let head = head.acquire_owned().await.ok();
        Place { lines: self.clone(), key: key.to_owned(), head }
    }

    fn forget_if_empty(&self, key: &str) {
        self.with(|lines| {
            if lines.get(key).is_some_and(|head| Arc::strong_count(head) == 1) {
                lines.remove(key);
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut HashMap<String, Head>) -> T) -> T {
        act(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Leaving<'a> {
    lines: &'a Lines,
    key: &'a str,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.lines.forget_if_empty(self.key);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.head.take());
        self.lines.forget_if_empty(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    #[tokio::test]
    async fn a_line_is_served_in_order_and_gone_with_its_last() {
        let lines = Lines::with_heads(1);
        let mut cx = Context::from_waker(Waker::noop());
        let first = lines.stand("k").await;
        assert!(lines.any("k") && !lines.any("other"));
        {
            let mut impatient = pin!(lines.stand("k"));
            assert!(impatient.as_mut().poll(&mut cx).is_pending());
        }
        let mut second = pin!(lines.stand("k"));
        let mut third = pin!(lines.stand("k"));
        assert!(second.as_mut().poll(&mut cx).is_pending() && third.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut cx).is_pending(), "not before the second");
        let Poll::Ready(second) = second.as_mut().poll(&mut cx) else { panic!("the head of the line") };
        drop(second);
        drop(third.await);
        assert!(!lines.any("k"));
    }

    /// A line with one head would grant one permit for each way to the cluster and back.
    #[tokio::test]
    async fn several_are_at_the_head() {
        let lines = Lines::default();
        let mut heads = Vec::new();
        for _ in 0..HEADS {
            heads.push(lines.stand("k").await);
        }
        let mut next = pin!(lines.stand("k"));
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        heads.pop();
        drop(next.await);
        assert!(lines.any("k"));
    }

    #[tokio::test]
    async fn whoever_gives_up_last_takes_the_line_away() {
        let lines = Lines::with_heads(1);
        let head = lines.stand("k").await;
        let waiting = lines.clone();
        let task = tokio::spawn(async move { drop(waiting.stand("k").await) });
        tokio::task::yield_now().await;
        task.abort();
        let _ = task.await;
        drop(head);
        assert!(!lines.any("k"));
    }
}
