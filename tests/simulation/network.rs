//! The network as nodes and workers see it: turmoil's, behind gates that faults close and open.
//!
//! The streams are TCP, so a message is never lost from the middle of one: what a closed gate stops is delivered when it
//! opens, or the connection is cut. Each direction between two hosts has a gate of its own.

use futures::future::BoxFuture;
use quorate::raft::{Connection, Transport};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use turmoil::net::{TcpListener, TcpStream};

/// Where peers connect, and where workers do.
pub(crate) const PEER_PORT: u16 = 7100;
pub(crate) const DOOR_PORT: u16 = 7000;

/// The host of all workers; nodes are hosts 1 to 3.
pub(crate) const WORKERS: u64 = 0;

pub(crate) fn host_name(host: u64) -> String {
    format!("n{host}")
}

/// All gates. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Gates(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// How many faults close the gate from one host to another.
    closed: BTreeMap<(u64, u64), u32>,
    /// How often all connections between two hosts were cut.
    cuts: BTreeMap<(u64, u64), u64>,
    waiting: Vec<Weak<Mutex<Slot>>>,
}

/// Who waits at one end of a connection.
#[derive(Default)]
struct Slot {
    reader: Option<Waker>,
    writer: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn pair(one: u64, other: u64) -> (u64, u64) {
    if one < other { (one, other) } else { (other, one) }
}

impl Gates {
    pub(crate) fn close(&self, from: u64, to: u64) {
        *lock(&self.0).closed.entry((from, to)).or_default() += 1;
    }

    pub(crate) fn open(&self, from: u64, to: u64) {
        if let Some(count) = lock(&self.0).closed.get_mut(&(from, to)) {
            *count = count.saturating_sub(1);
        }
        self.wake();
    }

    /// Opens all.
    pub(crate) fn open_all(&self) {
        lock(&self.0).closed.clear();
        self.wake();
    }

    /// Breaks every connection between two hosts.
    pub(crate) fn cut(&self, one: u64, other: u64) {
        *lock(&self.0).cuts.entry(pair(one, other)).or_default() += 1;
        self.wake();
    }

    fn wake(&self) {
        let slots: Vec<_> = {
            let mut state = lock(&self.0);
            state.waiting.retain(|slot| slot.strong_count() > 0);
            state.waiting.iter().filter_map(Weak::upgrade).collect()
        };
        for slot in slots {
            let (reader, writer) = {
                let mut slot = lock(&slot);
                (slot.reader.take(), slot.writer.take())
            };
            for waker in [reader, writer].into_iter().flatten() {
                waker.wake();
            }
        }
    }

    fn end(&self, me: u64, other: u64) -> End {
        let slot = Arc::new(Mutex::new(Slot::default()));
        let mut state = lock(&self.0);
        state.waiting.push(Arc::downgrade(&slot));
        let cuts = state.cuts.get(&pair(me, other)).copied().unwrap_or(0);
        drop(state);
        End { gates: self.clone(), me, other, cuts, slot }
    }

    fn is_closed(&self, from: u64, to: u64) -> bool {
        lock(&self.0).closed.get(&(from, to)).is_some_and(|count| *count > 0)
    }

    /// Connects from one host to another, as soon as both directions are open.
    pub(crate) async fn connect(&self, me: u64, other: u64, port: u16) -> io::Result<Connection> {
        let end = self.end(me, other);
        std::future::poll_fn(|context| {
            if self.is_closed(me, other) || self.is_closed(other, me) {
                lock(&end.slot).writer = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let stream = TcpStream::connect((host_name(other), port)).await?;
        Ok(self.connection(me, other, stream))
    }

    fn connection(&self, me: u64, other: u64, stream: TcpStream) -> Connection {
        let end = self.end(me, other);
        let (input, output) = stream.into_split();
        Connection { input: Box::new(Input { input, end: end.clone() }), output: Box::new(Output { output, end }) }
    }

    /// The next connection to a listener, and who made it.
    pub(crate) async fn accept(&self, me: u64, listener: &TcpListener) -> io::Result<Connection> {
        let (stream, from) = listener.accept().await?;
        let name = turmoil::reverse_lookup(from.ip()).unwrap_or_default();
        let other = name.trim_start_matches('n').parse().unwrap_or(WORKERS);
        Ok(self.connection(me, other, stream))
    }
}

/// One end of a connection.
#[derive(Clone)]
struct End {
    gates: Gates,
    me: u64,
    other: u64,
    /// How many cuts there had been when it was made.
    cuts: u64,
    slot: Arc<Mutex<Slot>>,
}

impl End {
    fn is_cut(&self) -> bool {
        lock(&self.gates.0).cuts.get(&pair(self.me, self.other)).copied().unwrap_or(0) != self.cuts
    }
}

struct Input {
    input: OwnedReadHalf,
    end: End,
}

impl AsyncRead for Input {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.end.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        lock(&self.end.slot).reader = Some(context.waker().clone());
        Pin::new(&mut self.input).poll_read(context, out)
    }
}

struct Output {
    output: OwnedWriteHalf,
    end: End,
}

impl AsyncWrite for Output {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.end.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        lock(&self.end.slot).writer = Some(context.waker().clone());
        if self.end.gates.is_closed(self.end.me, self.end.other) {
            return Poll::Pending;
        }
        Pin::new(&mut self.output).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(context)
    }
}

/// A node's way to its peers.
pub(crate) struct Peers {
    pub(crate) me: u64,
    pub(crate) gates: Gates,
    pub(crate) listener: TcpListener,
}

impl Transport for Peers {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(async move {
            let other = address.trim_start_matches('n').split(':').next().and_then(|host| host.parse().ok());
            let other = other.ok_or_else(|| io::Error::other("a peer's address names its host"))?;
            self.gates.connect(self.me, other, PEER_PORT).await
        })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move { self.gates.accept(self.me, &self.listener).await })
    }
}
