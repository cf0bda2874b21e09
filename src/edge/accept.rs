//! What every listener does beside answering: it bears with what cannot be accepted, and it ends without cutting anybody off.

use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use std::error::Error;
use std::io;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};

/// How long to leave a listener alone that cannot accept, most likely because the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Errors of one connection pass by themselves; any other would come again at once.
pub async fn pause(error: &io::Error) {
    let passing = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionRefused];
    if !passing.contains(&error.kind()) {
        tracing::warn!(%error, "cannot accept connections");
        sleep(ACCEPT_PAUSE).await;
    }
}

/// The task of a connection has ended.
pub fn ended(how: Result<(), JoinError>) {
    if let Err(error) = how {
        tracing::error!(%error, "the task of a connection failed");
    }
}

/// Serves one connection to its end; once `stopping` is true, to the end of the request it is at.
pub async fn until_stopped<I, S, B>(connection: http1::Connection<I, S>, mut stopping: watch::Receiver<bool>)
where
    I: Read + Write + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let told_to_stop = async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    tokio::pin!(connection);
    let ended = tokio::select! {
        // First, so that it has read what is there of a request before it is told.
        biased;
        ended = connection.as_mut() => ended,
        () = told_to_stop => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Tells all connections to stop, lets requests in flight finish within `grace`, and closes what is left.
pub async fn drain(mut tasks: JoinSet<()>, stopping: &watch::Sender<bool>, grace: Duration) {
    stopping.send_replace(true);
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(grace, all).await.is_err() {
        tracing::warn!(connections = tasks.len(), "closing connections whose requests did not finish in time");
    }
    tasks.shutdown().await;
}
