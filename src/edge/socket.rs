//! A client's socket that can be watched while the HTTP library reads from it, or does not.
//!
//! A request that is held is not read from: its body waits in the kernel, and behind those bytes the library does not see
//! that the client has gone. The same socket, looked at from the side, shows it.

use socket2::SockRef;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often a socket is looked at whose unread bytes hide whether it was closed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The socket, for reading and writing.
#[derive(Debug)]
pub(super) struct Socket(Arc<TcpStream>);

/// The same socket, for seeing when its other end is closed.
#[derive(Debug, Clone)]
pub struct Hangup(Arc<TcpStream>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> (Self, Hangup) {
        let stream = Arc::new(stream);
        (Self(Arc::clone(&stream)), Hangup(stream))
    }
}

impl Hangup {
    /// Resolves when the client has closed the connection, or its side of it.
    pub async fn closed(&self) {
        loop {
            match self.0.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => sleep(LOOK_EVERY).await,
                _ => return,
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            match self.0.try_read(unfilled) {
                Ok(read) => {
                    buf.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_closed_connection_is_seen_behind_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_socket, hangup) = Socket::new(listener.accept().await.unwrap().0);
        client.write_all(b"a body that waits").await.unwrap();
        tokio::select! {
            () = hangup.closed() => panic!("still open"),
            () = sleep(3 * LOOK_EVERY) => {}
        }
        drop(client);
        hangup.closed().await;
    }
}
