//! TCP between peers, and between workers and nodes, with everything that can happen to it on the way.
//!
//! All traffic to a node goes through one proxy for its peers and one for its clients. Who calls is read off the first frame
//! between peers; workers are one caller, [`WORKERS`]. A road leads from one place to another, whoever lives there, and faults
//! change roads, not connections: those that are open feel it as well as those that come.
//!
//! Bytes are never lost out of the middle of a stream. What a cut swallowed ends its connection when the cut ends, or
//! arrives late, as the fault says.

use super::rng::Rng;
use super::ticks::{now_ns, sleep_until_ns};
use crate::raft::caller_of;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// The caller that stands for all workers.
pub(super) const WORKERS: u64 = 0;
/// Chunks on their way in one direction of one connection.
const CHUNKS_MAX: usize = 64;
const CHUNK_BYTES: usize = 16 * 1024;
/// A caller that does not say who it is.
const GREETING_DEADLINE: Duration = Duration::from_secs(10);

/// What a road does to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "faults come and go independently of each other")]
pub(super) struct Weather {
    /// Nothing gets from the caller to the node.
    pub(super) cut_there: bool,
    /// Nothing gets back.
    pub(super) cut_back: bool,
    /// What was held up arrives when the cut ends; otherwise its connection ends then.
    pub(super) late: bool,
    /// Every chunk takes this long, give or take the jitter.
    pub(super) delay_ms: u64,
    pub(super) jitter_ms: u64,
    /// Answers vanish, and the connection with them.
    pub(super) answers_lost: bool,
    /// When one side is gone the other is not told.
    pub(super) half_open: bool,
}

/// All roads of a run.
#[derive(Debug, Clone)]
pub(super) struct Roads {
    roads: Arc<Mutex<HashMap<Ends, watch::Sender<Weather>>>>,
    places: u64,
}

/// The places that a road leads from and to.
type Ends = (u64, u64);

impl Roads {
    /// Between so many places, and from the workers to each.
    pub(super) fn new(places: u64) -> Self {
        Self { roads: Arc::default(), places }
    }

    /// Where a node lives: ids of one place are as many apart as there are places.
    const fn place_of(&self, id: u64) -> u64 {
        if id == 0 { WORKERS } else { (id - 1) % self.places + 1 }
    }

    /// Changes the weather between two places.
    pub(super) fn change(&self, from: u64, to: u64, change: impl FnOnce(&mut Weather)) {
        self.with(from, to, |road| road.send_modify(change));
    }

    fn watch(&self, from: u64, to: u64) -> watch::Receiver<Weather> {
        self.with(from, to, watch::Sender::subscribe)
    }

    fn with<T>(&self, from: u64, to: u64, act: impl FnOnce(&watch::Sender<Weather>) -> T) -> T {
        let mut roads = self.roads.lock().unwrap_or_else(PoisonError::into_inner);
        act(roads.entry((from, to)).or_insert_with(|| watch::Sender::new(Weather::default())))
    }
}

/// Which side a proxy serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Peers,
    Clients,
}

/// Starts a proxy in front of the place `node`, where somebody listens on `upstream`; its own address.
pub(super) async fn start(
    side: Side,
    node: u64,
    upstream: SocketAddr,
    roads: Roads,
    seed: u64,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        for number in 0_u64.. {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (roads, rng) = (roads.clone(), Rng::new(seed, &format!("proxy {side:?} {node} {number}")));
            tokio::spawn(async move {
                // However it ends, both connections end with it.
                let _ = carry(stream, side, node, upstream, &roads, rng).await;
            });
        }
    });
    Ok(address)
}

async fn carry(
    mut caller: TcpStream,
    side: Side,
    node: u64,
    upstream: SocketAddr,
    roads: &Roads,
    mut rng: Rng,
) -> io::Result<()> {
    caller.set_nodelay(true)?;
    let mut greeting = Vec::new();
    let from = match side {
        Side::Clients => WORKERS,
        Side::Peers => {
            let id = tokio::time::timeout(GREETING_DEADLINE, listen_in(&mut caller, &mut greeting)).await??;
            roads.place_of(id)
        }
    };
    let mut weather = roads.watch(from, node);
    // A connection that is made during a cut is half open until the cut ends.
    wait_while(&mut weather, |weather| weather.cut_there || weather.cut_back).await;
    let server = TcpStream::connect(upstream).await?;
    server.set_nodelay(true)?;
    let (caller_in, caller_out) = caller.into_split();
    let (node_in, mut node_out) = server.into_split();
    node_out.write_all(&greeting).await?;
    let there = Lane { back: false, weather: weather.clone(), rng: Rng::new(rng.next(), "there") };
    let back = Lane { back: true, weather: weather.clone(), rng: Rng::new(rng.next(), "back") };
    tokio::select! {
        done = there.run(caller_in, node_out) => done,
        done = back.run(node_in, caller_out) => done,
    }
}

/// Reads until it is clear who calls.
async fn listen_in(caller: &mut TcpStream, greeting: &mut Vec<u8>) -> io::Result<u64> {
    loop {
        if caller.read_buf(greeting).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some((from, _)) = caller_of(greeting) {
            return Ok(from);
        }
        if greeting.len() > CHUNK_BYTES {
            return Err(io::Error::other("no greeting"));
        }
    }
}

async fn wait_while(weather: &mut watch::Receiver<Weather>, bad: impl Fn(&Weather) -> bool) {
    // The sender lives as long as the run.
    let _ = weather.wait_for(|weather| !bad(weather)).await;
}

/// One direction of one connection.
struct Lane {
    back: bool,
    weather: watch::Receiver<Weather>,
    rng: Rng,
}

impl Lane {
    async fn run(mut self, input: OwnedReadHalf, output: OwnedWriteHalf) -> io::Result<()> {
        let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
        let writer = Self::write(self.back, self.weather.clone(), receiver, output);
        let reader = async {
            let ended = self.read(input, &sender).await;
            // Everything that was read is still delivered before the connection ends.
            drop(sender);
            ended
        };
        let (read, written) = tokio::join!(reader, writer);
        read.and(written)
    }

    async fn read(&mut self, mut input: OwnedReadHalf, chunks: &mpsc::Sender<(u64, Vec<u8>)>) -> io::Result<()> {
        let mut due_ns = 0;
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let read = input.read_buf(&mut chunk).await.unwrap_or(0);
            let weather = *self.weather.borrow_and_update();
            if read == 0 {
                wait_while(&mut self.weather, |weather| weather.half_open).await;
                return Ok(());
            }
            if self.back && weather.answers_lost {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let low = weather.delay_ms.saturating_sub(weather.jitter_ms);
            let delay_ms = self.rng.between(low, weather.delay_ms + weather.jitter_ms);
            // Nothing overtakes within a connection.
            due_ns = due_ns.max(now_ns() + delay_ms * 1_000_000);
            if chunks.send((due_ns, chunk)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn write(
        back: bool,
        mut weather: watch::Receiver<Weather>,
        mut chunks: mpsc::Receiver<(u64, Vec<u8>)>,
        mut output: OwnedWriteHalf,
    ) -> io::Result<()> {
        let cut = |weather: &Weather| if back { weather.cut_back } else { weather.cut_there };
        while let Some((due_ns, chunk)) = chunks.recv().await {
            sleep_until_ns(due_ns).await;
            let now = *weather.borrow_and_update();
            if cut(&now) {
                wait_while(&mut weather, cut).await;
                if !now.late {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
            }
            output.write_all(&chunk).await?;
        }
        output.shutdown().await
    }
}
