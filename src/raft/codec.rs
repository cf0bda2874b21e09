//! Bytes of everything that leaves the process: log records, votes, memberships and messages between peers.
//!
//! The engine promises no stable format of its own, so nothing of it is ever serialized: its types are translated to the
//! ones here, which are written by `postcard` behind a format byte. A new format gets a new byte, and the old one stays
//! readable.

use super::types::{EngineLeaderId, Entry, LogId, Membership, Payload, StoredMembership, TypeConfig, Vote};
use super::types::{engine_leader_id, leader_id};
use crate::state::{Batch, LeaderId};
use openraft::raft::{
    AppendEntriesRequest, SnapshotResponse, StreamAppendError, StreamAppendResult, TransferLeaderRequest, VoteRequest,
    VoteResponse,
};
use openraft::{BasicNode, EntryPayload};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// The format written today.
pub(super) const FORMAT: u8 = 2;

/// Format byte and postcard.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    // Writing into memory does not fail, and none of our types refuses to be written.
    bytes = postcard::to_extend(value, bytes).expect("a plain value encodes");
    bytes
}

/// Reads what [`encode`] wrote; anything else is an error, never a panic.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match bytes.split_first() {
        Some((&FORMAT, rest)) => {
            let (value, left) = postcard::take_from_bytes(rest).map_err(|error| damaged(&error.to_string()))?;
            if left.is_empty() { Ok(value) } else { Err(damaged("bytes are left over")) }
        }
        Some((format, _)) => Err(damaged(&format!("format {format} is not known to this version"))),
        None => Err(damaged("no bytes")),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// The position of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct WireLogId {
    pub(super) leader: LeaderId,
    pub(super) index: u64,
}

impl From<&LogId> for WireLogId {
    fn from(id: &LogId) -> Self {
        Self { leader: leader_id(&id.leader_id), index: id.index }
    }
}

impl From<WireLogId> for LogId {
    fn from(id: WireLogId) -> Self {
        Self { leader_id: engine_leader_id(id.leader), index: id.index }
    }
}

fn wire_log_id(id: Option<&LogId>) -> Option<WireLogId> {
    id.map(WireLogId::from)
}

fn engine_log_id(id: Option<WireLogId>) -> Option<LogId> {
    id.map(LogId::from)
}

/// A vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireVote {
    pub(super) leader: LeaderId,
    pub(super) committed: bool,
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        Self { leader: leader_id(&vote.leader_id), committed: vote.committed }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        let leader_id: EngineLeaderId = engine_leader_id(vote.leader);
        Self { leader_id, committed: vote.committed }
    }
}

/// Who is in the cluster. Invariant: no set of voters is empty, and every voter has an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(Vec<BTreeSet<u64>>, BTreeMap<u64, String>)")]
pub(super) struct WireMembership {
    /// One set of voters, or two while the set is changing.
    configs: Vec<BTreeSet<u64>>,
    /// Peer address of every node.
    nodes: BTreeMap<u64, String>,
}

impl From<&Membership> for WireMembership {
    fn from(membership: &Membership) -> Self {
        Self {
            configs: membership.get_joint_config().clone(),
            nodes: membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }
}

impl TryFrom<(Vec<BTreeSet<u64>>, BTreeMap<u64, String>)> for WireMembership {
    type Error = String;
    fn try_from((configs, nodes): (Vec<BTreeSet<u64>>, BTreeMap<u64, String>)) -> Result<Self, String> {
        if configs.iter().any(BTreeSet::is_empty) {
            return Err("an empty set of voters".to_owned());
        }
        match configs.iter().flatten().find(|voter| !nodes.contains_key(voter)) {
            Some(voter) => Err(format!("voter {voter} has no address")),
            None => Ok(Self { configs, nodes }),
        }
    }
}

impl WireMembership {
    fn into_engine(self) -> Membership {
        let nodes: BTreeMap<u64, BasicNode> =
            self.nodes.into_iter().map(|(id, address)| (id, BasicNode::new(address))).collect();
        Membership::new(self.configs, nodes).expect("every voter has an address")
    }
}

/// A membership and the entry that set it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireStoredMembership {
    log_id: Option<WireLogId>,
    membership: WireMembership,
}

impl From<&StoredMembership> for WireStoredMembership {
    fn from(stored: &StoredMembership) -> Self {
        Self { log_id: wire_log_id(stored.log_id().as_ref()), membership: stored.membership().into() }
    }
}

impl From<WireStoredMembership> for StoredMembership {
    fn from(stored: WireStoredMembership) -> Self {
        Self::new(engine_log_id(stored.log_id), stored.membership.into_engine())
    }
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WirePayload {
    Blank,
    Batch(Arc<Batch>),
    Membership(WireMembership),
}

impl From<&Payload> for WirePayload {
    fn from(payload: &Payload) -> Self {
        match payload {
            EntryPayload::Blank => Self::Blank,
            EntryPayload::Normal(batch) => Self::Batch(Arc::clone(batch)),
            EntryPayload::Membership(membership) => Self::Membership(membership.into()),
        }
    }
}

impl From<WirePayload> for Payload {
    fn from(payload: WirePayload) -> Self {
        match payload {
            WirePayload::Blank => Self::Blank,
            WirePayload::Batch(batch) => Self::Normal(batch),
            WirePayload::Membership(membership) => Self::Membership(membership.into_engine()),
        }
    }
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireEntry {
    log_id: WireLogId,
    payload: WirePayload,
}

impl From<&Entry> for WireEntry {
    fn from(entry: &Entry) -> Self {
        Self { log_id: (&entry.log_id).into(), payload: (&entry.payload).into() }
    }
}

impl From<WireEntry> for Entry {
    fn from(entry: WireEntry) -> Self {
        Self { log_id: entry.log_id.into(), payload: entry.payload.into() }
    }
}

/// Entries from a leader, on one of its streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireAppend {
    /// Which stream of the sender: after a refusal, what is left of that stream is void.
    pub(super) stream: u64,
    vote: WireVote,
    previous: Option<WireLogId>,
    entries: Vec<WireEntry>,
    committed: Option<WireLogId>,
}

impl WireAppend {
    pub(super) fn new(stream: u64, request: &AppendEntriesRequest<TypeConfig>) -> Self {
        Self {
            stream,
            vote: (&request.vote).into(),
            previous: wire_log_id(request.prev_log_id.as_ref()),
            entries: request.entries.iter().map(WireEntry::from).collect(),
            committed: wire_log_id(request.leader_commit.as_ref()),
        }
    }

    pub(super) const fn has_entries(&self) -> bool {
        !self.entries.is_empty()
    }

    pub(super) fn into_engine(self) -> AppendEntriesRequest<TypeConfig> {
        AppendEntriesRequest {
            vote: self.vote.into(),
            prev_log_id: engine_log_id(self.previous),
            entries: self.entries.into_iter().map(Entry::from).collect(),
            leader_commit: engine_log_id(self.committed),
        }
    }
}

/// The answer to one append.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WireAppended {
    Flushed(Option<WireLogId>),
    Conflict(WireLogId),
    HigherVote(WireVote),
}

impl From<&StreamAppendResult<TypeConfig>> for WireAppended {
    fn from(result: &StreamAppendResult<TypeConfig>) -> Self {
        match result {
            Ok(flushed) => Self::Flushed(wire_log_id(flushed.as_ref())),
            Err(StreamAppendError::Conflict(at)) => Self::Conflict(at.into()),
            Err(StreamAppendError::HigherVote(vote)) => Self::HigherVote(vote.into()),
        }
    }
}

impl From<WireAppended> for StreamAppendResult<TypeConfig> {
    fn from(appended: WireAppended) -> Self {
        match appended {
            WireAppended::Flushed(flushed) => Ok(engine_log_id(flushed)),
            WireAppended::Conflict(at) => Err(StreamAppendError::Conflict(at.into())),
            WireAppended::HigherVote(vote) => Err(StreamAppendError::HigherVote(vote.into())),
        }
    }
}

/// A request for a vote, or for the promise of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireVoteRequest {
    vote: WireVote,
    last: Option<WireLogId>,
    transfer: bool,
}

impl From<&VoteRequest<TypeConfig>> for WireVoteRequest {
    fn from(request: &VoteRequest<TypeConfig>) -> Self {
        Self {
            vote: (&request.vote).into(),
            last: wire_log_id(request.last_log_id.as_ref()),
            transfer: request.leadership_transfer,
        }
    }
}

impl From<WireVoteRequest> for VoteRequest<TypeConfig> {
    fn from(request: WireVoteRequest) -> Self {
        Self {
            vote: request.vote.into(),
            last_log_id: engine_log_id(request.last),
            leadership_transfer: request.transfer,
        }
    }
}

/// The answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireVoteResponse {
    vote: WireVote,
    granted: bool,
    last: Option<WireLogId>,
}

impl From<&VoteResponse<TypeConfig>> for WireVoteResponse {
    fn from(response: &VoteResponse<TypeConfig>) -> Self {
        Self {
            vote: (&response.vote).into(),
            granted: response.vote_granted,
            last: wire_log_id(response.last_log_id.as_ref()),
        }
    }
}

impl From<WireVoteResponse> for VoteResponse<TypeConfig> {
    fn from(response: WireVoteResponse) -> Self {
        Self::new(Vote::from(response.vote), engine_log_id(response.last), response.granted)
    }
}

/// A leader hands over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireTransfer {
    from: WireVote,
    to: u64,
    last: Option<WireLogId>,
}

impl From<&TransferLeaderRequest<TypeConfig>> for WireTransfer {
    fn from(request: &TransferLeaderRequest<TypeConfig>) -> Self {
        Self { from: request.from_leader().into(), to: *request.to_node_id(), last: wire_log_id(request.last_log_id()) }
    }
}

impl From<WireTransfer> for TransferLeaderRequest<TypeConfig> {
    fn from(request: WireTransfer) -> Self {
        Self::new(request.from.into(), request.to, engine_log_id(request.last))
    }
}

/// The head of a snapshot on its way: then come the bytes of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireSnapshotHead {
    pub(super) vote: WireVote,
    pub(super) file_bytes: u64,
}

/// The answer to a whole snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireSnapshotResponse {
    vote: WireVote,
}

impl From<&SnapshotResponse<TypeConfig>> for WireSnapshotResponse {
    fn from(response: &SnapshotResponse<TypeConfig>) -> Self {
        Self { vote: (&response.vote).into() }
    }
}

impl From<WireSnapshotResponse> for SnapshotResponse<TypeConfig> {
    fn from(response: WireSnapshotResponse) -> Self {
        Self::new(response.vote.into())
    }
}

/// What a snapshot file says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireSnapshotMeta {
    pub(super) last: Option<WireLogId>,
    pub(super) membership: WireStoredMembership,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
    use crate::state::{Acquire, Command, Identity, Stamp};

    fn sample() -> WireEntry {
        let leader = LeaderId { term: 3, node: 2 };
        let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::from_millis(250), 10).unwrap());
        let terms = Terms { lead: Span(5), max_wait: Some(Span::from_secs(30)), free_now_only: false };
        let acquire = Acquire {
            identity: Some(Identity { id: 7 << 100, fingerprint: 9 }),
            worker: Some("w1".into()),
            ..Acquire::one(Key::new("github-token").unwrap(), Some(limit), 2, terms)
        };
        let batch = Batch {
            stamp: Stamp { leader, time: Time(86_400_000_000_000) },
            keys_max: 1_000_000,
            commands: vec![Command::Acquire(acquire)],
        };
        WireEntry { log_id: WireLogId { leader, index: 41 }, payload: WirePayload::Batch(Arc::new(batch)) }
    }

    /// The bytes of format 2. They may never change: clusters have them on disk.
    const SAMPLE_V2: &str = "020302290103028080bc8ac9d213c0843d01000c6769746875622d746f6b656e01000180f882ad16\
                             80e59a770a000200050180d88ee16f000180808080808080808080808080801c09000102773100";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    #[test]
    fn entries_survive_the_way_there_and_back() {
        let bytes = encode(&sample());
        assert_eq!(decode::<WireEntry>(&bytes).unwrap(), sample());
        let engine = Entry::from(sample());
        assert_eq!(WireEntry::from(&engine), sample());
    }

    #[test]
    fn format_two_stays_readable() {
        assert_eq!(hex(&encode(&sample())), SAMPLE_V2);
    }

    #[test]
    fn other_bytes_are_refused_and_say_why() {
        let message = |bytes: &[u8]| decode::<WireEntry>(bytes).unwrap_err().to_string();
        let mut bytes = encode(&sample());
        bytes.push(0);
        assert_eq!(message(&bytes), "bytes are left over");
        bytes[0] = 9;
        assert_eq!(message(&bytes), "format 9 is not known to this version");
        assert_eq!(message(&[]), "no bytes");
        for end in 1..encode(&sample()).len() {
            assert!(decode::<WireEntry>(&encode(&sample())[..end]).is_err());
        }
    }
}
