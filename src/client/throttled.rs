//! Functions that wait for their permit.

use super::Client;
use super::ask::Ask;
use super::error::Error;
use futures::future::BoxFuture;
use std::future::Future;
use std::sync::Arc;

/// The same function, but every call waits for its permit first. What is asked for may depend on the arguments.
///
/// A permit that counts what is in flight is renewed while the function runs and given back when it has returned. A call that
/// is dropped while it waits gives its permit back.
///
/// ```no_run
/// use quorate::client::{Ask, Client, Error, throttled};
///
/// # async fn example() -> Result<(), Error> {
/// let client = Client::new(["http://127.0.0.1:7001"])?;
/// let fetch = throttled(&client, |_: &String| Ask::new("github").limit("1/6s"), async |url: String| url.len());
/// let length = fetch("https://example.org/".to_owned()).await?;
/// # Ok(())
/// # }
/// ```
pub fn throttled<A, T, F, Fut>(
    client: &Client,
    ask: impl Fn(&A) -> Ask + Send + Sync + 'static,
    function: F,
) -> impl Fn(A) -> BoxFuture<'static, Result<T, Error>> + Clone + Send + Sync + 'static
where
    A: Send + 'static,
    T: Send + 'static,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    let (client, parts) = (client.clone(), Arc::new((ask, function)));
    move |argument| {
        let (client, parts) = (client.clone(), Arc::clone(&parts));
        Box::pin(async move {
            let (ask, function) = &*parts;
            let pass = client.acquire(ask(&argument)).await?;
            client.run(&pass, function(argument)).await
        })
    }
}

/// The same function, but a call for which no permit is free now does nothing and returns `None`.
pub fn skipping<A, T, F, Fut>(
    client: &Client,
    ask: impl Fn(&A) -> Ask + Send + Sync + 'static,
    function: F,
) -> impl Fn(A) -> BoxFuture<'static, Result<Option<T>, Error>> + Clone + Send + Sync + 'static
where
    A: Send + 'static,
    T: Send + 'static,
    F: Fn(A) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = T> + Send + 'static,
{
    let (client, parts) = (client.clone(), Arc::new((ask, function)));
    move |argument| {
        let (client, parts) = (client.clone(), Arc::clone(&parts));
        Box::pin(async move {
            let (ask, function) = &*parts;
            let Some(pass) = client.try_acquire(ask(&argument)).await? else { return Ok(None) };
            client.run(&pass, function(argument)).await.map(Some)
        })
    }
}
