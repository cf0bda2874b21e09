//! The same client for threads that may block. It brings a runtime of its own, with one thread.
//!
//! Not for code that runs on a tokio runtime already: there its calls panic, as everything that blocks does. The last clone waits a
//! moment for what is still being given back, but not on a thread of a runtime.

use super::ask::Ask;
use super::error::Error;
use super::options::Options;
use super::pass::Pass;
use super::policies::{Precondition, Removed};
use super::{Counters, reservation};
use crate::api::{KeyResponse, PoliciesResponse, PolicyRequest, PolicyResponse, ReleaseResponse};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long the last client waits for what is still being given back.
const FAREWELL: Duration = Duration::from_secs(1);

/// A client of one cluster, for threads. Cheap to clone; clones share connections and the runtime.
#[derive(Debug, Clone)]
pub struct Client {
    inner: super::Client,
    runtime: Arc<Home>,
}

/// A permit that has not been used yet. Dropped, it goes back to the cluster.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is given back"]
pub struct Reservation {
    inner: reservation::Reservation,
    runtime: Arc<Home>,
}

/// The runtime. The last one to leave waits a moment for what is being given back.
#[derive(Debug)]
struct Home {
    client: super::Client,
    /// There until it is dropped.
    runtime: Option<Runtime>,
}

impl Home {
    fn runtime(&self) -> &Runtime {
        match &self.runtime {
            Some(runtime) => runtime,
            // Only a drop takes it away, and nobody calls after that.
            None => unreachable!("the runtime outlives every call"),
        }
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }

    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime().spawn(task)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if Handle::try_current().is_err() {
            let quiet = self.client.shared.background.quiet();
            let _ = runtime.block_on(async { timeout(FAREWELL, quiet).await });
        }
        runtime.shutdown_background();
    }
}

impl Client {
    /// A client of the cluster of these nodes.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, Error> {
        Self::with(&Options::new(nodes))
    }

    /// A client with options of one's own.
    pub fn with(options: &Options) -> Result<Self, Error> {
        let inner = super::Client::with(options)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("quorate-client")
            .enable_all()
            .build()
            .map_err(|error| Error::Misuse(format!("no runtime: {error}")))?;
        let home = Home { client: inner.clone(), runtime: Some(runtime) };
        Ok(Self { inner, runtime: Arc::new(home) })
    }

    /// See [`Client::acquire`](super::Client::acquire).
    pub fn acquire(&self, ask: impl Into<Ask>) -> Result<Pass, Error> {
        self.runtime.block_on(self.inner.acquire(ask))
    }

    /// See [`Client::try_acquire`](super::Client::try_acquire).
    pub fn try_acquire(&self, ask: impl Into<Ask>) -> Result<Option<Pass>, Error> {
        self.runtime.block_on(self.inner.try_acquire(ask))
    }

    /// See [`Client::reserve`](super::Client::reserve).
    pub fn reserve(&self, ask: impl Into<Ask>) -> Result<Reservation, Error> {
        self.runtime.block_on(self.inner.reserve(ask)).map(|inner| self.guarded(inner))
    }

    /// See [`Client::batch`](super::Client::batch).
    pub fn batch(
        &self,
        asks: impl IntoIterator<Item = impl Into<Ask>>,
        atomic: bool,
    ) -> Result<Vec<Result<Reservation, Error>>, Error> {
        let results = self.runtime.block_on(self.inner.batch(asks, atomic))?;
        Ok(results.into_iter().map(|result| result.map(|inner| self.guarded(inner))).collect())
    }

    /// See [`Client::release`](super::Client::release).
    pub fn release(&self, key: &str, permit: u64) -> Result<ReleaseResponse, Error> {
        self.runtime.block_on(self.inner.release(key, permit))
    }

    /// See [`Client::peek`](super::Client::peek).
    pub fn peek(&self, key: &str) -> Result<KeyResponse, Error> {
        self.runtime.block_on(self.inner.peek(key))
    }

    /// See [`Client::policies`](super::Client::policies).
    pub fn policies(&self) -> Result<PoliciesResponse, Error> {
        self.runtime.block_on(self.inner.policies())
    }

    /// See [`Client::policy`](super::Client::policy).
    pub fn policy(&self, name: &str) -> Result<PolicyResponse, Error> {
        self.runtime.block_on(self.inner.policy(name))
    }

    /// See [`Client::put_policy`](super::Client::put_policy).
    pub fn put_policy(
        &self,
        name: &str,
        policy: &PolicyRequest,
        precondition: Option<Precondition>,
    ) -> Result<PolicyResponse, Error> {
        self.runtime.block_on(self.inner.put_policy(name, policy, precondition))
    }

    /// See [`Client::delete_policy`](super::Client::delete_policy).
    pub fn delete_policy(&self, name: &str, if_match: Option<u64>) -> Result<Removed, Error> {
        self.runtime.block_on(self.inner.delete_policy(name, if_match))
    }

    /// Does the work under a pass. See [`Client::run`](super::Client::run), but a thread cannot be stopped: work whose lease is
    /// lost goes on to its end, and that it was lost is said afterwards.
    pub fn run<T>(&self, pass: &Pass, work: impl FnOnce() -> T) -> Result<T, Error> {
        let Some(mut lease) = pass.permit().and_then(|permit| permit.lease(&self.inner)) else { return Ok(work()) };
        let (done, over) = tokio::sync::oneshot::channel::<()>();
        let kept = self.runtime.spawn(async move {
            let lost = {
                let keep = lease.keep();
                tokio::pin!(keep);
                match futures::future::select(over, keep).await {
                    futures::future::Either::Left(_) => None,
                    futures::future::Either::Right((lost, _)) => Some(lost),
                }
            };
            // It ends by itself if this fails.
            let _ = lease.release().await;
            lost
        });
        let result = work();
        drop(done);
        match self.runtime.block_on(kept) {
            Ok(Some(lost)) => Err(Error::LeaseLost(lost)),
            Ok(None) | Err(_) => Ok(result),
        }
    }

    /// See [`Client::counters`](super::Client::counters).
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn guarded(&self, inner: reservation::Reservation) -> Reservation {
        Reservation { inner, runtime: Arc::clone(&self.runtime) }
    }
}

impl Reservation {
    /// How long until it may start.
    pub fn starts_in(&self) -> Duration {
        self.inner.starts_in()
    }

    /// The number of the permit; `None` where the cluster was out of reach.
    pub fn number(&self) -> Option<u64> {
        self.inner.number()
    }

    /// Waits until the permit may be used and takes it up. See [`Reservation::start`](super::Reservation::start).
    pub fn start(self) -> Result<Pass, Error> {
        let Self { inner, runtime } = self;
        runtime.block_on(inner.start())
    }
}

/// The same function, but every call waits for its permit first. See [`throttled`](super::throttled).
///
/// ```no_run
/// use quorate::client::{Ask, Error, blocking};
///
/// # fn example() -> Result<(), Error> {
/// let client = blocking::Client::new(["http://127.0.0.1:7001"])?;
/// let fetch = blocking::throttled(&client, |_: &&str| Ask::new("github").limit("1/6s"), |url: &str| url.len());
/// let length = fetch("https://example.org/")?;
/// # Ok(())
/// # }
/// ```
pub fn throttled<A, T, K, F>(client: &Client, ask: K, function: F) -> impl Fn(A) -> Result<T, Error> + use<A, T, K, F>
where
    K: Fn(&A) -> Ask,
    F: Fn(A) -> T,
{
    let client = client.clone();
    move |argument| {
        let pass = client.acquire(ask(&argument))?;
        client.run(&pass, || function(argument))
    }
}

/// The same function, but a call for which no permit is free now does nothing. See [`skipping`](super::skipping).
pub fn skipping<A, T, K, F>(
    client: &Client,
    ask: K,
    function: F,
) -> impl Fn(A) -> Result<Option<T>, Error> + use<A, T, K, F>
where
    K: Fn(&A) -> Ask,
    F: Fn(A) -> T,
{
    let client = client.clone();
    move |argument| {
        let Some(pass) = client.try_acquire(ask(&argument))? else { return Ok(None) };
        client.run(&pass, || function(argument)).map(Some)
    }
}
