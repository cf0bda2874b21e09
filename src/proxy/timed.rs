//! A body that may take its time but not stand still, and whoever waits for it knows whose turn it is.

use crate::clock::Stopwatch;
use crate::edge::{BoxError, Frame, HttpBody, SizeHint};
use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// A body whose sender may be silent for so long at most; then it breaks off.
#[derive(Debug)]
pub(super) struct Timed<B> {
    body: B,
    idle: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
    progress: Progress,
}

/// How far a body is.
#[derive(Debug, Clone)]
pub(super) struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Since a part of it was last taken.
    moved: Mutex<Stopwatch>,
    /// Its sender is waited for.
    awaited: AtomicBool,
    /// Its sender was silent for too long.
    given_up: AtomicBool,
}

impl Progress {
    /// How long nothing was taken that was there: whoever takes it has not done anything meanwhile. Nothing while the sender is
    /// waited for.
    pub(super) fn still(&self) -> Duration {
        if self.0.awaited.load(Ordering::Acquire) { Duration::ZERO } else { self.moved().elapsed() }
    }

    /// Whether it broke off because its sender was silent.
    pub(super) fn given_up(&self) -> bool {
        self.0.given_up.load(Ordering::Acquire)
    }

    fn moved(&self) -> std::sync::MutexGuard<'_, Stopwatch> {
        self.0.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B> Timed<B> {
    pub(super) fn new(body: B, idle: Duration) -> Self {
        let inner = Inner {
            moved: Mutex::new(Stopwatch::start()),
            awaited: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        };
        Self { body, idle, alarm: None, progress: Progress(Arc::new(inner)) }
    }

    /// For whoever waits for what comes of it.
    pub(super) fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Timed<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.alarm = None;
            *this.progress.moved() = Stopwatch::start();
            this.progress.0.awaited.store(false, Ordering::Release);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.progress.0.awaited.store(true, Ordering::Release);
        let idle = this.idle;
        let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep(idle)));
        std::task::ready!(alarm.as_mut().poll(cx));
        this.progress.0.given_up.store(true, Ordering::Release);
        Poll::Ready(Some(Err(format!("nothing came for {idle:?}").into())))
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
    use futures::stream;
    use http_body_util::{BodyExt, StreamBody};
    use std::convert::Infallible;

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_long_but_not_silent() {
        const IDLE: Duration = Duration::from_secs(10);
        let pieces = stream::unfold(0, |number| async move {
            sleep(Duration::from_secs(if number < 5 { 9 } else { 11 })).await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))), number + 1))
        });
        let mut body = Timed::new(StreamBody::new(Box::pin(pieces)), IDLE);
        let progress = body.progress();
        for _ in 0..5 {
            body.frame().await.unwrap().unwrap();
            assert!(progress.still() < IDLE && !progress.given_up());
        }
        sleep(2 * IDLE).await;
        assert!(progress.still() >= 2 * IDLE, "nobody takes it, and that is not the sender's doing");
        assert!(body.frame().await.unwrap().is_err());
        assert!(progress.given_up());
    }
}
