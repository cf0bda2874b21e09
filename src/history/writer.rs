//! The writing thread: takes whatever has queued up, writes it as one batch, keeps the bounds, and starts afresh when the
//! database is of no use any more.
//!
//! Invariant: nothing here ends the process or waits for anybody outside. What fails, fails loudly in the log and the
//! metrics, and the thread goes on.

use super::Settings;
use super::opening::{self, Closed, guarded};
use super::shared::{Message, Shared, State};
use super::store::{Bounds, Broken, Desk, Store};
use crate::clock::{Deadline, Stopwatch, wall_millis};
use crate::metric_names::gauge_value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Events that go into one batch; the last message may bring a few more.
const BATCH_EVENTS_MAX: usize = 4_096;
/// How long to wait for events before looking after the rest.
const PAUSE: Duration = Duration::from_millis(250);
/// How often bounds are kept and the store flushed.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// How long to leave a directory alone that does not let us begin.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Buckets of usage that are few enough to be written whenever the bounds are kept, and so many that they have to be.
const USAGE_FEW: usize = 1_000;
const USAGE_MANY: usize = 32_768;
/// How long any number of them may wait: a busy minute is written a few times, not with every batch.
const USAGE_WAITS_MAX: Duration = Duration::from_secs(10);

/// The thread's own.
pub(super) struct Writer {
    settings: Settings,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    store: Option<Arc<Store>>,
    desk: Desk,
    usage_since: Stopwatch,
    tidy_at: Deadline,
    retry_at: Deadline,
}

impl Writer {
    pub(super) fn new(settings: Settings, shared: Arc<Shared>, messages: Receiver<Message>) -> Self {
        let now = Deadline::after(Duration::ZERO);
        Self {
            settings,
            shared,
            messages,
            store: None,
            desk: Desk::default(),
            usage_since: Stopwatch::start(),
            tidy_at: now,
            retry_at: now,
        }
    }

    /// Runs until told to close, or until nobody is left who could.
    pub(super) fn run(mut self) {
        self.open();
        loop {
            let gone = self.turn();
            if gone || self.shared.closing.load(Ordering::Acquire) {
                break;
            }
        }
        while let Ok(message) = self.messages.try_recv() {
            self.drain(message);
        }
        self.shared.set_state(State::Closed("the history is closed".to_owned()));
        let desk = &mut self.desk;
        if let Some(store) = self.store.take()
            && let Err(broken) = guarded(|| store.write_usage(desk).and_then(|()| store.flush()))
        {
            tracing::warn!(error = %broken, "the end of the history was not written");
        }
        self.shared.end();
    }

    /// Waits for something to do and does it. Says whether everybody else has gone.
    fn turn(&mut self) -> bool {
        let gone = match self.messages.recv_timeout(PAUSE) {
            Ok(first) => {
                self.drain(first);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if let Some((store, why)) = self.shared.take_report()
            && self.store.as_ref().is_some_and(|current| Arc::ptr_eq(current, &store))
        {
            self.start_afresh(&why);
        }
        if self.store.is_none() && self.retry_at.passed() {
            self.open();
        }
        if self.tidy_at.passed() {
            self.tidy_at = Deadline::after(TIDY_EVERY);
            self.tidy();
        }
        gone
    }

    /// Writes everything that is queued, a batch at a time.
    fn drain(&mut self, first: Message) {
        let mut next = Some(first);
        while let Some(message) = next.take() {
            let mut events = message.events();
            let mut messages = vec![message];
            while events < BATCH_EVENTS_MAX
                && let Ok(message) = self.messages.try_recv()
            {
                events += message.events();
                messages.push(message);
            }
            self.shared.unreserve(events);
            self.write(messages, events);
            if !self.tidy_at.passed() {
                next = self.messages.try_recv().ok();
            }
        }
    }

    fn write(&mut self, messages: Vec<Message>, events: usize) {
        let Some(store) = &self.store else {
            self.shared.dropped(events);
            return;
        };
        let desk = &mut self.desk;
        let written = guarded(|| {
            let mut batch = store.batch(wall_millis());
            for message in messages {
                match message {
                    Message::Applied(applied) => batch.add(applied),
                    Message::Note(event) => batch.note(event),
                    Message::Wake => {}
                }
            }
            store.record(batch, desk)?;
            if desk.waiting() >= USAGE_MANY { store.write_usage(desk) } else { Ok(()) }
        });
        match written {
            Ok(()) => self.shared.meters.events.increment(events as u64),
            Err(broken) => {
                self.shared.dropped(events);
                self.failed(&broken);
            }
        }
    }

    fn tidy(&mut self) {
        let Some(store) = &self.store else { return };
        let waiting = self.desk.waiting();
        let due = waiting < USAGE_FEW || self.usage_since.elapsed() >= USAGE_WAITS_MAX;
        if due {
            self.usage_since = Stopwatch::start();
        }
        let desk = &mut self.desk;
        let done = guarded(|| {
            if due {
                store.write_usage(desk)?;
            }
            store.flush()?;
            store.tidy(wall_millis(), desk)
        });
        match done {
            Ok(bytes) => self.shared.meters.bytes.set(gauge_value(bytes)),
            Err(broken) => self.failed(&broken),
        }
    }

    /// A write that failed. A full disk is no damage: the history pauses. Anything else is.
    fn failed(&mut self, broken: &Broken) {
        if broken.is_of_the_disk() {
            self.set_closed(&broken.to_string());
        } else {
            self.start_afresh(&broken.to_string());
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds { bytes_max: self.settings.bytes_max, age_max: self.settings.age_max }
    }

    fn open(&mut self) {
        let Settings { dir, open_within, .. } = &self.settings;
        match opening::open(dir, self.bounds(), *open_within, wall_millis()) {
            Ok(store) => self.set_open(store),
            Err(Closed::Damaged(why)) => self.start_afresh(&why),
            Err(Closed::Unavailable(why)) => self.set_closed(&why),
        }
    }

    /// Moves the database aside and begins a new one.
    fn start_afresh(&mut self, why: &str) {
        self.let_go();
        self.shared.meters.resets.increment(1);
        let Settings { dir, open_within, .. } = &self.settings;
        match opening::move_aside(dir, wall_millis()) {
            Ok(aside) => tracing::error!(
                why,
                moved_to = %aside.display(),
                "the history of this node was of no use and has been moved aside; permits are not affected"
            ),
            Err(error) => {
                tracing::error!(why, %error, "the history of this node is of no use and cannot be moved aside");
                self.set_closed(&format!("{why}, and it cannot be moved aside: {error}"));
                return;
            }
        }
        match opening::open(dir, self.bounds(), *open_within, wall_millis()) {
            Ok(store) => self.set_open(store),
            Err(Closed::Damaged(why) | Closed::Unavailable(why)) => self.set_closed(&why),
        }
    }

    fn set_open(&mut self, store: Store) {
        let store = Arc::new(store);
        self.store = Some(Arc::clone(&store));
        self.desk = Desk::default();
        self.shared.set_state(State::Open(store));
    }

    fn set_closed(&mut self, why: &str) {
        tracing::error!(why, retry_after = ?RETRY_AFTER, "this node serves without a history");
        self.let_go();
        self.shared.set_state(State::Closed(why.to_owned()));
        self.retry_at = Deadline::after(RETRY_AFTER);
    }

    /// Closing a damaged store may hang or panic like anything else: that happens apart.
    fn let_go(&mut self) {
        self.shared.set_state(State::Closed("the history is being begun afresh".to_owned()));
        if let Some(store) = self.store.take() {
            let apart = thread::Builder::new().name("history-close".to_owned()).spawn(move || drop(store));
            if let Err(error) = apart {
                tracing::warn!(%error, "no thread to close the history on");
            }
        }
    }
}
