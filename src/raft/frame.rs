//! Frames on a connection between peers.
//!
//! ```text
//! length of the rest (u32) · format byte · kind (u8) · number (u64) · body
//! ```
//! All integers little endian. A request carries a number that its answer repeats; answers may overtake each other.

use crate::limits::FRAME_BYTES_MAX;
use bytes::Bytes;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 1 + 1 + 8;
/// Frames that may wait for a connection to take them.
const QUEUED_FRAMES_MAX: usize = 1_024;
/// A silent connection is asked after this long whether it still is one.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Memory reserved on the word of a length alone.
const TRUSTED_BYTES: usize = 64 * 1024;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Hello = 1,
    Append = 2,
    Vote = 3,
    PreVote = 4,
    Transfer = 5,
    SnapshotHead = 6,
    SnapshotChunk = 7,
    SnapshotEnd = 8,
    Forward = 9,
    /// The answer to the request of the same number.
    Answer = 100,
    /// The request of the same number could not be served; the body says why.
    Failure = 101,
}

impl Kind {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Append,
            3 => Self::Vote,
            4 => Self::PreVote,
            5 => Self::Transfer,
            6 => Self::SnapshotHead,
            7 => Self::SnapshotChunk,
            8 => Self::SnapshotEnd,
            9 => Self::Forward,
            100 => Self::Answer,
            101 => Self::Failure,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) body: Bytes,
}

impl Frame {
    pub(super) const fn new(kind: Kind, number: u64, body: Bytes) -> Self {
        Self { kind, number, body }
    }

    fn write_to(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let length = HEAD_BYTES + self.body.len();
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::other(format!("a frame of {length} bytes is over the bound of {FRAME_BYTES_MAX}")));
        }
        let length = u32::try_from(length).map_err(io::Error::other)?;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[FORMAT, self.kind as u8]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.body);
        Ok(())
    }
}

/// Reads one frame of at most `bytes_max`; `None` when the other side has closed the connection between two frames.
pub(super) async fn read(input: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<Option<Frame>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if !(HEAD_BYTES..=bytes_max).contains(&length) {
        return Err(bad(format!("a frame of {length} bytes")));
    }
    let mut bytes = Vec::with_capacity(length.min(TRUSTED_BYTES));
    input.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = Bytes::from(bytes);
    let head = bytes.split_to(HEAD_BYTES);
    if head[0] != FORMAT {
        return Err(bad(format!("frame format {}", head[0])));
    }
    let kind = Kind::from_byte(head[1]).ok_or_else(|| bad(format!("frame kind {}", head[1])))?;
    let number = head[2..].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    Ok(Some(Frame { kind, number, body: bytes }))
}

fn bad(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes one frame and flushes it: for the greeting, before there is a writer.
pub(super) async fn write_now(output: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame.write_to(&mut bytes)?;
    output.write_all(&bytes).await
}

/// Gives the writing half to a task of its own, which sends all that has queued up in one go.
pub(super) fn spawn_writer(mut output: impl AsyncWrite + Send + Unpin + 'static) -> (mpsc::Sender<Frame>, AbortHandle) {
    let (sender, mut receiver) = mpsc::channel::<Frame>(QUEUED_FRAMES_MAX);
    let writer = tokio::spawn(async move {
        let mut frames = Vec::new();
        let mut bytes = Vec::new();
        while receiver.recv_many(&mut frames, QUEUED_FRAMES_MAX).await > 0 {
            bytes.clear();
            for frame in frames.drain(..) {
                if let Err(error) = frame.write_to(&mut bytes) {
                    tracing::error!(%error, kind = ?frame.kind, "cannot send to a peer");
                }
            }
            if output.write_all(&bytes).await.is_err() {
                // Whoever waits for an answer learns it from the reading half.
                break;
            }
        }
        // Ends the other side's reading, also when this side merely has nothing to say any more.
        let _ = output.shutdown().await;
    });
    (sender, writer.abort_handle())
}

/// Sets a connection between peers up: small frames go at once, and a peer that vanished without a word is noticed.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_go_there_and_end_cleanly() {
        let (near, mut far) = tokio::io::duplex(64);
        let (sender, _) = spawn_writer(near);
        let frames = [
            Frame::new(Kind::Append, u64::MAX - 1, Bytes::from(vec![7; 1_000])),
            Frame::new(Kind::Forward, 2, Bytes::new()),
        ];
        for frame in &frames {
            sender.send(frame.clone()).await.unwrap();
        }
        drop(sender);
        for frame in frames {
            assert_eq!(read(&mut far, FRAME_BYTES_MAX).await.unwrap(), Some(frame));
        }
        assert_eq!(read(&mut far, FRAME_BYTES_MAX).await.unwrap(), None);
    }

    #[tokio::test]
    async fn nonsense_is_an_error_and_not_a_reservation_of_memory() {
        for (bytes, message) in [
            (&[255, 255, 255, 255, 0][..], "a frame of 4294967295 bytes"),
            (&[1, 0, 0, 0, 1][..], "a frame of 1 bytes"),
            (&[10, 0, 0, 0, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0][..], "frame format 9"),
            (&[10, 0, 0, 0, 1, 77, 0, 0, 0, 0, 0, 0, 0, 0][..], "frame kind 77"),
            (&[10, 0, 0, 0, 1][..], "unexpected end of file"),
        ] {
            assert_eq!(read(&mut &bytes[..], FRAME_BYTES_MAX).await.unwrap_err().to_string(), message);
        }
    }
}
