//! One connection that asks and reads the answer: HTTP/1.1 or the protocol of Redis.
//!
//! Only what the asked servers say is understood: HTTP with a length, replies of Redis that are lines. Anything else ends the
//! measurement with an error instead of a wrong figure.

use super::dialect::Response;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a connection may take to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const HEADERS_MAX: usize = 32;

/// A connection.
#[derive(Debug)]
pub(super) struct Wire {
    socket: TcpStream,
    http: bool,
    buffer: Vec<u8>,
    filled: usize,
    /// Where the last answer ends.
    taken: usize,
}

/// Where an answer stands in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    status: u16,
    body: usize,
    end: usize,
}

impl Wire {
    pub(super) async fn connect(address: SocketAddr, http: bool) -> io::Result<Self> {
        let socket = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(address)).await??;
        socket.set_nodelay(true)?;
        Ok(Self { socket, http, buffer: vec![0; 64 * 1024], filled: 0, taken: 0 })
    }

    /// Sends a request and reads its answer.
    pub(super) async fn ask(&mut self, request: &[u8]) -> io::Result<Response<'_>> {
        self.buffer.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        self.socket.write_all(request).await?;
        loop {
            let found =
                if self.http { http(&self.buffer[..self.filled])? } else { redis(&self.buffer[..self.filled])? };
            if let Some(Found { status, body, end }) = found {
                self.taken = end;
                return Ok(Response { status, body: &self.buffer[body..end] });
            }
            if self.filled == self.buffer.len() {
                self.buffer.resize(2 * self.filled, 0);
            }
            match self.socket.read(&mut self.buffer[self.filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => self.filled += more,
            }
        }
    }
}

/// A whole answer at the beginning of the bytes, if there is one.
fn http(bytes: &[u8]) -> io::Result<Option<Found>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(body) = parsed else { return Ok(None) };
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: Option<usize> = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let Some(length) = length else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without a length"));
    };
    let end = body + length;
    Ok((end <= bytes.len()).then_some(Found { status: response.code.unwrap_or(0), body, end }))
}

/// A whole reply at the beginning of the bytes: a line, or an array of lines.
fn redis(bytes: &[u8]) -> io::Result<Option<Found>> {
    let line = |from: usize| {
        let end = bytes[from..].windows(2).position(|pair| pair == b"\r\n")?;
        Some(from + end + 2)
    };
    let Some(mut end) = line(0) else { return Ok(None) };
    let status = if bytes[0] == b'-' { 500 } else { 200 };
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok().and_then(|text| text.parse::<usize>().ok());
    let more = match bytes[0] {
        b'*' => number(),
        // A text of that length, which has no line end in what is asked here.
        b'$' => Some(1),
        b'-' | b'+' | b':' => Some(0),
        _ => None,
    };
    let Some(more) = more else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no reply that is expected here"));
    };
    for _ in 0..more {
        match line(end) {
            Some(next) => end = next,
            None => return Ok(None),
        }
    }
    Ok(Some(Found { status, body: 0, end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_when_they_are_whole() {
        let whole = b"HTTP/1.1 429 Too Many\r\nContent-Length: 5\r\n\r\nhello";
        for cut in 0..whole.len() {
            assert_eq!(http(&whole[..cut]).unwrap(), None);
        }
        assert_eq!(http(whole).unwrap(), Some(Found { status: 429, body: 44, end: 49 }));
        assert!(http(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
        assert!(http(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn replies_are_found_when_they_are_whole() {
        for (reply, status) in
            [(&b"*2\r\n:1\r\n:0\r\n"[..], 200), (b"-ERR no\r\n", 500), (b"+OK\r\n", 200), (b"$3\r\nabc\r\n", 200)]
        {
            for cut in 0..reply.len() {
                assert_eq!(redis(&reply[..cut]).unwrap(), None);
            }
            assert_eq!(redis(reply).unwrap(), Some(Found { status, body: 0, end: reply.len() }));
        }
        assert!(redis(b"?\r\n").is_err() && redis(b"*x\r\n").is_err());
    }
}
