//! The listener: accepts, bounds, serves, and stops without cutting anybody off.

use super::reply::Body;
use super::socket::{Hangup, Socket};
use crate::limits::HEADER_BYTES_MAX;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long to leave a listener alone that cannot accept, most likely because the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What somebody is told who is one connection too many. What the socket does not take at once is not worth waiting for.
const FULL: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n",
    "connection: close\r\ncontent-length: 171\r\n\r\n",
    r#"{"type":"urn:quorate:error:overloaded","title":"Too much at once","status":503,"#,
    r#""detail":"as many connections are open as may be","code":"overloaded","retry_after_ms":1000}"#,
);

/// What a listener bears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections_max: usize,
    /// Time for all headers of a request, and for a rest between two.
    pub header_timeout: Duration,
    /// Time for requests in flight when it stops.
    pub grace: Duration,
}

/// Whoever sent a request.
#[derive(Debug, Clone)]
pub struct Peer {
    /// From where.
    pub address: SocketAddr,
    /// Whether it is still there.
    pub hangup: Hangup,
}

/// Serves `handler` on `listener` until `shutdown` completes, and then until requests in flight have finished.
pub async fn serve<H, F>(listener: TcpListener, bounds: Bounds, handler: H, shutdown: impl Future<Output = ()>)
where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(bounds.connections_max.clamp(1, Semaphore::MAX_PERMITS)));
    let stopping = watch::Sender::new(false);
    let mut tasks = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = tasks.join_next() => log_end(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        let connection = connection(stream, address, bounds, handler.clone(), stopping.subscribe());
                        tasks.spawn(async move {
                            connection.await;
                            drop(place);
                        });
                    }
                    Err(_full) => turn_away(&stream),
                },
                Err(error) => pause(&error).await,
            },
        }
    }
    drop(listener);
    stopping.send_replace(true);
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(bounds.grace, all).await.is_err() {
        tracing::warn!(connections = tasks.len(), "closing connections whose requests did not finish in time");
    }
    tasks.shutdown().await;
}

fn turn_away(stream: &TcpStream) {
    let _ = stream.try_write(FULL.as_bytes());
}

async fn connection<H, F>(
    stream: TcpStream,
    address: SocketAddr,
    bounds: Bounds,
    handler: H,
    mut stopping: watch::Receiver<bool>,
) where
    H: Fn(Request<Incoming>, Peer) -> F,
    F: Future<Output = Response<Body>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection broke before it began");
        return;
    }
    let (socket, hangup) = Socket::new(stream);
    let peer = Peer { address, hangup };
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = handler(request, peer.clone());
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header_timeout)
        .max_buf_size(4 * HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service);
    let told_to_stop = async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    tokio::pin!(connection);
    let ended = tokio::select! {
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

fn log_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a connection failed");
    }
}

/// Errors of one connection pass by themselves; any other would come again at once.
async fn pause(error: &io::Error) {
    let passing = [io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionReset, io::ErrorKind::ConnectionRefused];
    if !passing.contains(&error.kind()) {
        tracing::warn!(%error, "cannot accept connections");
        sleep(ACCEPT_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Code, Problem};

    #[test]
    fn the_canned_answer_is_a_problem_of_the_length_it_says() {
        let (head, body) = FULL.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert_eq!((problem.code, &*problem.title), (Code::Overloaded, Code::Overloaded.title()));
    }
}
