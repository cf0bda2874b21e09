//! The listener: accepts, bounds, serves, and stops without cutting anybody off.

use super::accept::{self, pause, until_stopped};
use super::guard::{Deadlines, Guarded, Phase};
use super::reject::{self, REJECTIONS_MAX};
use super::reply::{Body, BoxError};
use super::socket::{Hangup, Socket};
use crate::limits::HEADER_BYTES_MAX;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// What a listener bears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Connections at once.
    pub connections_max: usize,
    /// How long a client may take.
    pub deadlines: Deadlines,
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
    let rejections = Arc::new(Semaphore::new(REJECTIONS_MAX));
    let full: Arc<[u8]> = reject::response("as many connections are open as may be", None).into();
    let stopping = watch::Sender::new(false);
    let mut tasks = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = tasks.join_next() => accept::ended(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        let connection = connection(stream, address, bounds, handler.clone(), stopping.subscribe());
                        tasks.spawn(async move {
                            connection.await;
                            drop(place);
                        });
                    }
                    Err(_full) => {
                        let Ok(place) = Arc::clone(&rejections).try_acquire_owned() else { continue };
                        let full = Arc::clone(&full);
                        tasks.spawn(async move {
                            reject::reject(stream, &full).await;
                            drop(place);
                        });
                    }
                },
                Err(error) => pause(&error).await,
            },
        }
    }
    drop(listener);
    accept::drain(tasks, &stopping, bounds.grace).await;
}

async fn connection<H, F>(
    stream: TcpStream,
    address: SocketAddr,
    bounds: Bounds,
    handler: H,
    stopping: watch::Receiver<bool>,
) where
    H: Fn(Request<Incoming>, Peer) -> F,
    F: Future<Output = Response<Body>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection broke before it began");
        return;
    }
    let (socket, hangup) = Socket::new(stream);
    let guarded = Guarded::new(socket, bounds.deadlines);
    let phase = guarded.phase();
    let peer = Peer { address, hangup };
    let service = service_fn(move |request: Request<Incoming>| {
        let at_work = AtWork::new(phase.clone());
        let answer = handler(request, peer.clone());
        async move { Ok::<_, Infallible>(answer.await.map(|body| Whole { body, _at_work: at_work })) }
    });
    let connection = http1::Builder::new()
        // The guard has deadlines for headers; hyper's own would also end connections that rest.
        .header_read_timeout(None)
        .max_buf_size(4 * HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(guarded), service);
    until_stopped(connection, stopping).await;
}

/// A request that is being answered, to the last byte of its answer: bodies that go through take as long as they take.
struct AtWork(Phase);

impl AtWork {
    fn new(phase: Phase) -> Self {
        phase.busy();
        Self(phase)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.idle();
    }
}

/// The body of an answer. Dropped, the request is done.
struct Whole {
    body: Body,
    _at_work: AtWork,
}

impl hyper::body::Body for Whole {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Code, Problem};
    use crate::edge;
    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    /// A listener that answers with much or little, and what stops it.
    async fn listening(connections_max: usize, deadlines: Deadlines) -> (SocketAddr, oneshot::Sender<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let bounds = Bounds { connections_max, deadlines, grace: LONG };
        let handler = |request: Request<Incoming>, _: Peer| {
            let bytes = if request.uri().path() == "/much" { 64 << 20 } else { 2 };
            std::future::ready(edge::text(StatusCode::OK, vec![b'x'; bytes]))
        };
        tokio::spawn(serve(listener, bounds, handler, async move {
            let _ = stopped.await;
        }));
        (address, stop)
    }

    /// One connection too many is told so, however much of a request it has sent: nothing of the answer is lost.
    #[tokio::test]
    async fn one_too_many_is_told_so() {
        let deadlines = Deadlines { header: LONG, idle: LONG, write: LONG };
        let (address, _stop) = listening(1, deadlines).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut status = [0; 12];
        first.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        let mut second = TcpStream::connect(address).await.unwrap();
        let body = vec![b'x'; 32 * 1_024];
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        second.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
        let mut text = String::new();
        second.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole answer");
        assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 1"), "{head}");
        assert_eq!(serde_json::from_str::<Problem>(body).unwrap().code, Code::Overloaded);
    }

    /// "Past a bound there is a problem document, never silence", and nobody holds a connection by not reading.
    #[tokio::test]
    async fn whoever_does_not_read_or_does_not_write_is_not_waited_for() {
        let (address, _stop) = listening(8, Deadlines { header: SHORT, idle: LONG, write: SHORT }).await;
        let mut dripping = TcpStream::connect(address).await.unwrap();
        dripping.write_all(b"GET / HT").await.unwrap();
        let mut text = String::new();
        dripping.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 400"), "{text}");

        let mut deaf = TcpStream::connect(address).await.unwrap();
        deaf.write_all(b"GET /much HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        // Longer than it takes to notice: what was not taken by then never comes.
        tokio::time::sleep(20 * SHORT).await;
        let mut all = Vec::new();
        let _ = deaf.read_to_end(&mut all).await;
        assert!(all.len() < 64 << 20, "{} bytes", all.len());
    }
}
