//! A `tower` layer: every request of a service waits for its permit.

use super::Client;
use super::ask::Ask;
use super::error::Error;
use super::lease::Lost;
use futures::future::BoxFuture;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use thiserror::Error as ThisError;
use tower::{Layer, Service};

/// Makes services wait for a permit before every request. What is asked for depends on the request.
pub struct ThrottleLayer<R> {
    client: Client,
    ask: Arc<dyn Fn(&R) -> Ask + Send + Sync>,
}

/// A service whose requests wait for their permits. A response that is dropped before its permit came gives it back.
pub struct Throttle<S, R> {
    inner: S,
    layer: ThrottleLayer<R>,
}

/// Why a request was not answered.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum ThrottleError<E> {
    /// There was no permit for it: it was not made.
    #[error("no permit: {0}")]
    NoPermit(Error),
    /// The lease under which it was made is lost: it was dropped on the way, and may have been answered in part.
    #[error("lease lost: {0}")]
    LeaseLost(Lost),
    /// The service itself failed.
    #[error("{0}")]
    Inner(E),
}

impl<R> ThrottleLayer<R> {
    /// Every request waits for the permit that `ask` makes of it.
    pub fn new(client: &Client, ask: impl Fn(&R) -> Ask + Send + Sync + 'static) -> Self {
        Self { client: client.clone(), ask: Arc::new(ask) }
    }
}

impl<R> Clone for ThrottleLayer<R> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), ask: Arc::clone(&self.ask) }
    }
}

impl<R> fmt::Debug for ThrottleLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleLayer").field("client", &self.client).finish_non_exhaustive()
    }
}

impl<S: Clone, R> Clone for Throttle<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for Throttle<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

impl<S, R> Layer<S> for ThrottleLayer<R> {
    type Service = Throttle<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Throttle { inner, layer: self.clone() }
    }
}

impl<S, R> Service<R> for Throttle<S, R>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    S::Error: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = ThrottleError<S::Error>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(ThrottleError::Inner)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // The one that was found ready has to be the one that is called; its clone may not be.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let (client, ask) = (self.layer.client.clone(), (self.layer.ask)(&request));
        Box::pin(async move {
            let pass = client.acquire(ask).await.map_err(ThrottleError::NoPermit)?;
            let answer = client.run(&pass, inner.call(request)).await.map_err(|error| match error {
                Error::LeaseLost(lost) => ThrottleError::LeaseLost(lost),
                error => ThrottleError::NoPermit(error),
            })?;
            answer.map_err(ThrottleError::Inner)
        })
    }
}
