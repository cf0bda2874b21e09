//! The engine's view of its peers: appends are pipelined on one connection, heartbeats, votes and snapshots have others, so
//! that none waits behind another.
//!
//! Every call has a deadline. A dead peer is reported as unreachable, which makes the engine back off instead of spinning.

use super::codec::{self, WireAppend, WireAppended, WireSnapshotHead, WireSnapshotResponse};
use super::codec::{WireTransfer, WireVoteRequest, WireVoteResponse};
use super::frame::Kind;
use super::identity::Identity;
use super::link::{CallError, Link, Live, Pending};
use super::pace::{self, Pace, Paced};
use super::snapshot_file::SnapshotFile;
use super::synced::Synced;
use super::transport::Transport;
use super::types::{TypeConfig, Vote};
use super::work::blocking;
use crate::clock::Stopwatch;
use crate::limits::SNAPSHOT_CHUNK_BYTES;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use openraft::alias::SnapshotOf;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AnyError, BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Appends on their way to one follower at once.
const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// A follower's disk may stall; its heartbeats go on meanwhile. Past this its connection is made anew.
const APPEND_DEADLINE: Duration = Duration::from_secs(3);
/// For one chunk of a snapshot, and for installing it.
const SNAPSHOT_CHUNK_DEADLINE: Duration = Duration::from_secs(10);
const SNAPSHOT_INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// All connections of a node to its peers.
#[derive(Clone)]
pub(super) struct Network {
    transport: Arc<dyn Transport>,
    identity: Arc<Identity>,
    peers: Arc<Mutex<Peers>>,
    pace: Pace,
}

/// By id and address: a member that moved gets new connections.
type Peers = HashMap<(u64, String), Arc<Peer>>;

/// The connections to one peer.
pub(super) struct Peer {
    append: Arc<Link>,
    heartbeat: Arc<Link>,
    control: Arc<Link>,
    snapshot: Arc<Link>,
    /// For what a node forwards to its leader.
    pub(super) forward: Arc<Link>,
}

impl Peer {
    /// Resolves when the peer has said who it is, and is who it was taken for.
    pub(super) async fn greeted(&self) -> std::io::Result<()> {
        self.control.connected().await.map(drop)
    }
}

impl Network {
    /// `own` is how far this node's own disk is.
    pub(super) fn new(transport: Arc<dyn Transport>, identity: Arc<Identity>, own: Synced) -> Self {
        Self { transport, identity, peers: Arc::default(), pace: Pace::new(own) }
    }

    /// Who votes besides this node; nobody while that changes.
    pub(super) fn set_others(&self, others: BTreeSet<u64>) {
        self.pace.set_others(others);
    }

    /// The connections to a peer, made when first used.
    pub(super) fn peer(&self, target: u64, address: &str) -> Arc<Peer> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry((target, address.to_owned())).or_insert_with(|| {
            let link = || {
                let (transport, identity) = (Arc::clone(&self.transport), Arc::clone(&self.identity));
                Arc::new(Link::new(target, address.to_owned(), transport, identity))
            };
            Arc::new(Peer { append: link(), heartbeat: link(), control: link(), snapshot: link(), forward: link() })
        });
        Arc::clone(peer)
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client {
        let peer = self.peer(target, &node.addr);
        Client { appends: Arc::clone(&peer.append), pace: Some((target, self.pace.clone())), peer }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &BasicNode) -> Client {
        let peer = self.peer(target, &node.addr);
        Client { appends: Arc::clone(&peer.heartbeat), pace: None, peer }
    }
}

/// What the engine holds of one peer.
pub(super) struct Client {
    peer: Arc<Peer>,
    appends: Arc<Link>,
    /// The peer's number and what decides when it gets entries; none for heartbeats.
    pace: Option<(u64, Pace)>,
}

fn unreachable(error: &CallError) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&AnyError::error(error)))
}

fn garbled(error: &std::io::Error) -> RPCError<TypeConfig> {
    RPCError::Network(NetworkError::new(&AnyError::error(error)))
}

impl Client {
    async fn ask(&self, kind: Kind, body: Vec<u8>, within: Duration) -> Result<Bytes, RPCError<TypeConfig>> {
        self.peer.control.call(kind, body.into(), within).await.map_err(|error| unreachable(&error))
    }

    /// Asks for a vote, or for the promise of one.
    async fn ask_vote(
        &self,
        kind: Kind,
        request: &VoteRequest<TypeConfig>,
        option: &RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let answer = self.ask(kind, codec::encode(&WireVoteRequest::from(request)), option.soft_ttl()).await?;
        codec::decode::<WireVoteResponse>(&answer).map(Into::into).map_err(|error| garbled(&error))
    }

    /// Sends the bytes of a snapshot, one chunk after the other.
    async fn send_snapshot(&self, vote: Vote, mut snapshot: SnapshotFile) -> Result<Bytes, StreamingError<TypeConfig>> {
        let link = &self.peer.snapshot;
        let lost = |error: CallError| StreamingError::from(unreachable(&error));
        let broken = |error: std::io::Error| StreamingError::from(garbled(&error));
        let head = WireSnapshotHead { vote: (&vote).into(), file_bytes: snapshot.bytes().map_err(broken)? };
        link.call(Kind::SnapshotHead, codec::encode(&head).into(), SNAPSHOT_CHUNK_DEADLINE).await.map_err(lost)?;
        snapshot.rewound().map_err(broken)?;
        loop {
            let read = blocking(move || {
                let mut chunk = Vec::with_capacity(SNAPSHOT_CHUNK_BYTES);
                let file = snapshot.file();
                file.take(SNAPSHOT_CHUNK_BYTES as u64).read_to_end(&mut chunk).map(|_| (snapshot, chunk))
            });
            let chunk;
            (snapshot, chunk) = read.await.map_err(broken)?;
            if chunk.is_empty() {
                break;
            }
            link.call(Kind::SnapshotChunk, chunk.into(), SNAPSHOT_CHUNK_DEADLINE).await.map_err(lost)?;
        }
        link.call(Kind::SnapshotEnd, Bytes::new(), SNAPSHOT_INSTALL_DEADLINE).await.map_err(lost)
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let input = futures::stream::iter([request]);
        let mut output = self.stream_append(input, option).await?;
        let result =
            output.next().await.unwrap_or_else(|| Err(unreachable(&CallError::Lost("the stream ended".to_owned()))))?;
        Ok(result.into())
    }

    fn stream_append<S>(
        &mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        '_,
        Result<BoxStream<'_, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>, RPCError<TypeConfig>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let within = option.soft_ttl().max(Duration::from_millis(100));
            let (sender, receiver) = mpsc::channel::<Sent>(APPENDS_IN_FLIGHT_MAX);
            let paced = self.pace.as_ref().map(|(follower, pace)| Arc::new(pace.begin(*follower)));
            tokio::spawn(pump(input, Arc::clone(&self.appends), paced.clone(), within, sender));
            let output = futures::stream::unfold(Some((receiver, None, paced)), |state| async move {
                let (mut receiver, before, paced) = state?;
                let result = match receiver.recv().await? {
                    Sent::Known => Ok(Ok(before)),
                    Sent::Waits(pending) => {
                        let result = appended(pending).await;
                        if let (Some(paced), Ok(_)) = (&paced, &result) {
                            paced.answered();
                        }
                        result
                    }
                };
                let flushed = result.as_ref().ok().and_then(|appended| appended.as_ref().ok().copied());
                Some((result, flushed.map(|flushed| (receiver, flushed, paced))))
            });
            Ok(output.boxed())
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(Kind::Vote, &request, &option).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask_vote(Kind::PreVote, &request, &option).await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let body = codec::encode(&WireTransfer::from(&request));
        self.ask(Kind::Transfer, body, option.soft_ttl()).await?;
        Ok(Ok(()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let answer = tokio::select! {
            biased;
            closed = cancel => return Err(closed.into()),
            sent = self.send_snapshot(vote, snapshot.snapshot) => sent?,
        };
        codec::decode::<WireSnapshotResponse>(&answer).map(Into::into).map_err(|error| garbled(&error).into())
    }

    fn backoff(&self) -> Option<Backoff> {
        Some(Backoff::new(std::iter::repeat(Duration::from_millis(100))))
    }
}

/// What became of an append.
enum Sent {
    /// Its answer is to be waited for.
    Waits(Result<Pending, CallError>),
    /// It had nothing to append and was not sent: the answer is that of the append before it.
    Known,
}

/// Sends appends as the engine makes them, until it wants no more answers.
///
/// After every commit the engine makes an append without entries, to tell how far the cluster has committed. On the way of entries
/// these are not sent: the next append tells it, or the next heartbeat. A message less for every entry and follower is
/// a quarter of what an entry costs, and nobody waits for a follower to apply.
///
/// A follower that no commit waits for is sent what there is in larger steps: what the engine is not asked for meanwhile comes
/// together in its next request.
///
/// It connects only when there is something to send: the engine backs off from an unreachable peer when it is asked for the
/// next request, and would try again at once, thousands of times a second, if connecting failed before that.
async fn pump(
    mut input: impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
    link: Arc<Link>,
    paced: Option<Arc<Paced>>,
    connect_within: Duration,
    answers: mpsc::Sender<Sent>,
) {
    let mut connection = None;
    let mut last_sent = None;
    let mut left = None;
    let stream = link.next_stream();
    loop {
        let request = tokio::select! {
            biased;
            () = answers.closed() => None,
            request = next(&mut input, paced.as_deref().zip(left)) => request,
        };
        let Some(request) = request else { return };
        if let Some(last) = request.entries.last() {
            last_sent = Some(last.log_id);
        } else if paced.is_some() && last_sent.is_some() && request.prev_log_id == last_sent {
            if answers.send(Sent::Known).await.is_err() {
                return;
            }
            continue;
        }
        let pending = match connected(&link, connection.take(), connect_within).await {
            Ok(live) => {
                let body = codec::encode(&WireAppend::new(stream, &request));
                if let Some(paced) = &paced {
                    paced.sent(request.entries.len());
                    left = (request.entries.len() < pace::BEHIND_ENTRIES).then(Stopwatch::start);
                }
                let sent = tokio::time::timeout(APPEND_DEADLINE, live.send(Kind::Append, body.into())).await;
                let pending = sent.unwrap_or_else(|_| {
                    live.break_off("the peer takes no more appends");
                    Err(CallError::NotSent("the peer takes no more appends".to_owned()))
                });
                connection = Some(live);
                pending
            }
            Err(error) => Err(error),
        };
        let failed = pending.is_err();
        if answers.send(Sent::Waits(pending)).await.is_err() || failed {
            return;
        }
    }
}

/// The next request of the engine, when it is the follower's turn.
async fn next(
    input: &mut (impl Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin),
    held: Option<(&Paced, Stopwatch)>,
) -> Option<AppendEntriesRequest<TypeConfig>> {
    if let Some((paced, left)) = held {
        paced.turn(left).await;
    }
    input.next().await
}

/// The connection of a stream: the one it began on, or a new one if it has not begun.
async fn connected(link: &Link, begun: Option<Arc<Live>>, within: Duration) -> Result<Arc<Live>, CallError> {
    if let Some(live) = begun {
        return Ok(live);
    }
    match tokio::time::timeout(within, link.connected()).await {
        Ok(Ok(live)) => Ok(live),
        Ok(Err(error)) => Err(CallError::NotSent(error.to_string())),
        Err(_) => Err(CallError::NotSent(format!("not connected within {within:?}"))),
    }
}

/// Waits for the answer to one append.
async fn appended(pending: Result<Pending, CallError>) -> Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>> {
    let pending = pending.map_err(|error| unreachable(&error))?;
    let live = Arc::clone(pending.live());
    match pending.answer(APPEND_DEADLINE).await {
        Ok(body) => codec::decode::<WireAppended>(&body).map(Into::into).map_err(|error| garbled(&error)),
        Err(error) => {
            // Answers come in order here: when one is missing, those after it are too.
            live.break_off("an append was not answered");
            Err(unreachable(&error))
        }
    }
}
