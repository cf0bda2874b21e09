//! A connection to one peer, made when it is needed and made anew when it broke.
//!
//! Many calls share it at once. Whoever fails to get an answer learns how certain that is: a call that was never sent took no
//! effect, one whose answer is missing may have taken one.

use super::codec;
use super::frame::{self, Frame, Kind};
use super::identity::{Greeting, Identity};
use super::transport::{Connection, Transport};
use crate::clock::Deadline;
use crate::limits::FRAME_BYTES_MAX;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::io::BufReader;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// A greeting is short.
pub(super) const HELLO_BYTES_MAX: usize = 16 * 1024;

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// It was never sent: it certainly took no effect.
    #[error("cannot reach the peer: {0}")]
    NotSent(String),
    /// It was sent, and the connection broke or time ran out: it may have taken effect.
    #[error("no answer from the peer: {0}")]
    Lost(String),
    /// The peer answered that it cannot serve it.
    #[error("the peer failed: {0}")]
    Failed(String),
}

type Answer = Result<Bytes, CallError>;

/// The way to one peer for one purpose.
pub(super) struct Link {
    target: u64,
    address: String,
    transport: Arc<dyn Transport>,
    identity: Arc<Identity>,
    /// Held while connecting, so that callers wait for one attempt instead of making many.
    live: tokio::sync::Mutex<Option<Arc<Live>>>,
    streams: AtomicU64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Live {
    outgoing: mpsc::Sender<Frame>,
    /// Stopped when the connection is given up: it may be stuck with a peer that takes nothing.
    writer: AbortHandle,
    waiting: Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>,
    numbers: AtomicU64,
    broken: AtomicBool,
}

impl Link {
    pub(super) fn new(target: u64, address: String, transport: Arc<dyn Transport>, identity: Arc<Identity>) -> Self {
        Self { target, address, transport, identity, live: tokio::sync::Mutex::default(), streams: AtomicU64::new(0) }
    }

    /// A number that no other stream on this link has.
    pub(super) fn next_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request and waits for its answer, `within` all in all.
    pub(super) async fn call(&self, kind: Kind, body: Bytes, within: Duration) -> Answer {
        let deadline = Deadline::after(within);
        let sent = async {
            let live = self.connected().await.map_err(|error| CallError::NotSent(error.to_string()))?;
            live.send(kind, body).await
        };
        // What was not even taken over by the connection's queue was not sent.
        let pending = timeout(within, sent)
            .await
            .unwrap_or_else(|_| Err(CallError::NotSent(format!("not sent within {within:?}"))))?;
        pending.answer(deadline.remaining()).await
    }

    /// The connection, made now if there is none.
    pub(super) async fn connected(&self) -> io::Result<Arc<Live>> {
        let mut live = self.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.broken.load(Ordering::Acquire)) {
            return Ok(Arc::clone(live));
        }
        *live = None;
        let fresh = self.connect().await?;
        *live = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    async fn connect(&self) -> io::Result<Arc<Live>> {
        let Connection { input, mut output } = self.transport.connect(&self.address).await?;
        let mut input = BufReader::with_capacity(64 * 1024, input);
        let hello = codec::encode(&self.identity.hello(self.target));
        frame::write_now(&mut output, &Frame::new(Kind::Hello, 0, hello.into())).await?;
        let answer = frame::read(&mut input, HELLO_BYTES_MAX).await?;
        let answer = answer.ok_or_else(|| io::Error::other("the peer closed the connection without a greeting"))?;
        let greeting: Greeting = codec::decode(&answer.body)?;
        self.identity.accept(self.target, &greeting).map_err(|why| {
            tracing::warn!(peer = self.target, address = %self.address, "{why}");
            io::Error::other(why)
        })?;
        let (outgoing, writer) = frame::spawn_writer(output);
        let live = Arc::new(Live {
            outgoing,
            writer,
            waiting: Mutex::default(),
            numbers: AtomicU64::new(1),
            broken: AtomicBool::new(false),
        });
        let reading = Arc::downgrade(&live);
        tokio::spawn(async move {
            let reason = loop {
                match frame::read(&mut input, FRAME_BYTES_MAX).await {
                    Ok(Some(frame)) => match reading.upgrade() {
                        Some(live) => live.answered(frame),
                        None => return,
                    },
                    Ok(None) => break "the peer closed the connection".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            if let Some(live) = reading.upgrade() {
                live.break_off(&reason);
            }
        });
        Ok(live)
    }
}

impl Live {
    /// Sends a request; its answer is to be waited for.
    pub(super) async fn send(self: &Arc<Self>, kind: Kind, body: Bytes) -> Result<Pending, CallError> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(number, sender);
        let pending = Pending { live: Arc::clone(self), number, receiver };
        if self.broken.load(Ordering::Acquire) || self.outgoing.send(Frame::new(kind, number, body)).await.is_err() {
            return Err(CallError::NotSent("the connection has just broken".to_owned()));
        }
        Ok(pending)
    }

    /// Gives up on this connection: the next call makes another.
    pub(super) fn break_off(&self, reason: &str) {
        self.broken.store(true, Ordering::Release);
        self.writer.abort();
        for (_, waiter) in std::mem::take(&mut *self.lock()) {
            let _ = waiter.send(Err(CallError::Lost(reason.to_owned())));
        }
    }

    fn answered(&self, frame: Frame) {
        let Some(waiter) = self.lock().remove(&frame.number) else { return };
        let answer = match frame.kind {
            Kind::Answer => Ok(frame.body),
            Kind::Failure => Err(CallError::Failed(String::from_utf8_lossy(&frame.body).into_owned())),
            kind => Err(CallError::Lost(format!("the peer answered with {kind:?}"))),
        };
        // A caller that stopped waiting does not want it.
        let _ = waiter.send(answer);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
#[derive(Debug)]
pub(super) struct Pending {
    live: Arc<Live>,
    number: u64,
    receiver: oneshot::Receiver<Answer>,
}

impl Pending {
    pub(super) async fn answer(mut self, within: Duration) -> Answer {
        match timeout(within, &mut self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::Lost("the connection is gone".to_owned())),
            Err(_) => Err(CallError::Lost(format!("no answer within {within:?}"))),
        }
    }

    /// The connection it was sent on.
    pub(super) const fn live(&self) -> &Arc<Live> {
        &self.live
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.live.lock().remove(&self.number);
    }
}
