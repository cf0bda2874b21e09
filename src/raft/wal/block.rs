//! A block: what one flush adds to the log, readable whole or not at all.
//!
//! ```text
//! magic (u32) · bytes of the body (u32) · number (u64) · durable (u64) · checksum of the body (u32) · checksum of the head (u32)
//! body: length (u32) · where the log stands after it · changes: kind (u8) · length (u32) · value …
//! ```
//! All integers little endian; blocks begin at multiples of eight. Checksums are salted by a number that only this log knows: what a
//! client has written into an entry can never pass for a block. Blocks are numbered without gaps from one on. `durable` is the
//! number of the last block that was synced when this one was made: who finds this block knows that all up to that number
//! were on the disk once, and that one which is not readable any more was damaged and not torn.

use super::super::codec::{self, WireLogId, WireVote};
use super::super::journal::{Stamped, State, StoredEntry};
use serde::{Deserialize, Serialize};
use std::io;

const MAGIC: u32 = u32::from_le_bytes(*b"QLB1");
/// Bytes before the body.
pub(super) const HEAD_BYTES: usize = 32;
/// Blocks begin at multiples of this.
pub(super) const ALIGN: usize = 8;
/// Larger bodies are not believed when reading.
pub(super) const BODY_BYTES_MAX: usize = 512 * 1024 * 1024;

/// What checksums begin with: drawn when the log is made, and told to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Salt(pub(super) u32);

impl Salt {
    fn check(self, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(bytes);
        hasher.finalize()
    }
}

const APPEND: u8 = 1;
const TRUNCATE: u8 = 2;

/// Where the log stands after a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Standing {
    vote: Option<WireVote>,
    committed: Option<WireLogId>,
    purged: Option<WireLogId>,
    floor: Option<Stamped>,
}

/// The first bytes of a block, whose checksum is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    pub(super) durable: u64,
    body_bytes: u32,
    body_check: u32,
}

/// What a block changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    Append(WireLogId, StoredEntry),
    /// All entries from this index on are taken back.
    Truncate(u64),
}

/// Changes that wait to become a block.
#[derive(Debug, Default)]
pub(super) struct Changes {
    bytes: Vec<u8>,
}

impl Changes {
    /// Adds an entry; says where its change begins among the changes.
    pub(super) fn append(&mut self, record: &(WireLogId, StoredEntry)) -> io::Result<u32> {
        let at = u32::try_from(self.bytes.len()).map_err(io::Error::other)?;
        self.add(APPEND, &codec::encode(record))?;
        Ok(at)
    }

    pub(super) fn truncate(&mut self, index: u64) -> io::Result<()> {
        self.add(TRUNCATE, &codec::encode(&index))
    }

    fn add(&mut self, kind: u8, value: &[u8]) -> io::Result<()> {
        let length = u32::try_from(value.len()).map_err(io::Error::other)?;
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Makes a block of them, after which the log stands as `state` says, and says where in it the first change begins.
    pub(super) fn into_block(
        self,
        salt: Salt,
        (number, durable): (u64, u64),
        state: &State,
    ) -> io::Result<(Vec<u8>, u32)> {
        let State { vote, committed, purged, floor, .. } = *state;
        let standing = codec::encode(&Standing { vote, committed, purged, floor });
        let body_bytes = 4 + standing.len() + self.bytes.len();
        if body_bytes > BODY_BYTES_MAX {
            return Err(io::Error::other(format!("{body_bytes} bytes are too much for one block of the log")));
        }
        let mut block = Vec::with_capacity((HEAD_BYTES + body_bytes).next_multiple_of(ALIGN));
        block.resize(HEAD_BYTES, 0);
        block.extend_from_slice(&u32::try_from(standing.len()).map_err(io::Error::other)?.to_le_bytes());
        block.extend_from_slice(&standing);
        let changes_at = u32::try_from(block.len()).map_err(io::Error::other)?;
        block.extend_from_slice(&self.bytes);
        let body_check = salt.check(&block[HEAD_BYTES..]);
        block[..4].copy_from_slice(&MAGIC.to_le_bytes());
        block[4..8].copy_from_slice(&u32::try_from(body_bytes).map_err(io::Error::other)?.to_le_bytes());
        block[8..16].copy_from_slice(&number.to_le_bytes());
        block[16..24].copy_from_slice(&durable.to_le_bytes());
        block[24..28].copy_from_slice(&body_check.to_le_bytes());
        let head_check = salt.check(&block[..28]);
        block[28..32].copy_from_slice(&head_check.to_le_bytes());
        block.resize(block.len().next_multiple_of(ALIGN), 0);
        Ok((block, changes_at))
    }
}

/// The head at the beginning of the bytes, if one stands there.
pub(super) fn head(salt: Salt, bytes: &[u8]) -> Option<Head> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    let long = |at: usize| bytes.get(at..at + 8).and_then(|long| long.try_into().ok()).map(u64::from_le_bytes);
    if word(0)? != MAGIC || word(28)? != salt.check(&bytes[..28]) {
        return None;
    }
    let head = Head { body_bytes: word(4)?, number: long(8)?, durable: long(16)?, body_check: word(24)? };
    (head.body_bytes as usize <= BODY_BYTES_MAX).then_some(head)
}

impl Head {
    /// From the beginning of this block to where the next one begins.
    pub(super) const fn block_bytes(&self) -> usize {
        (HEAD_BYTES + self.body_bytes as usize).next_multiple_of(ALIGN)
    }

    /// The body behind this head, if it is all there and what was written, up to the zeros that fill the block up.
    pub(super) fn body<'a>(&self, salt: Salt, block: &'a [u8]) -> Option<&'a [u8]> {
        let end = HEAD_BYTES + self.body_bytes as usize;
        let body = block.get(HEAD_BYTES..end)?;
        let filled = block[end..].iter().take(self.block_bytes() - end).all(|byte| *byte == 0);
        (filled && salt.check(body) == self.body_check).then_some(body)
    }
}

/// A whole block at the beginning of the bytes.
pub(super) fn whole(salt: Salt, bytes: &[u8]) -> Option<(Head, &[u8])> {
    let head = head(salt, bytes)?;
    Some((head, head.body(salt, bytes)?))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a block of the log {what}"))
}

fn split<'a>(bytes: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(|| damaged("ends in the middle of a change"))?;
    *bytes = rest;
    Ok(taken)
}

fn length(bytes: &mut &[u8]) -> io::Result<usize> {
    let length = split(bytes, 4)?.try_into().map_err(io::Error::other)?;
    Ok(u32::from_le_bytes(length) as usize)
}

/// The change at the beginning of the bytes, which go on behind it then.
fn take(bytes: &mut &[u8]) -> io::Result<Change> {
    let kind = split(bytes, 1)?[0];
    let length = length(bytes)?;
    let value = split(bytes, length)?;
    match kind {
        APPEND => codec::decode(value).map(|(id, entry)| Change::Append(id, entry)),
        TRUNCATE => codec::decode(value).map(Change::Truncate),
        _ => Err(damaged(&format!("has a change of kind {kind}"))),
    }
}

/// Reads a body: where the log stands after it goes into `state`, and every change is told with where it begins in its block.
pub(super) fn read(
    body: &[u8],
    state: &mut State,
    each: &mut dyn FnMut(u32, Change) -> io::Result<()>,
) -> io::Result<()> {
    let mut rest = body;
    let standing_bytes = length(&mut rest)?;
    let standing: Standing = codec::decode(split(&mut rest, standing_bytes)?)?;
    while !rest.is_empty() {
        let at = HEAD_BYTES + body.len() - rest.len();
        each(u32::try_from(at).map_err(io::Error::other)?, take(&mut rest)?)?;
    }
    let Standing { vote, committed, purged, floor } = standing;
    *state = State { vote, committed, purged, floor, last: state.last };
    Ok(())
}

/// The entry whose change begins at `at` of a block.
pub(super) fn entry_at(block: &[u8], at: u32) -> io::Result<(WireLogId, StoredEntry)> {
    let mut rest = block.get(at as usize..).ok_or_else(|| damaged("ends before an entry that it held"))?;
    match take(&mut rest)? {
        Change::Append(id, entry) => Ok((id, entry)),
        Change::Truncate(_) => Err(damaged("has no entry where it had one")),
    }
}
