//! A long way: TCP through a process that holds every byte for a while, in both directions.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// Chunks on their way in one direction of one connection.
const CHUNKS_MAX: usize = 256;

/// Starts a way to `to` that takes `one_way` in each direction; the URL of its beginning.
pub(crate) async fn way(to: &str, one_way: Duration) -> String {
    let to: SocketAddr = to.trim_start_matches("http://").parse().expect("an address");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((caller, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(to).await else { return };
                let _ = (caller.set_nodelay(true), server.set_nodelay(true));
                let (caller_in, caller_out) = caller.into_split();
                let (server_in, server_out) = server.into_split();
                tokio::join!(lane(caller_in, server_out, one_way), lane(server_in, caller_out, one_way));
            });
        }
    });
    url
}

async fn lane(
    mut from: impl AsyncReadExt + Unpin + Send + 'static,
    mut to: impl AsyncWriteExt + Unpin,
    one_way: Duration,
) {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    tokio::spawn(async move {
        loop {
            let mut chunk = Vec::with_capacity(16 * 1_024);
            match from.read_buf(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let due = quorate::clock::Deadline::after(one_way).instant();
                    if sender.send((due, chunk)).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    while let Some((due, chunk)) = chunks.recv().await {
        sleep_until(due).await;
        if to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
