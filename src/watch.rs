//! A value that changes, and those who wait for that: what `tokio::sync::watch` is, with an order.
//!
//! Tokio wakes the waiters of one channel in a random order that nobody can seed; here the one who has waited longest is first.
//! So a simulated cluster does the same thing twice, and in production nobody can tell the difference.
//!
//! Invariants
//! - A receiver that has not seen the newest value does not wait.
//! - No lock is held while anybody waits: a [`Ref`] must not be kept across an await.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use thiserror::Error;
use tokio::sync::Notify;

struct Shared<T> {
    value: RwLock<T>,
    /// Counts the changes.
    version: AtomicU64,
    changed: Notify,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The side that changes the value. Clones change the same one.
pub struct Sender<T>(Arc<Shared<T>>);

/// The side that waits.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The value, locked against changes.
pub struct Ref<'a, T>(RwLockReadGuard<'a, T>);

/// All senders are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("nobody changes the value any more")]
pub struct Closed;

/// A value, and both sides of it.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Shared<T> {
    fn read(&self) -> Ref<'_, T> {
        // A change that panicked left a value behind all the same.
        Ref(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Sender<T> {
    /// A value that nobody watches yet.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared {
            value: RwLock::new(value),
            version: AtomicU64::new(0),
            changed: Notify::new(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
        }))
    }

    /// Somebody who waits for the changes from now on.
    pub fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        let seen = self.0.version.load(Ordering::Acquire);
        Receiver { shared: Arc::clone(&self.0), seen }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.0.receivers.load(Ordering::Acquire) > 0
    }

    /// The value.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.0.read()
    }

    /// Changes the value; those who wait are woken if it returns `true`, which is returned.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !modify(&mut value) {
                return false;
            }
            self.0.version.fetch_add(1, Ordering::Release);
        }
        self.0.changed.notify_waiters();
        true
    }

    /// Changes the value and wakes those who wait.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            modify(value);
            true
        });
    }

    /// Puts another value in its place and wakes those who wait.
    pub fn send_replace(&self, value: T) {
        self.send_modify(|current| *current = value);
    }
}

impl<T> Receiver<T> {
    /// The value, which stays unseen if it was.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.shared.read()
    }

    /// The value, which is seen from now on.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }

    /// Waits for a value that was not seen yet, which is seen from then on.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let changed = self.shared.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let version = self.shared.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.shared.senders.load(Ordering::Acquire) == 0 {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the value is as wanted, and returns it.
    pub async fn wait_for(&mut self, wanted: impl Fn(&T) -> bool) -> Result<T, Closed>
    where
        T: Clone,
    {
        loop {
            {
                let value = self.borrow_and_update();
                if wanted(&value) {
                    return Ok(value.clone());
                }
            }
            self.changed().await?;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Sender").field(&*self.borrow()).finish()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Receiver").field(&*self.borrow()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn what_was_not_seen_is_not_waited_for() {
        let (sender, mut receiver) = channel(1);
        sender.send_replace(2);
        receiver.changed().await.unwrap();
        assert_eq!(*receiver.borrow(), 2);
        assert!(!sender.send_if_modified(|_| false));
        let twin = receiver.clone();
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(*twin.borrow(), 2, "the last value stays");
    }

    #[tokio::test]
    async fn a_wanted_value_is_waited_for() {
        let (sender, mut receiver) = channel(1);
        let waits = tokio::spawn(async move { receiver.wait_for(|value| *value > 2).await });
        for value in 2..=3 {
            tokio::task::yield_now().await;
            sender.send_modify(|current| *current = value);
        }
        assert_eq!(waits.await.unwrap(), Ok(3));
        assert!(!sender.is_watched());
    }

    #[tokio::test]
    async fn those_who_wait_are_woken_in_order() {
        let (sender, receiver) = channel(());
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..50)
            .map(|number| {
                let (mut receiver, woken) = (receiver.clone(), Arc::clone(&woken));
                tokio::spawn(async move {
                    receiver.changed().await.unwrap();
                    woken.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send_replace(());
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..50).collect::<Vec<_>>());
    }
}
