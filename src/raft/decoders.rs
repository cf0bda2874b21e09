//! Every place where bytes of a peer or of a disk become values here, in one list: for tests that feed it nonsense.

use super::codec::{
    self, WireAppend, WireAppended, WireEntry, WireLogId, WirePayload, WireSnapshotHead, WireSnapshotMeta,
};
use super::codec::{WireSnapshotResponse, WireTransfer, WireVote, WireVoteRequest, WireVoteResponse};
use super::frame;
use super::identity::{Greeting, Hello};
use super::journal::{Stamped, StoredEntry};
use crate::clock::{ClockId, Reading};
use crate::limits::FRAME_BYTES_MAX;
use crate::state::Batch;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// What is to read the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is named after what it reads")]
pub enum Decoder {
    Frames,
    Hello,
    Greeting,
    Append,
    Appended,
    VoteRequest,
    VoteResponse,
    Transfer,
    SnapshotHead,
    SnapshotResponse,
    SnapshotMeta,
    Entry,
    StoredEntry,
    LogId,
    Vote,
    Stamped,
}

impl Decoder {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Frames,
        Self::Hello,
        Self::Greeting,
        Self::Append,
        Self::Appended,
        Self::VoteRequest,
        Self::VoteResponse,
        Self::Transfer,
        Self::SnapshotHead,
        Self::SnapshotResponse,
        Self::SnapshotMeta,
        Self::Entry,
        Self::StoredEntry,
        Self::LogId,
        Self::Vote,
        Self::Stamped,
    ];

    /// Good bytes for some of them, to be spoilt.
    pub fn good(batch: Batch) -> Vec<(Self, Vec<u8>)> {
        let leader = batch.stamp.leader;
        let (vote, log_id) = (WireVote { leader, committed: true }, WireLogId { leader, index: 7 });
        let obs = Reading { clock_id: ClockId(1), mono_ns: 5, raw_ns: 6 };
        let stamped = Stamped { time: batch.stamp.time, obs };
        let entry = StoredEntry { obs: Some(obs), payload: WirePayload::Batch(Arc::new(batch)) };
        vec![
            (Self::Vote, codec::encode(&vote)),
            (Self::LogId, codec::encode(&log_id)),
            (Self::Stamped, codec::encode(&stamped)),
            (Self::StoredEntry, codec::encode(&entry)),
            (Self::SnapshotHead, codec::encode(&WireSnapshotHead { vote, file_bytes: 1_000 })),
        ]
    }

    /// Reads the bytes; whether they mean anything.
    pub fn reads(self, bytes: &[u8]) -> bool {
        match self {
            Self::Frames => frames(bytes),
            Self::Hello => is::<Hello>(bytes),
            Self::Greeting => is::<Greeting>(bytes),
            Self::Append => codec::decode::<WireAppend>(bytes).map(|append| drop(append.into_engine())).is_ok(),
            Self::Appended => is::<WireAppended>(bytes),
            Self::VoteRequest => is::<WireVoteRequest>(bytes),
            Self::VoteResponse => is::<WireVoteResponse>(bytes),
            Self::Transfer => is::<WireTransfer>(bytes),
            Self::SnapshotHead => is::<WireSnapshotHead>(bytes),
            Self::SnapshotResponse => is::<WireSnapshotResponse>(bytes),
            Self::SnapshotMeta => is::<WireSnapshotMeta>(bytes),
            Self::Entry => is::<WireEntry>(bytes),
            Self::StoredEntry => is::<StoredEntry>(bytes),
            Self::LogId => is::<WireLogId>(bytes),
            Self::Vote => is::<WireVote>(bytes),
            Self::Stamped => is::<Stamped>(bytes),
        }
    }
}

fn is<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    codec::decode::<T>(bytes).is_ok()
}

/// Frames until the bytes end. They are all there, so nothing waits.
fn frames(mut bytes: &[u8]) -> bool {
    use futures::FutureExt;
    let mut any = false;
    while let Some(Ok(Some(_))) = frame::read(&mut bytes, FRAME_BYTES_MAX).now_or_never() {
        any = true;
    }
    any
}
