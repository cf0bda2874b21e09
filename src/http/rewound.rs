//! A socket of which something was read already: whoever reads next gets that first.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The socket.
#[derive(Debug)]
pub(super) struct Rewound<S> {
    read: Vec<u8>,
    /// How much of it was read again.
    at: usize,
    socket: S,
}

impl<S> Rewound<S> {
    /// The socket as it was before `read` was read.
    pub(super) const fn new(socket: S, read: Vec<u8>) -> Self {
        Self { read, at: 0, socket }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let rest = &self.read[self.at..];
        if rest.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, buf);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..count]);
        self.at += count;
        if self.at == self.read.len() {
            (self.read, self.at) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn what_was_read_comes_first_in_pieces_of_any_size() {
        for piece in 1..=8 {
            let (mut near, far) = duplex(64);
            near.write_all(b"defg").await.unwrap();
            let mut rewound = Rewound::new(far, b"abc".to_vec());
            let mut all = Vec::new();
            while all.len() < 7 {
                let mut some = vec![0; piece];
                let count = rewound.read(&mut some).await.unwrap();
                all.extend_from_slice(&some[..count]);
            }
            assert_eq!(all, b"abcdefg");
            rewound.write_all(b"back").await.unwrap();
            let mut back = [0; 4];
            near.read_exact(&mut back).await.unwrap();
            assert_eq!(&back, b"back");
        }
    }
}
