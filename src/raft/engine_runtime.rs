//! The runtime that the engine runs on: tokio, with random numbers that a simulation can decide.
//!
//! The engine itself draws random numbers for election timeouts only. Tokio's watch channels draw some too, which nobody can
//! seed, so the engine gets ours.

use crate::watch;
use openraft::AsyncRuntime;
use openraft::TokioRuntime;
use openraft::async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft::{OptionalSend, OptionalSync};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on, what engines on this thread draw follows from `seed`; without one they draw what nobody can foresee.
pub fn seed_engines(seed: Option<u64>) {
    SEED.set(seed);
}

/// Whether what happens on this thread has to follow from a seed.
pub(super) fn is_simulated() -> bool {
    SEED.get().is_some()
}

/// Tokio with a seed.
#[derive(Debug)]
pub struct EngineRuntime(TokioRuntime);

impl AsyncRuntime for EngineRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = OrderedWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> SmallRng {
        match SEED.get() {
            Some(seed) => {
                SEED.set(Some(seed.wrapping_add(1)));
                SmallRng::seed_from_u64(seed)
            }
            None => rand::make_rng(),
        }
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

/// [`watch`] as the engine wants it.
pub struct OrderedWatch;

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = watch::Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = watch::Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(value: T) -> (watch::Sender<T>, watch::Receiver<T>) {
        watch::channel(value)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for watch::Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if !self.is_watched() {
            return Err(SendError(value));
        }
        self.send_replace(value);
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        Self::send_if_modified(self, modify)
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.borrow()
    }

    fn subscribe(&self) -> watch::Receiver<T> {
        Self::subscribe(self)
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for watch::Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        Self::changed(self).await.map_err(|_| RecvError(()))
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        Self::borrow_and_update(self)
    }
}
