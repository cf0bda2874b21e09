//! Turning a connection away when too many are open: it is told so, which is kinder than leaving it in the queue of the
//! kernel until its own timeout.
//!
//! The answer is written by hand and the question is not understood: this must cost next to nothing.

use crate::api::{Code, PROBLEM_JSON, Problem, QUORATE_LEADER};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Connections that are being turned away at once; past that they are closed without a word.
pub const REJECTIONS_MAX: usize = 64;

/// For all of it: hearing the question, answering, waiting for the other side to hang up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The whole response; `leader_url` is where else to ask, if anybody knows.
pub fn response(detail: &str, leader_url: Option<&str>) -> Vec<u8> {
    let problem = Problem::new(Code::Overloaded, detail);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let leader = leader_url.map(|url| format!("{QUORATE_LEADER}: {url}\r\n")).unwrap_or_default();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {PROBLEM_JSON}\r\nretry-after: 1\r\nconnection: close\r\n\
         {leader}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Answers and closes. Waits for the question first, because an answer to nothing is a protocol error to some
/// clients, and for the end of it afterwards, because closing on unread bytes resets the connection and destroys the
/// answer.
pub async fn reject<S: AsyncRead + AsyncWrite + Unpin>(mut socket: S, response: &[u8]) {
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
        let rejecting = tokio::spawn(async move { reject(server, &response("full", Some("http://a:1"))).await });
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        drop(client);
        rejecting.await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        assert!(head.contains("\r\nquorate-leader: http://a:1\r\n"), "{head}");
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert_eq!(problem.code, Code::Overloaded);
    }
}
