//! The writing thread: gathers whatever has queued up, writes it when it is time, keeps the bounds, and starts afresh when the
//! database is of no use any more.
//!
//! Invariants
//! - Nothing here ends the process or waits for anybody outside. What fails, fails loudly in the log and the metrics, and the
//!   thread goes on.
//! - Every event that was told is counted once, as written or as dropped.

use super::Settings;
use super::desk::Desk;
use super::opening::{self, Closed, guarded};
use super::shared::{Message, Shared, State};
use super::store::{Bounds, Broken, Store};
use crate::clock::{Deadline, Stopwatch, wall_millis};
use crate::metric_names::gauge_value;
use crate::priority;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

/// How long the thread sleeps between two looks at the queue. Whoever applies an entry does not wake it: that would cost more
/// than everything that the history does with the entry.
const PAUSE: Duration = Duration::from_millis(100);
/// How often bounds are kept and the store flushed.
const TIDY_EVERY: Duration = Duration::from_secs(1);
/// How long to leave a directory alone that does not let us begin.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The thread's own.
pub(super) struct Writer {
    settings: Settings,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    store: Option<Arc<Store>>,
    desk: Desk,
    /// `None` before the first.
    written: Option<Stopwatch>,
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
            written: None,
            tidy_at: now,
            retry_at: now,
        }
    }

    /// Runs until told to close, or until nobody is left who could.
    pub(super) fn run(mut self) {
        priority::stand_back_most();
        self.open();
        loop {
            let gone = self.turn();
            if gone || self.shared.closing.load(Ordering::Acquire) {
                break;
            }
        }
        while let Ok(message) = self.messages.try_recv() {
            self.gather(message);
        }
        self.shared.set_state(State::Closed("the history is closed".to_owned()));
        if let Some(store) = self.store.take() {
            let events = self.desk.events();
            let desk = &mut self.desk;
            match guarded(|| store.write(desk).and_then(|()| store.flush())) {
                Ok(()) => self.shared.meters.events.increment(events as u64),
                Err(broken) => {
                    self.shared.dropped(events);
                    tracing::warn!(error = %broken, "the end of the history was not written");
                }
            }
        }
        self.shared.end();
    }

    /// Waits for a while, or until somebody has more to tell than events, and does what there is to do. Says whether everybody else has gone.
    fn turn(&mut self) -> bool {
        thread::park_timeout(PAUSE);
        let gone = match self.messages.try_recv() {
            Ok(first) => {
                self.gather(first);
                false
            }
            Err(TryRecvError::Empty) => false,
            Err(TryRecvError::Disconnected) => true,
        };
        if let Some((store, why)) = self.shared.take_report()
            && self.store.as_ref().is_some_and(|current| Arc::ptr_eq(current, &store))
        {
            self.start_afresh(&why);
        }
        if self.store.is_none() && self.retry_at.passed() {
            self.open();
        }
        if self.desk.is_due(self.written.as_ref().map_or(Duration::MAX, Stopwatch::elapsed)) {
            self.write();
        }
        if self.tidy_at.passed() {
            self.tidy_at = Deadline::after(TIDY_EVERY);
            self.tidy();
        }
        gone
    }

    /// Takes in everything that is queued, or what there is time for.
    fn gather(&mut self, first: Message) {
        let mut next = Some(first);
        while let Some(message) = next.take() {
            self.shared.unreserve(message.weight());
            self.take_in(message);
            if !self.tidy_at.passed() {
                next = self.messages.try_recv().ok();
            }
        }
    }

    fn take_in(&mut self, message: Message) {
        if self.store.is_none() {
            self.shared.dropped(message.events());
            return;
        }
        match message {
            Message::Applied(applied) => self.desk.add(applied, wall_millis()),
            Message::Note(event) => self.desk.note(event, wall_millis()),
        }
        if self.desk.is_full() {
            self.write();
        }
    }

    /// Writes what is on the desk.
    fn write(&mut self) {
        let Some(store) = &self.store else { return };
        let events = self.desk.events();
        let desk = &mut self.desk;
        match guarded(|| store.write(desk)) {
            Ok(()) => {
                self.written = Some(Stopwatch::start());
                self.shared.meters.events.increment(events as u64);
            }
            Err(broken) => {
                self.shared.dropped(events);
                self.failed(&broken);
            }
        }
    }

    fn tidy(&mut self) {
        let Some(store) = &self.store else { return };
        match guarded(|| store.flush().and_then(|()| store.tidy(wall_millis()))) {
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
        self.desk = Desk::after(store.index());
        self.written = None;
        self.shared.set_state(State::Open(store));
    }

    fn set_closed(&mut self, why: &str) {
        tracing::error!(why, retry_after = ?RETRY_AFTER, "this node serves without a history");
        self.let_go();
        self.shared.set_state(State::Closed(why.to_owned()));
        self.retry_at = Deadline::after(RETRY_AFTER);
    }

    /// Closing a damaged store may hang or panic like anything else: that happens apart. What waited for it is dropped.
    fn let_go(&mut self) {
        self.shared.dropped(mem::take(&mut self.desk).events());
        self.shared.set_state(State::Closed("the history is being begun afresh".to_owned()));
        if let Some(store) = self.store.take() {
            let apart = thread::Builder::new().name("history-close".to_owned()).spawn(move || drop(store));
            if let Err(error) = apart {
                tracing::warn!(%error, "no thread to close the history on");
            }
        }
    }
}
