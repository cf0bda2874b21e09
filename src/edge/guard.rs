//! One connection's socket with the deadlines that the HTTP library does not have.
//!
//! hyper's own header timeout also runs while a kept-alive connection rests between two requests, so it would have to
//! be either too long against slow senders or too short for workers that come back every few seconds. And it knows no
//! timeout for writing. Both are kept here, where the bytes pass: hyper reads whenever it waits for a head, so a
//! deadline polled beside a read that has nothing yet is seen in time, and costs nothing while bytes flow.

use crate::clock::Stopwatch;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a connection is doing, shared by the socket and the service on top of it. Both run in the same task, one after
/// the other, so no ordering is needed.
///
/// It counts the changes: whoever looks now and then sees that there was one, though what it is now is what it was.
#[derive(Debug, Clone, Default)]
pub struct Phase(Arc<AtomicU64>);

/// What is counted, in the bits above these.
const CHANGE: u64 = 4;
/// The first bytes of a request are awaited or underway.
const HEAD: u64 = 0;
/// A request is being worked on, its body included; that has deadlines of its own.
const BUSY: u64 = 1;
/// Between two requests.
const IDLE: u64 = 2;

impl Phase {
    /// A request has arrived.
    pub fn busy(&self) {
        self.change(BUSY);
    }

    /// Its answer is ready.
    pub fn idle(&self) {
        self.change(IDLE);
    }

    /// The beginning of a request is there.
    pub fn head(&self) {
        self.change(HEAD);
    }

    fn change(&self, to: u64) {
        let changes = self.0.load(Ordering::Relaxed) / CHANGE;
        self.0.store(changes.wrapping_add(1).wrapping_mul(CHANGE) | to, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long a peer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For all headers of a request, from the first byte or from connecting.
    pub header: Duration,
    /// For a rest between two requests.
    pub idle: Duration,
    /// For taking in a part of the answer.
    pub write: Duration,
}

/// A socket that fails with [`io::ErrorKind::TimedOut`] when its peer takes too long.
#[derive(Debug)]
pub struct Guarded<S> {
    socket: S,
    phase: Phase,
    /// The phase of the last read, and how many there had been; another one since then restarts `since`.
    seen: u64,
    since: Stopwatch,
    /// Whether any byte of the awaited head has arrived: a connection that never said anything is told nothing.
    begun: bool,
    read_alarm: Alarm,
    deadlines: Deadlines,
    /// Runs while a write waits for room.
    write_alarm: Alarm,
    write_since: Option<Stopwatch>,
}

impl<S> Guarded<S> {
    /// Guards a fresh connection: its first head is awaited at once.
    pub fn new(socket: S, deadlines: Deadlines) -> Self {
        Self {
            socket,
            phase: Phase::default(),
            seen: HEAD,
            since: Stopwatch::start(),
            begun: false,
            read_alarm: Alarm::default(),
            deadlines,
            write_alarm: Alarm::default(),
            write_since: None,
        }
    }

    /// For the service to say when it works.
    pub fn phase(&self) -> Phase {
        self.phase.clone()
    }

    /// Notes the phase, restarting the watch when it has changed.
    fn observe(&mut self) -> u64 {
        let now = self.phase.get();
        let phase = now % CHANGE;
        if now != self.seen {
            self.begun &= phase == HEAD;
            self.seen = now;
            self.since = Stopwatch::start();
        }
        phase
    }

    fn late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let (allowed, what) = match self.seen % CHANGE {
            HEAD => (self.deadlines.header, "the headers did not arrive in time"),
            IDLE => (self.deadlines.idle, "the connection was idle for too long"),
            _ => return Poll::Pending,
        };
        self.read_alarm.poll(cx, self.since, allowed).map(|()| io::Error::new(io::ErrorKind::TimedOut, what))
    }

    /// Bounds a write: one that made no progress for as long as it may fails.
    fn bound_write<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.write_since = None;
            return written;
        }
        let since = *self.write_since.get_or_insert_with(Stopwatch::start);
        self.write_alarm
            .poll(cx, since, self.deadlines.write)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the answer was not taken in time")))
    }
}

/// What a client that began a request and did not finish its head is told, before the connection ends.
const TOO_SLOW: &str = concat!(
    "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\n",
    "content-length: 172\r\n\r\n",
    r#"{"type":"urn:quorate:error:bad_request","title":"The request cannot be read","status":400,"#,
    r#""detail":"the headers of the request did not arrive in time","code":"bad_request"}"#,
);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let phase = self.observe();
        let filled = buf.filled().len();
        match Pin::new(&mut self.socket).poll_read(cx, buf) {
            Poll::Ready(result) => {
                if buf.filled().len() > filled {
                    self.begun = phase != BUSY;
                    if phase == IDLE {
                        self.phase.head();
                    }
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                let late = std::task::ready!(self.late(cx));
                if phase == HEAD && self.begun {
                    // Nothing else is being written while a head is awaited. What the socket does not take at once is
                    // not worth waiting for.
                    let _ = Pin::new(&mut self.socket).poll_write(cx, TOO_SLOW.as_bytes());
                }
                Poll::Ready(Err(late))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.bound_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, slices);
        self.bound_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.bound_write(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.bound_write(cx, shut)
    }
}

/// A timer that is armed late and moved rarely. Deadlines move with every request, but nearly always away from now:
/// so it stays where it was armed and, when it goes off early, is armed again for the rest.
#[derive(Debug, Default)]
struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    /// What it was armed for. A shorter time needs a timer of its own.
    allowed: Duration,
}

impl Alarm {
    fn poll(&mut self, cx: &mut Context<'_>, since: Stopwatch, allowed: Duration) -> Poll<()> {
        loop {
            let left = allowed.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.sleep = None;
                return Poll::Ready(());
            }
            if self.sleep.is_none() || allowed < self.allowed {
                self.sleep = Some(Box::pin(tokio::time::sleep(left)));
                self.allowed = allowed;
            }
            match self.sleep.as_mut().map(|sleep| sleep.as_mut().poll(cx)) {
                Some(Poll::Pending) => return Poll::Pending,
                _ => self.sleep = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canned_answer_is_a_problem_of_the_length_it_says() {
        let (head, body) = TOO_SLOW.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head} {}", body.len());
        let problem: crate::api::Problem = serde_json::from_str(body).unwrap();
        assert_eq!(problem.code, crate::api::Code::BadRequest);
        assert_eq!(problem.title, crate::api::Code::BadRequest.title());
    }
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_millis(200);
    const FOREVER: Duration = Duration::from_secs(3_600);

    fn guarded(header: Duration, idle: Duration) -> (DuplexStream, Guarded<DuplexStream>) {
        let (client, server) = duplex(4);
        (client, Guarded::new(server, Deadlines { header, idle, write: SHORT }))
    }

    /// Waits until reading fails because of a deadline; says how long that took.
    async fn times_out(guarded: &mut Guarded<DuplexStream>) -> Duration {
        let watch = Stopwatch::start();
        assert_eq!(guarded.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        watch.elapsed()
    }

    #[tokio::test]
    async fn a_silent_connection_and_a_dripping_head_both_end() {
        let (_client, mut silent) = guarded(SHORT, FOREVER);
        times_out(&mut silent).await;
        let (mut client, mut dripping) = guarded(SHORT, FOREVER);
        client.write_all(b"GE").await.unwrap();
        assert_eq!(dripping.read_u8().await.unwrap(), b'G');
        assert_eq!(dripping.read_u8().await.unwrap(), b'E');
        times_out(&mut dripping).await;
    }

    #[tokio::test]
    async fn a_rest_between_requests_may_be_longer_than_a_head() {
        let (_client, mut resting) = guarded(SHORT, LONG);
        resting.phase().idle();
        assert!(times_out(&mut resting).await >= LONG);
    }

    #[tokio::test]
    async fn the_first_byte_after_a_rest_starts_the_time_for_the_head() {
        let (mut client, mut guarded) = guarded(SHORT, FOREVER);
        guarded.phase().idle();
        let dripping = async {
            tokio::time::sleep(2 * SHORT).await;
            client.write_all(b"G").await.unwrap();
        };
        let (first, ()) = tokio::join!(guarded.read_u8(), dripping);
        assert_eq!(first.unwrap(), b'G');
        assert!(times_out(&mut guarded).await < FOREVER);
    }

    /// Nobody reads while a request is worked on.
    #[tokio::test(start_paused = true)]
    async fn every_rest_counts_from_its_own_beginning() {
        let (mut client, mut guarded) = guarded(FOREVER, LONG);
        let phase = guarded.phase();
        for _ in 0..5 {
            let asks = async {
                tokio::time::sleep(LONG * 3 / 4).await;
                client.write_all(b"G").await.unwrap();
            };
            let (asked, ()) = tokio::join!(guarded.read_u8(), asks);
            assert_eq!(asked.unwrap(), b'G');
            phase.busy();
            phase.idle();
        }
        assert!((LONG..2 * LONG).contains(&times_out(&mut guarded).await));
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_began_behind_a_request_has_the_time_of_a_head() {
        let (mut client, mut guarded) = guarded(SHORT, FOREVER);
        client.write_all(b"GG").await.unwrap();
        guarded.read_u16().await.unwrap();
        let phase = guarded.phase();
        phase.busy();
        tokio::time::advance(LONG).await;
        phase.idle();
        phase.head();
        assert!((SHORT..2 * SHORT).contains(&times_out(&mut guarded).await));
        assert_eq!(client.read_u8().await.unwrap(), b'H', "it is told why");
    }

    #[tokio::test]
    async fn work_has_no_deadline_here() {
        let (mut client, mut working) = guarded(SHORT, SHORT);
        let (_other_client, mut silent) = guarded(LONG, LONG);
        working.phase().busy();
        tokio::select! {
            early = working.read_u8() => panic!("{early:?}"),
            _ = times_out(&mut silent) => {}
        }
        client.write_all(b"x").await.unwrap();
        assert_eq!(working.read_u8().await.unwrap(), b'x');
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_ends_the_connection() {
        let (_client, mut guarded) = guarded(FOREVER, FOREVER);
        let late = guarded.write_all(b"more than fits").await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
    }
}
