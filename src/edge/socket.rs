//! A client's socket that can be watched while somebody else reads from it.
//!
//! The HTTP library stops reading as soon as it has bytes of a next request in its buffer, it does not read a body that nobody
//! asks for, and nodes do not let it read beside a request: then it does not see that the client has gone. Whoever holds an answer or a request needs to know: it gives
//! back what was reserved.

use socket2::SockRef;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often a socket is looked at whose unread bytes hide whether it was closed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The socket, for reading and writing.
#[derive(Debug)]
pub struct Socket(Arc<TcpStream>);

/// The same socket, for seeing when its other end is closed.
#[derive(Debug, Clone)]
pub struct Hangup(Arc<TcpStream>);

impl Socket {
    /// The two ends of it.
    pub fn new(stream: TcpStream) -> (Self, Hangup) {
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
            let room = buf.remaining();
            let mut read = None;
            let done = self.0.try_io(Interest::READABLE, || {
                let count = self.0.try_read_buf(buf)?;
                read = Some(count);
                // That was all there is: waiting for more does not begin with asking the system again. What is given up here is
                // the readiness of before the read: bytes that arrived since then have told the runtime anew, maybe on another thread.
                if (1..room).contains(&count) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match done {
                _ if read.is_some() => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl Socket {
    fn poll_io<T>(&self, cx: &mut Context<'_>, write: impl Fn(&TcpStream) -> io::Result<T>) -> Poll<io::Result<T>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, Socket, Hangup) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, hangup) = Socket::new(listener.accept().await.unwrap().0);
        (client, socket, hangup)
    }

    #[tokio::test]
    async fn bytes_go_both_ways() {
        let (mut client, mut socket, _) = pair().await;
        let much = vec![7; 1 << 20];
        let (sent, received) = tokio::join!(
            async {
                socket.write_all(&much).await.unwrap();
                socket.shutdown().await.unwrap();
            },
            async {
                let mut all = Vec::new();
                client.read_to_end(&mut all).await.unwrap();
                all
            }
        );
        assert_eq!(((), much), (sent, received));
        client.write_all(b"back").await.unwrap();
        let mut back = [0; 4];
        socket.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"back");
    }

    #[tokio::test]
    async fn a_closed_connection_is_seen_behind_unread_bytes() {
        let (mut client, _socket, hangup) = pair().await;
        client.write_all(b"the next request").await.unwrap();
        tokio::select! {
            () = hangup.closed() => panic!("still open"),
            () = sleep(3 * LOOK_EVERY) => {}
        }
        drop(client);
        hangup.closed().await;
    }
}
