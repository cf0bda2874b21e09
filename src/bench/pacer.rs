//! Wakes connections when their next request is due, to a tenth of a millisecond.
//!
//! The runtime's own timers count whole milliseconds: requests would leave in a bunch at each, half a millisecond late, and all
//! of that would be taken for the latency of whom they ask. A wake-up for every request is no better: at some ten thousand a second
//! they take a whole core, on a machine with few of them from those who are measured. So there is a [`REST`] between two, and what
//! is late by that counts as latency too.

use crate::clock::Stopwatch;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;

/// From one wake-up to the next.
const REST: Duration = Duration::from_micros(100);

/// One thread's timer for all of its connections.
#[derive(Debug)]
pub(super) struct Pacer {
    clock: Stopwatch,
    /// A timer of the system, which is read from like a pipe.
    timer: Receiver,
    /// By when they are due, on `clock`; the number tells apart what is due at once.
    waiting: RefCell<BTreeMap<(Duration, u64), Rc<Notify>>>,
    numbers: Cell<u64>,
    /// When somebody was woken last.
    rung: Cell<Duration>,
}

impl Pacer {
    pub(super) fn new(clock: Stopwatch) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Receiver::from_owned_fd_unchecked(timerfd_create(TimerfdClockId::Monotonic, flags)?)?;
        Ok(Self { clock, timer, waiting: RefCell::default(), numbers: Cell::new(0), rung: Cell::default() })
    }

    /// Resolves when `due` has come; at once, if it has passed.
    pub(super) async fn until(&self, due: Duration) -> io::Result<()> {
        if due <= self.clock.elapsed() {
            return Ok(());
        }
        let (bell, number) = (Rc::new(Notify::new()), self.numbers.get());
        self.numbers.set(number + 1);
        let first = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.insert((due, number), Rc::clone(&bell));
            waiting.first_key_value().is_some_and(|(key, _)| *key == (due, number))
        };
        if first {
            self.arm(due)?;
        }
        bell.notified().await;
        Ok(())
    }

    /// Rings for whoever is due, for as long as it is polled.
    pub(super) async fn run(&self) -> io::Result<()> {
        loop {
            self.timer.readable().await?;
            // How often it went off; not at all, if it was armed anew meanwhile.
            let _ = self.timer.try_read(&mut [0; 8]);
            let now = self.clock.elapsed();
            self.rung.set(now);
            let next = loop {
                let mut waiting = self.waiting.borrow_mut();
                match waiting.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove().notify_one(),
                    Some(first) => break Some(first.key().0),
                    None => break None,
                }
            };
            if let Some(next) = next {
                self.arm(next)?;
            }
        }
    }

    fn arm(&self, due: Duration) -> io::Result<()> {
        let at = due.max(self.rung.get() + REST);
        // Nothing would disarm it.
        let left = at.saturating_sub(self.clock.elapsed()).max(Duration::from_nanos(1));
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: once, it_value: value })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_is_woken_when_due_and_not_before() {
        let clock = Stopwatch::start();
        let pacer = Pacer::new(clock).unwrap();
        let one = async |ms: u64| {
            let due = Duration::from_millis(ms);
            pacer.until(due).await.unwrap();
            assert!(clock.elapsed() >= due);
        };
        tokio::select! {
            ended = pacer.run() => panic!("{ended:?}"),
            _ = futures::future::join4(one(30), one(10), one(20), one(0)) => {}
        }
    }
}
