//! The short way: `POST /acquire` after `POST /acquire`, which is what nearly every connection carries, without the HTTP library.
//!
//! Invariants
//! - Only what is plain goes this way: see [`find`]. At the first request that is anything else the connection goes over to the
//!   library, from the first byte of that request, and stays there. What is wrong with a request is for the library to say.
//! - An answer has the headers that the library would give it.
//! - The deadlines of [`Guarded`] hold here as there; so does an orderly stop.
//!
//! Not here: what is decided and what is said of it (`acquire.rs`, `shell.rs`).

use super::app::App;
use super::route::Route;
use super::{acquire, shell, utc};
use crate::clock::wall_millis;
use crate::edge::{Guarded, Hangup, Phase, Socket};
use crate::limits::{BODY_BYTES_MAX, HEADER_BYTES_MAX};
use axum::response::Response;
use futures::FutureExt;
use http::HeaderMap;
use http_body_util::BodyExt;
use std::io::Write;
use std::pin::pin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

/// The first line of a request that goes this way.
const LINE: &[u8] = b"POST /acquire HTTP/1.1\r\n";
/// More headers than this go the long way.
const HEADERS_MAX: usize = 24;
/// Room that a read finds.
const READ_BYTES: usize = 1_024;
/// What a connection that rests keeps of its buffers.
const KEPT_BYTES: usize = 2_048;

/// What stands at the beginning of what a client has sent.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// A whole request, with the lengths of its head and of its body.
    Plain { head: usize, body: usize },
    /// Nothing, or the beginning of a head.
    Part,
    /// Something for the library.
    Other,
}

/// What all requests of a connection share.
pub(super) struct Express<'a> {
    pub(super) app: &'a App,
    pub(super) phase: &'a Phase,
    pub(super) hangup: &'a Hangup,
}

impl Express<'_> {
    /// Answers requests until the connection ends, or until one comes that is for the library: then gives the socket back, and what
    /// was read of it and not answered.
    pub(super) async fn serve(
        &self,
        mut socket: Guarded<Socket>,
        stopping: &watch::Receiver<bool>,
    ) -> Option<(Guarded<Socket>, Vec<u8>)> {
        let (mut input, mut output, mut dated) = (Vec::new(), Vec::new(), Dated::default());
        let mut stops = stopping.clone();
        let mut told_to_stop = pin!(async move {
            let _ = stops.wait_for(|stopping| *stopping).await;
        });
        loop {
            match find(&input) {
                Found::Other => return Some((socket, input)),
                Found::Plain { head, body } => {
                    let response = self.answer(&input[head..head + body]).await;
                    let ends = *stopping.borrow();
                    let text = dated.text(wall_millis() / 1_000);
                    put_answer(&mut output, response, (text, ends))?;
                    if let Err(error) = socket.write_all(&output).await {
                        tracing::debug!(%error, "a connection ended early");
                        return None;
                    }
                    if ends {
                        let _ = socket.shutdown().await;
                        return None;
                    }
                    input.drain(..head + body);
                    if !input.is_empty() {
                        self.phase.head();
                    }
                    for buffer in [&mut input, &mut output] {
                        buffer.shrink_to(KEPT_BYTES);
                    }
                }
                Found::Part => {
                    input.reserve(READ_BYTES);
                    let read = tokio::select! {
                        biased;
                        read = socket.read_buf(&mut input) => read,
                        // Half a head is for the library to end.
                        () = &mut told_to_stop => return (!input.is_empty()).then_some((socket, input)),
                    };
                    if !read.is_ok_and(|count| count > 0) {
                        return None;
                    }
                }
            }
        }
    }

    async fn answer(&self, body: &[u8]) -> Response {
        self.phase.busy();
        // Without a header that matters. Boxed, so that a connection without a request stays small.
        let handler =
            Box::pin(async { Ok(acquire::decided(self.app, (&HeaderMap::new(), body), Some(self.hangup)).await) });
        let response = shell::surround(self.app, Some(Route::Acquire), handler).await;
        self.phase.idle();
        response
    }
}

/// What the bytes begin with. Plain is a request with a body whose length is said and which is all there, and with no header that
/// means anything to a server beside that.
fn find(bytes: &[u8]) -> Found {
    let seen = bytes.len().min(LINE.len());
    if bytes[..seen] != LINE[..seen] {
        return Found::Other;
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let (head, headers) = match httparse::parse_headers(&bytes[seen..], &mut headers) {
        Ok(httparse::Status::Complete((length, headers))) if seen == LINE.len() => (seen + length, headers),
        Ok(_) if bytes.len() < HEADER_BYTES_MAX => return Found::Part,
        _ => return Found::Other,
    };
    let mut body = None;
    for header in headers {
        match Meaning::of(header) {
            Meaning::None => {}
            Meaning::Length(length) if body.is_none() => body = Some(length),
            Meaning::Length(_) | Meaning::Some => return Found::Other,
        }
    }
    match body {
        Some(body) if head <= HEADER_BYTES_MAX && bytes.len() >= head + body => Found::Plain { head, body },
        _ => Found::Other,
    }
}

/// What a header means to a server.
enum Meaning {
    /// Nothing.
    None,
    /// How long the body is.
    Length(usize),
    /// Something that the library knows about.
    Some,
}

impl Meaning {
    fn of(header: &httparse::Header<'_>) -> Self {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        match header.name.len() {
            2 if is("te") => Self::Some,
            6 if is("expect") => Self::Some,
            7 if is("upgrade") || is("trailer") => Self::Some,
            10 if is("connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => Self::Some,
            14 if is("content-length") => length(header.value).map_or(Self::Some, Self::Length),
            15 if is("idempotency-key") => Self::Some,
            17 if is("transfer-encoding") => Self::Some,
            _ => Self::None,
        }
    }
}

/// A length as nearly everybody writes it, of a body that is not too large.
fn length(text: &[u8]) -> Option<usize> {
    let is_plain = !text.is_empty() && text.len() <= 6 && text.iter().all(u8::is_ascii_digit);
    let length = is_plain.then(|| text.iter().fold(0, |length, digit| length * 10 + usize::from(*digit - b'0')))?;
    (length <= BODY_BYTES_MAX).then_some(length)
}

/// Writes an answer in place of what was there. `None` if it has no body that could be written, which no answer of ours is like.
fn put_answer(output: &mut Vec<u8>, response: Response, (date, ends): (&[u8], bool)) -> Option<()> {
    let (head, body) = response.into_parts();
    let whole = body.collect().now_or_never()?.ok()?.to_bytes();
    output.clear();
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(head.status.as_str().as_bytes());
    output.push(b' ');
    output.extend_from_slice(head.status.canonical_reason().unwrap_or("None").as_bytes());
    for (name, value) in &head.headers {
        put(output, name.as_str(), value.as_bytes());
    }
    if ends {
        put(output, "connection", b"close");
    }
    put(output, "date", date);
    // Writing into memory does not fail.
    let _ = write!(output, "\r\ncontent-length: {}\r\n\r\n", whole.len());
    output.extend_from_slice(&whole);
    Some(())
}

fn put(output: &mut Vec<u8>, name: &str, value: &[u8]) {
    output.extend_from_slice(b"\r\n");
    output.extend_from_slice(name.as_bytes());
    output.extend_from_slice(b": ");
    output.extend_from_slice(value);
}

/// The date of the second in which it was last asked for.
#[derive(Debug, Default)]
struct Dated {
    second: Option<u64>,
    text: String,
}

impl Dated {
    fn text(&mut self, second: u64) -> &[u8] {
        if self.second != Some(second) {
            self.text = utc::http_date(second);
            self.second = Some(second);
        }
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::respond;
    use http::StatusCode;

    const BODY: &str = r#"{"key":"k","limit":"1/6s"}"#;

    fn request(headers: &str) -> String {
        format!("POST /acquire HTTP/1.1\r\nHost: x\r\n{headers}\r\n{BODY}")
    }

    #[test]
    fn what_is_plain_is_found_whole_or_in_part() {
        for headers in [
            "content-length: 26\r\n",
            "Content-Length:26\r\nConnection: Keep-Alive\r\nAccept: */*\r\n",
            "CONTENT-LENGTH: 026\r\nContent-Type: text/plain\r\nUser-Agent: a\r\n",
        ] {
            let whole = request(headers);
            let head = whole.len() - BODY.len();
            assert_eq!(find(whole.as_bytes()), Found::Plain { head, body: 26 }, "{headers}");
            let two = format!("{whole}POST");
            assert_eq!(find(two.as_bytes()), Found::Plain { head, body: 26 }, "what comes behind it does not matter");
            for end in 0..whole.len() {
                // Whoever sends the body later is waited for by the library, which knows for how long.
                let expected = if end < head { Found::Part } else { Found::Other };
                assert_eq!(find(&whole.as_bytes()[..end]), expected, "{end} of {head}");
            }
        }
    }

    /// Two lengths, a length that is none, anything that changes what the bytes mean: nothing that two servers could read in two
    /// ways is read here at all.
    #[test]
    fn whatever_else_is_for_the_library() {
        for headers in [
            "",
            "content-length: 26\r\ncontent-length: 26\r\n",
            "content-length: 26\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\n",
            "content-length: +26\r\n",
            "content-length: 26, 26\r\n",
            "content-length: 0x1a\r\n",
            "content-length:\r\n",
            "content-length: 18446744073709551642\r\n",
            "content-length: 65537\r\n",
            "content-length: 26\r\nexpect: 100-continue\r\n",
            "content-length: 26\r\nconnection: close\r\n",
            "content-length: 26\r\nconnection: upgrade\r\nupgrade: x\r\n",
            "content-length: 26\r\nte: trailers\r\n",
            "content-length: 26\r\ntrailer: x\r\n",
            "content-length: 26\r\nIdempotency-Key: a\r\n",
            "content-length : 26\r\n",
            "content-length: 26\r\n folded: x\r\n",
            "content-length: 26\nno return\n",
            "\0: x\r\ncontent-length: 26\r\n",
        ] {
            assert_eq!(find(request(headers).as_bytes()), Found::Other, "{headers:?}");
        }
        let many = "a: b\r\n".repeat(HEADERS_MAX);
        let long = format!("a: {}\r\n", "b".repeat(HEADER_BYTES_MAX));
        for headers in [many, long] {
            assert_eq!(find(request(&format!("{headers}content-length: 26\r\n")).as_bytes()), Found::Other);
        }
        let endless = format!("POST /acquire HTTP/1.1\r\na: {}", "b".repeat(HEADER_BYTES_MAX));
        assert_eq!(find(endless.as_bytes()), Found::Other);
        for line in [
            "GET /acquire HTTP/1.1",
            "POST /acquire/batch HTTP/1.1",
            "POST /acquire?x HTTP/1.1",
            "POST /acquire HTTP/1.0",
            "POST  /acquire HTTP/1.1",
            "\r\nPOST /acquire HTTP/1.1",
            "post /acquire HTTP/1.1",
            "POST http://x/acquire HTTP/1.1",
        ] {
            let request = format!("{line}\r\ncontent-length: 26\r\n\r\n{BODY}");
            assert_eq!(find(request.as_bytes()), Found::Other, "{line}");
        }
    }

    #[test]
    fn answers_read_as_the_library_would_write_them() {
        let mut output = b"of before".to_vec();
        put_answer(&mut output, respond::text(StatusCode::TOO_MANY_REQUESTS, "no"), (b"then", false)).unwrap();
        let text = String::from_utf8(output.clone()).unwrap();
        let expected = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain; charset=utf-8\r\ndate: then\r\ncontent-length: 2\r\n\r\nno";
        assert_eq!(text, expected);
        put_answer(&mut output, respond::text(StatusCode::OK, ""), (b"then", true)).unwrap();
        assert!(String::from_utf8(output).unwrap().contains("\r\nconnection: close\r\n"));
        let mut dated = Dated::default();
        assert_eq!(dated.text(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(dated.text(784_111_778), b"Sun, 06 Nov 1994 08:49:38 GMT");
    }
}
