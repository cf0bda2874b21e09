//! The side of a peer connection that was dialled: checks who calls and serves what it asks.

use super::codec::{self, WireAppend, WireAppended, WireSnapshotHead, WireSnapshotResponse};
use super::codec::{WireTransfer, WireVote, WireVoteRequest, WireVoteResponse};
use super::frame::{self, Frame, Kind};
use super::identity::{Greeting, Hello, Identity};
use super::link::HELLO_BYTES_MAX;
use super::room::Room;
use super::snapshot_file::SnapshotFile;
use super::state_store::StateStore;
use super::transport::{Connection, Transport};
use super::types::TypeConfig;
use super::work::blocking;
use crate::limits::{FRAME_BYTES_MAX, PEER_CONNECTIONS_MAX, SNAPSHOT_BYTES_MAX, WAITERS_MAX};
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use openraft::Raft;
use openraft::alias::SnapshotMetaOf;
use openraft::alias::SnapshotOf;
use openraft::raft::AppendEntriesRequest;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::BufReader;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Time for a caller to say who it is.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// Requests of one connection that are served at once; those that wait in line are among them.
const CONCURRENT_MAX: usize = WAITERS_MAX + 4_096;

/// Serves what peers forward: bytes in, bytes out. What they mean is the node's business.
pub trait Forwarded: Send + Sync + 'static {
    /// Answers one forwarded request.
    fn serve(&self, request: Bytes) -> BoxFuture<'static, Bytes>;
}

/// Everything a connection needs.
pub(super) struct Server {
    pub(super) identity: Arc<Identity>,
    pub(super) raft: Raft<TypeConfig, StateStore>,
    pub(super) state: StateStore,
    pub(super) room: Room,
    pub(super) forwarded: Arc<dyn Forwarded>,
}

impl Server {
    /// Accepts peers until the task is dropped.
    pub(super) async fn run(self: Arc<Self>, transport: Arc<dyn Transport>) {
        let places = Arc::new(Semaphore::new(PEER_CONNECTIONS_MAX));
        // Ends with this task: a node that has stopped says nothing more.
        let mut sessions = JoinSet::new();
        loop {
            while sessions.try_join_next().is_some() {}
            let connection = match transport.accept().await {
                Ok(connection) => connection,
                Err(error) => {
                    // Out of file descriptors, as a rule: others may free some.
                    tracing::warn!(%error, "cannot accept a peer");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                tracing::warn!("more than {PEER_CONNECTIONS_MAX} peer connections: one refused");
                continue;
            };
            let server = Arc::clone(&self);
            sessions.spawn(async move {
                if let Err(error) = server.serve(connection).await {
                    tracing::debug!(%error, "a peer connection ended");
                }
                drop(place);
            });
        }
    }

    async fn serve(self: Arc<Self>, connection: Connection) -> io::Result<()> {
        let Connection { input, mut output } = connection;
        let mut input = BufReader::with_capacity(64 * 1024, input);
        let first = tokio::time::timeout(HELLO_DEADLINE, frame::read(&mut input, HELLO_BYTES_MAX)).await??;
        let Some(first) = first.filter(|frame| frame.kind == Kind::Hello) else { return Ok(()) };
        let hello: Hello = codec::decode(&first.body)?;
        let greeting = self.identity.answer(&hello);
        let body = codec::encode(&greeting);
        frame::write_now(&mut output, &Frame::new(Kind::Answer, first.number, body.into())).await?;
        if let Greeting::Refused(refused) = greeting {
            tracing::warn!("refused a peer: {}", refused.detail);
            return Ok(());
        }
        let (outgoing, writer) = frame::spawn_writer(output);
        let mut session = Session {
            server: self,
            outgoing,
            pipeline: None,
            incoming: None,
            places: Arc::new(Semaphore::new(CONCURRENT_MAX)),
            tasks: JoinSet::new(),
        };
        let ended = loop {
            match frame::read(&mut input, FRAME_BYTES_MAX).await {
                Ok(Some(frame)) => session.take(frame).await?,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Nobody reads the answers that are still on their way.
        writer.abort();
        ended
    }
}

/// One connection after its greeting.
struct Session {
    server: Arc<Server>,
    outgoing: mpsc::Sender<Frame>,
    pipeline: Option<Pipeline>,
    incoming: Option<Incoming>,
    places: Arc<Semaphore>,
    /// What is being served. It ends with the connection: nobody is left to hear the answer, and whoever waits in line for a
    /// peer that has died must not go on waiting.
    tasks: JoinSet<()>,
}

/// The appends of one stream, in order.
struct Pipeline {
    stream: u64,
    /// Requests and the numbers of their answers.
    requests: mpsc::Sender<AppendEntriesRequest<TypeConfig>>,
    numbers: mpsc::UnboundedSender<u64>,
}

/// A snapshot that arrives.
struct Incoming {
    vote: WireVote,
    expected_bytes: u64,
    received_bytes: u64,
    file: SnapshotFile,
}

impl Session {
    async fn take(&mut self, frame: Frame) -> io::Result<()> {
        match frame.kind {
            Kind::Append => self.append(frame).await,
            Kind::SnapshotHead | Kind::SnapshotChunk | Kind::SnapshotEnd => {
                let number = frame.number;
                let answer = self.snapshot(frame).await;
                respond(&self.outgoing, number, answer).await;
                Ok(())
            }
            Kind::Vote | Kind::PreVote | Kind::Transfer | Kind::Forward => {
                let place = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
                let (server, outgoing) = (Arc::clone(&self.server), self.outgoing.clone());
                while self.tasks.try_join_next().is_some() {}
                self.tasks.spawn(async move {
                    let number = frame.number;
                    respond(&outgoing, number, server.answer(frame).await).await;
                    drop(place);
                });
                Ok(())
            }
            Kind::Hello | Kind::Answer | Kind::Failure => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("{:?} is no request", frame.kind)))
            }
        }
    }

    /// Hands an append to the engine without waiting for the disk: many may be on their way, and answers keep their order.
    async fn append(&mut self, frame: Frame) -> io::Result<()> {
        let append: WireAppend = codec::decode(&frame.body)?;
        if append.has_entries() && self.server.room.is_full() {
            // Heartbeats still get through: the leader stays who it is, and tries again until there is room.
            self.pipeline = None;
            respond(&self.outgoing, frame.number, Err(io::ErrorKind::StorageFull.into())).await;
            return Ok(());
        }
        if self.pipeline.as_ref().is_none_or(|pipeline| pipeline.stream != append.stream) {
            self.pipeline = Some(self.new_pipeline(append.stream));
        }
        let Some(pipeline) = &self.pipeline else { return Ok(()) };
        // A pipeline that ended with a refusal takes nothing more of its stream, and nobody waits for that either.
        if pipeline.numbers.send(frame.number).is_ok() {
            let _ = pipeline.requests.send(append.into_engine()).await;
        }
        Ok(())
    }

    fn new_pipeline(&self, stream: u64) -> Pipeline {
        let (requests, receiver) = mpsc::channel(64);
        let (numbers, mut numbers_in_order) = mpsc::unbounded_channel();
        let input = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let output = self.server.raft.stream_append(input);
        let outgoing = self.outgoing.clone();
        tokio::spawn(async move {
            let mut output = std::pin::pin!(output);
            while let Some(number) = numbers_in_order.recv().await {
                let Some(result) = output.next().await else { return };
                let goes_on = matches!(result, Ok(Ok(_)));
                let answer = result
                    .map(|result| codec::encode(&WireAppended::from(&result)).into())
                    .map_err(|fatal| io::Error::other(fatal.to_string()));
                respond(&outgoing, number, answer).await;
                if !goes_on {
                    return;
                }
            }
        });
        Pipeline { stream, requests, numbers }
    }

    async fn snapshot(&mut self, frame: Frame) -> io::Result<Bytes> {
        let out_of_order = || io::Error::new(io::ErrorKind::InvalidData, "a part of a snapshot without its head");
        match frame.kind {
            Kind::SnapshotHead => {
                let head: WireSnapshotHead = codec::decode(&frame.body)?;
                if head.file_bytes > SNAPSHOT_BYTES_MAX {
                    return Err(io::Error::other(format!("a snapshot of {} bytes is too large", head.file_bytes)));
                }
                if !self.server.room.fits(head.file_bytes) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                self.incoming = Some(Incoming {
                    vote: head.vote,
                    expected_bytes: head.file_bytes,
                    received_bytes: 0,
                    file: self.server.state.incoming_snapshot()?,
                });
                Ok(Bytes::new())
            }
            Kind::SnapshotChunk => {
                let mut incoming = self.incoming.take().ok_or_else(out_of_order)?;
                incoming.received_bytes += frame.body.len() as u64;
                if incoming.received_bytes > incoming.expected_bytes {
                    return Err(io::Error::other("a snapshot is longer than announced"));
                }
                let written = blocking(move || incoming.file.file().write_all(&frame.body).map(|()| incoming));
                self.incoming = Some(written.await?);
                Ok(Bytes::new())
            }
            _ => {
                let incoming = self.incoming.take().ok_or_else(out_of_order)?;
                if incoming.received_bytes != incoming.expected_bytes {
                    return Err(io::Error::other("a snapshot is shorter than announced"));
                }
                self.server.install(incoming).await
            }
        }
    }
}

impl Server {
    async fn install(&self, incoming: Incoming) -> io::Result<Bytes> {
        let mut file = incoming.file;
        let (snapshot, said) = blocking(move || file.verify().map(|said| (file, said))).await?;
        let meta = SnapshotMetaOf::<TypeConfig> {
            last_log_id: said.last.map(Into::into),
            last_membership: said.membership.into(),
        };
        tracing::info!(bytes = incoming.expected_bytes, last = ?meta.last_log_id.map(|id| id.index), "installing a snapshot");
        let snapshot = SnapshotOf::<TypeConfig, SnapshotFile> { meta, snapshot };
        let response =
            self.raft.install_full_snapshot(incoming.vote.into(), snapshot).await.map_err(io::Error::other)?;
        Ok(codec::encode(&WireSnapshotResponse::from(&response)).into())
    }

    async fn answer(&self, frame: Frame) -> io::Result<Bytes> {
        let failed = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
        match frame.kind {
            Kind::Vote => {
                let request: WireVoteRequest = codec::decode(&frame.body)?;
                let response = self.raft.vote(request.into()).await.map_err(|error| failed(&error))?;
                Ok(codec::encode(&WireVoteResponse::from(&response)).into())
            }
            Kind::PreVote => {
                let request: WireVoteRequest = codec::decode(&frame.body)?;
                let response = self.raft.pre_vote(request.into()).await.map_err(|error| failed(&error))?;
                Ok(codec::encode(&WireVoteResponse::from(&response)).into())
            }
            Kind::Transfer => {
                let request: WireTransfer = codec::decode(&frame.body)?;
                let accepted =
                    self.raft.handle_transfer_leader(request.into()).await.map_err(|error| failed(&error))?;
                accepted.map_err(|error| failed(&error))?;
                Ok(Bytes::new())
            }
            Kind::Forward => Ok(self.forwarded.serve(frame.body).await),
            _ => Ok(Bytes::new()),
        }
    }
}

async fn respond(outgoing: &mpsc::Sender<Frame>, number: u64, answer: io::Result<Bytes>) {
    let frame = match answer {
        Ok(body) => Frame::new(Kind::Answer, number, body),
        Err(error) => Frame::new(Kind::Failure, number, error.to_string().into()),
    };
    // A peer that has gone away does not want it.
    let _ = outgoing.send(frame).await;
}
