//! The journal in files: crate `raft-log`, one checksummed stream for vote and entries.
//!
//! Invariants
//! - A flush is reported only after `fdatasync` has returned.
//! - A record torn by a crash is dropped at the very tail and refused elsewhere.

use super::codec::{self, WireLogId, WirePayload, WireVote};
use super::journal::{Flushed, Journal, Record, Stamped, State, StoredEntry};
use super::types::Vote;
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::codeq::{Decode, Encode};
use raft_log::{Config, RaftLog, Types};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A file of the log. Its entries stay in memory until it is full, at three times their size: a node whose files were eight times as
/// large touched new memory for the first minute of a load, which is slow. Small ones also give space back early.
const CHUNK_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Entries kept in memory for replication, and their bytes.
const CACHE_ENTRIES_MAX: usize = 100_000;
const CACHE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Largest record that is believed when reading.
const RECORD_BYTES_MAX: u32 = 64 * 1024 * 1024;
/// Never zero, so that a stretch of zeros is no length.
const LENGTH_CHECK: u32 = 0x5155_4F52;

/// Types of the `raft-log` crate.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct LogTypes;

impl Types for LogTypes {
    type LogId = Framed<WireLogId>;
    type LogPayload = Framed<StoredEntry>;
    type Vote = StoredVote;
    type Callback = Flushed;
    type UserData = Framed<Stamped>;

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.0.index
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        match &payload.0.payload {
            WirePayload::Batch(batch) => batch.memory_bytes(),
            WirePayload::Blank | WirePayload::Membership(_) => 256,
        }
    }
}

/// A value as one block of [`codec`] bytes behind its length.
///
/// The length carries a check of its own. A record that ends too soon counts as torn, and a torn one is dropped with all
/// that follows: without the check, one flipped bit in a length would make the rest of the log look torn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Framed<T>(T);

impl<T: Serialize> Encode for Framed<T> {
    fn encode<W: Write>(&self, mut writer: W) -> io::Result<usize> {
        let bytes = codec::encode(&self.0);
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        writer.write_all(&length.to_le_bytes())?;
        writer.write_all(&(length ^ LENGTH_CHECK).to_le_bytes())?;
        writer.write_all(&bytes)?;
        Ok(8 + bytes.len())
    }
}

impl<T: for<'de> Deserialize<'de>> Decode for Framed<T> {
    fn decode<R: Read>(mut reader: R) -> io::Result<Self> {
        let (mut length, mut check) = ([0; 4], [0; 4]);
        reader.read_exact(&mut length)?;
        reader.read_exact(&mut check)?;
        let (length, check) = (u32::from_le_bytes(length), u32::from_le_bytes(check));
        if length ^ LENGTH_CHECK != check || length > RECORD_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a record of {length} bytes")));
        }
        let mut bytes = Vec::new();
        reader.take(u64::from(length)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != u64::from(length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        codec::decode(&bytes).map(Self)
    }
}

/// A vote in the order the protocol gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredVote(Framed<WireVote>);

impl PartialOrd for StoredVote {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Vote::from(self.0.0).partial_cmp(&Vote::from(other.0.0))
    }
}

impl Encode for StoredVote {
    fn encode<W: Write>(&self, writer: W) -> io::Result<usize> {
        self.0.encode(writer)
    }
}

impl Decode for StoredVote {
    fn decode<R: Read>(reader: R) -> io::Result<Self> {
        Framed::decode(reader).map(Self)
    }
}

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        self.done(result);
    }
}

/// Opens or creates the log in `dir`.
pub(super) fn open(dir: &Path) -> io::Result<Box<dyn Journal>> {
    std::fs::create_dir_all(dir)?;
    let dir = dir.to_str().ok_or_else(|| io::Error::other("the path of the log is not UTF-8"))?;
    let mut config = Config::new(dir);
    config.wal.flush_batch_wait = Some(Duration::ZERO);
    config.wal.truncate_incomplete_record = Some(true);
    config.wal.chunk_max_size = Some(CHUNK_BYTES_MAX);
    config.wal.read_buffer_size = Some(1024 * 1024);
    config.log_cache_max_items = Some(CACHE_ENTRIES_MAX);
    config.log_cache_capacity = Some(CACHE_BYTES_MAX);
    Ok(Box::new(Wal(RaftLog::open(Arc::new(config))?)))
}

struct Wal(RaftLog<LogTypes>);

impl Journal for Wal {
    fn state(&self) -> State {
        let state = self.0.log_state();
        let id = |id: Option<&Framed<WireLogId>>| id.map(|id| id.0);
        State {
            vote: state.vote().map(|vote| vote.0.0),
            last: id(state.last()),
            committed: id(state.committed()),
            purged: id(state.purged()),
            floor: state.user_data.as_ref().map(|floor| floor.0),
        }
    }

    fn read(&self, from: u64, to: u64) -> Box<dyn Iterator<Item = io::Result<Record>> + '_> {
        Box::new(self.0.read(from, to).map(|record| record.map(|(log_id, entry)| (log_id.0, entry.0))))
    }

    fn append(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()> {
        self.0.append(records.map(|(log_id, entry)| (Framed(log_id), Framed(entry))))?;
        Ok(())
    }

    fn truncate(&mut self, index: u64) -> io::Result<()> {
        self.0.truncate(index)?;
        Ok(())
    }

    fn purge(&mut self, upto: WireLogId) -> io::Result<()> {
        self.0.purge(Framed(upto))?;
        Ok(())
    }

    fn save_vote(&mut self, vote: WireVote) -> io::Result<()> {
        self.0.save_vote(StoredVote(Framed(vote)))?;
        Ok(())
    }

    fn save_committed(&mut self, committed: WireLogId) -> io::Result<()> {
        self.0.commit(Framed(committed))?;
        Ok(())
    }

    fn save_floor(&mut self, floor: Option<Stamped>) -> io::Result<()> {
        self.0.save_user_data(floor.map(Framed))?;
        Ok(())
    }

    fn flush(&mut self, waiter: Option<Flushed>) -> io::Result<()> {
        self.0.flush(true, waiter)
    }
}
