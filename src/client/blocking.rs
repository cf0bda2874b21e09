//! The same client for threads that may block. It brings a runtime of its own, with one thread.
//!
//! Not for code that runs on a tokio runtime already, where nothing may block: there its calls are refused ([`Error::Misuse`]). On
//! threads that such a runtime has for what blocks (`spawn_blocking`) they are welcome. The last clone waits for what is still being
//! given back, as long as [`Options::farewell`] says; on a thread of a runtime it leaves that to a thread of its own.

use super::ask::Ask;
use super::error::Error;
use super::lease::Lost;
use super::options::Options;
use super::pass::Pass;
use super::policies::{Precondition, Removed};
use super::{Counters, reservation};
use crate::api::{
    KeyResponse, PoliciesResponse, PolicyRequest, PolicyResponse, ReleaseResponse, RenewResponse, ResetResponse,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;

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

    fn block_on<T>(&self, future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.may_block()?;
        self.runtime().block_on(future)
    }

    /// Whether this thread may block. A runtime tells its own threads from those it has for blocking only by a panic, so that is
    /// caught here, with nothing at stake.
    fn may_block(&self) -> Result<(), Error> {
        if Handle::try_current().is_err() {
            return Ok(());
        }
        catch_unwind(AssertUnwindSafe(|| self.runtime().block_on(std::future::ready(())))).map_err(|_| {
            Error::Misuse(
                "client::blocking on a thread that runs a runtime: take client::Client, or spawn_blocking".to_owned(),
            )
        })
    }

    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime().spawn(task)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        let client = self.client.clone();
        let farewell = move || {
            let quiet = client.quiet();
            let _ = runtime.block_on(async { timeout(client.shared.options.farewell, quiet).await });
            runtime.shutdown_background();
        };
        if Handle::try_current().is_err() {
            farewell();
        } else {
            // Nobody waits for it here, where that would hold up a runtime.
            drop(thread::Builder::new().name("quorate-farewell".to_owned()).spawn(farewell));
        }
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

    /// See [`Client::acquire_all`](super::Client::acquire_all).
    pub fn acquire_all(&self, asks: impl IntoIterator<Item = impl Into<Ask>>) -> Result<Vec<Pass>, Error> {
        self.runtime.block_on(self.inner.acquire_all(asks))
    }

    /// See [`Client::renew`](super::Client::renew).
    pub fn renew(&self, key: &str, permit: u64) -> Result<RenewResponse, Error> {
        self.runtime.block_on(self.inner.renew(key, permit))
    }

    /// See [`Client::reset_key`](super::Client::reset_key).
    pub fn reset_key(&self, key: &str) -> Result<ResetResponse, Error> {
        self.runtime.block_on(self.inner.reset_key(key))
    }

    /// See [`Client::quiet`](super::Client::quiet).
    pub fn quiet(&self) -> Result<(), Error> {
        self.runtime.block_on(async {
            self.inner.quiet().await;
            Ok(())
        })
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
    /// lost goes on to its end, and that it was lost is said beside its result.
    pub fn run<T>(&self, pass: &Pass, work: impl FnOnce() -> T) -> Result<Done<T>, Error> {
        let lease = pass.permit().and_then(|permit| permit.lease(&self.inner));
        let Some(mut lease) = lease else { return Ok(Done { result: work(), lost: None }) };
        self.runtime.may_block()?;
        let client = self.inner.clone();
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
            client.shared.tally.leases_lost.many(u64::from(lost.is_some()));
            client.end(lease).await;
            lost
        });
        let result = work();
        drop(done);
        // The task only ever ends early with its runtime, and that is ours.
        let lost = self.runtime.block_on(async { Ok(kept.await.ok().flatten()) })?;
        Ok(Done { result, lost })
    }

    /// See [`Client::counters`](super::Client::counters).
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn guarded(&self, inner: reservation::Reservation) -> Reservation {
        Reservation { inner, runtime: Arc::clone(&self.runtime) }
    }
}

/// Work that was done to its end under a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<T> {
    /// What came of it.
    pub result: T,
    /// How the lease was lost meanwhile: then another one may have been in flight beside it.
    pub lost: Option<Lost>,
}

impl<T> Done<T> {
    /// The result, if it was under a lease to its end.
    pub fn in_lease(self) -> Result<T, Error> {
        self.lost.map_or(Ok(self.result), |lost| Err(Error::LeaseLost(lost)))
    }
}

impl Reservation {
    /// The key.
    pub fn key(&self) -> &str {
        self.inner.key()
    }

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

/// The same function, but every call waits for its permit first. See [`throttled`](super::throttled). A call whose lease was lost
/// has that for its error; [`Client::run`] has the result as well.
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
        client.run(&pass, || function(argument))?.in_lease()
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
        client.run(&pass, || function(argument))?.in_lease().map(Some)
    }
}
