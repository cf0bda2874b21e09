//! The state as bytes, and its digest.
//!
//! ```text
//! format byte · head · 4096 blocks of registers · 4096 blocks of requests
//! block = length (u32, little endian) · postcard
//! ```
//! Written and read block by block, so that neither side ever holds a second copy of everything. The digest is the hash of
//! exactly these bytes: equal states, and only those, have equal digests. Whether the bytes arrived whole is the business
//! of the file around them (`raft/snapshot_file.rs`).

use super::keys::{Keys, Register};
use super::machine::{Frozen, Machine};
use super::requests::{Remembered, Requests};
use super::shards::Shard;
use crate::limiter::{Key, Time};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, Read, Write};
use thiserror::Error;

/// Increase it with every change of what is written, and keep reading the old one.
const FORMAT: u8 = 1;
/// Largest block that is believed: with a hundred million keys one has some megabytes.
const BLOCK_BYTES_MAX: u32 = 1 << 30;

/// Why bytes are not a snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// Reading failed or ended too soon.
    #[error("cannot read the snapshot: {0}")]
    Io(#[from] io::Error),
    /// Written by a version this one does not know.
    #[error("snapshot format {0} is not known to this version, which reads up to {FORMAT}")]
    Format(u8),
    /// The bytes do not decode.
    #[error("damaged snapshot: {0}")]
    Damaged(String),
}

#[derive(Serialize, Deserialize)]
struct Head {
    now: Time,
    permits: u64,
    register_blocks: u32,
    request_blocks: u32,
}

impl Frozen {
    /// Writes everything. The order of bytes depends on the state alone.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (registers, requests) = (self.registers.pieces(), self.requests.pieces());
        let blocks = |count: usize| u32::try_from(count).map_err(io::Error::other);
        out.write_all(&[FORMAT])?;
        let head = Head {
            now: self.now,
            permits: self.permits,
            register_blocks: blocks(registers.len())?,
            request_blocks: blocks(requests.len())?,
        };
        write_block(out, &head)?;
        for piece in registers {
            write_piece(out, piece)?;
        }
        for piece in requests {
            write_piece(out, piece)?;
        }
        Ok(())
    }

    /// Equal for equal states.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        // A hasher takes every byte, and a state always encodes: there is no failure to report.
        let written = self.write(&mut hasher);
        debug_assert!(written.is_ok(), "{written:?}");
        *hasher.finalize().as_bytes()
    }

    /// Cluster time of this view.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Keys in this view.
    pub const fn keys(&self) -> usize {
        self.registers.len()
    }
}

impl Machine {
    /// Reads a state back. Nothing is trusted: every length is bounded and every name checked.
    pub fn read(input: &mut impl Read) -> Result<Self, SnapshotError> {
        let mut format = [0];
        input.read_exact(&mut format)?;
        if format[0] != FORMAT {
            return Err(SnapshotError::Format(format[0]));
        }
        let head: Head = read_block(input)?;
        let mut keys = Keys::new();
        for _ in 0..head.register_blocks {
            for (key, register) in read_block::<Vec<(Key, Register)>>(input)? {
                if register.indexed > register.next {
                    return Err(SnapshotError::Damaged(format!("key {key} is indexed after its register")));
                }
                keys.restore(key, register);
            }
        }
        let mut requests = Vec::new();
        for _ in 0..head.request_blocks {
            requests.extend(read_block::<Vec<(u128, Remembered)>>(input)?);
        }
        Ok(Self { now: head.now, permits: head.permits, keys, requests: Requests::restore(requests) })
    }
}

fn write_piece<K: Serialize, V: Serialize>(out: &mut impl Write, piece: &Shard<K, V>) -> io::Result<()> {
    write_block(out, &piece.iter().collect::<Vec<_>>())
}

fn write_block(out: &mut impl Write, block: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(block).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&bytes)
}

fn read_block<T: DeserializeOwned>(input: &mut impl Read) -> Result<T, SnapshotError> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > BLOCK_BYTES_MAX {
        return Err(SnapshotError::Damaged(format!("a block of {length} bytes")));
    }
    // Grows with what really arrives, not with what the length claims.
    let mut bytes = Vec::new();
    input.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != u64::from(length) {
        return Err(SnapshotError::Damaged(format!("a block of {length} bytes ends after {}", bytes.len())));
    }
    postcard::from_bytes(&bytes).map_err(|error| SnapshotError::Damaged(error.to_string()))
}
