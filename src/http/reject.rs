//! Turning a connection away when too many are open: it is told so, which is kinder than leaving it in the queue of the
//! kernel until its own timeout.
//!
//! The answer is written by hand: it is always the same, and must cost next to nothing.

use crate::api::{Code, PROBLEM_JSON, Problem};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Connections that are being turned away at once; past that they are closed without a word.
pub(super) const REJECTIONS_MAX: usize = 64;

/// For all of it: hearing the question, answering, waiting for the other side to hang up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The whole response.
pub(super) fn response() -> Vec<u8> {
    let problem = Problem::new(Code::Overloaded, "this node has as many connections as it takes; ask another one");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {PROBLEM_JSON}\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Answers and closes. Waits for the question first, because an answer to nothing is a protocol error to some clients, and
/// for the end of it afterwards, because closing on unread bytes resets the connection and destroys the answer.
pub(super) async fn reject<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, response: &[u8]) {
    let _ = timeout(PATIENCE, exchange(&mut socket, response)).await;
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S, response: &[u8]) -> io::Result<()> {
    let mut heard = [0; 4_096];
    if socket.read(&mut heard).await? == 0 {
        return Ok(());
    }
    socket.write_all(response).await?;
    socket.shutdown().await?;
    while socket.read(&mut heard).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answer_is_complete() {
        let (mut client, server) = tokio::io::duplex(4_096);
        let rejecting = tokio::spawn(async move { reject(server, &response()).await });
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        drop(client);
        rejecting.await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert_eq!(problem.code, Code::Overloaded);
    }
}
