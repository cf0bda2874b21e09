//! Reading a request body within its size and its time.

use super::options::Options;
use super::respond;
use crate::api::{Code, Problem};
use crate::limits::BODY_BYTES_MAX;
use axum::body::HttpBody;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use http::header::{CONNECTION, EXPECT};
use http::request::Parts;
use http_body_util::BodyExt;
use std::fmt::Display;
use tokio::time::timeout;

/// How much of an oversized body is read and thrown away. Most clients send all of it before they look for an answer:
/// closed in the middle, they would see a broken connection in place of the 413.
const DISCARDED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why there is no body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// Over the bound, in bytes.
    TooLarge(usize),
    /// Not all of it came in time.
    TooSlow,
    /// The connection or its chunks broke.
    Broken(String),
}

impl BodyError {
    /// The answer. The connection ends with it: the rest of the body may still be on its way.
    pub(super) fn response(&self, options: &Options) -> Response {
        let problem = match self {
            Self::TooLarge(most) => {
                Problem::new(Code::TooLarge, format!("a body has at most {most} bytes, this one has more"))
            }
            Self::TooSlow => Problem::new(
                Code::BadRequest,
                format!("the body did not arrive in time: all of it within {:?}", options.body_timeout),
            ),
            Self::Broken(why) => Problem::new(Code::BadRequest, format!("the body broke off: {why}")),
        };
        let mut response = respond::problem(&problem);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

/// The whole body, of the size of one request.
pub(super) async fn read<B>(parts: &Parts, body: B, options: &Options) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    read_up_to(BODY_BYTES_MAX, parts, body, options).await
}

/// The whole body, of at most `most` bytes.
pub(super) async fn read_up_to<B>(
    most: usize,
    parts: &Parts,
    mut body: B,
    options: &Options,
) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    let announced = body.size_hint().lower();
    let read = if announced > most as u64 {
        Err(BodyError::TooLarge(most))
    } else {
        timeout(options.body_timeout, collect(most, &mut body)).await.unwrap_or(Err(BodyError::TooSlow))
    };
    // A client that asks first is told before it sends anything: not polling the body keeps the "100 Continue" back.
    if matches!(read, Err(BodyError::TooLarge(_))) && !parts.headers.contains_key(EXPECT) {
        let _ = timeout(options.body_timeout, discard(&mut body)).await;
    }
    read
}

async fn collect<B>(most: usize, body: &mut B) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    let mut all = BytesMut::new();
    while let Some(data) = next(body).await? {
        if all.len() + data.len() > most {
            return Err(BodyError::TooLarge(most));
        }
        // Nearly every body comes in one piece and need not be copied.
        if all.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// The next piece of the body; trailers are not ours.
async fn next<B>(body: &mut B) -> Result<Option<Bytes>, BodyError>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

async fn discard<B>(body: &mut B)
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
    let mut discarded = 0;
    while discarded < DISCARDED_BYTES_MAX {
        match next(body).await {
            Ok(Some(data)) => discarded += data.len(),
            Ok(None) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use futures::stream;
    use std::convert::Infallible;
    use std::time::Duration;

    fn parts() -> Parts {
        http::Request::new(()).into_parts().0
    }

    /// A body of so many pieces of so many bytes, which announces no length.
    fn pieces(count: usize, bytes: usize) -> Body {
        let piece = Bytes::from(vec![b' '; bytes]);
        Body::from_stream(stream::iter((0..count).map(move |_| Ok::<_, Infallible>(piece.clone()))))
    }

    #[tokio::test]
    async fn pieces_are_put_together_up_to_the_bound_and_not_a_byte_more() {
        let options = Options::default();
        for (body, expected) in [
            (Body::empty(), Ok(0)),
            (pieces(3, 10), Ok(30)),
            (pieces(64, 1_024), Ok(BODY_BYTES_MAX)),
            (pieces(64, 1_025), Err(BodyError::TooLarge(BODY_BYTES_MAX))),
            (Body::from(vec![b' '; BODY_BYTES_MAX]), Ok(BODY_BYTES_MAX)),
            (Body::from(vec![b' '; BODY_BYTES_MAX + 1]), Err(BodyError::TooLarge(BODY_BYTES_MAX))),
            (pieces(10 * 1_024, 1_024), Err(BodyError::TooLarge(BODY_BYTES_MAX))),
        ] {
            assert_eq!(read(&parts(), body, &options).await.map(|bytes| bytes.len()), expected);
        }
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_given_up() {
        let options = Options { body_timeout: Duration::from_millis(20), ..Options::default() };
        let dripping = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        assert_eq!(read(&parts(), dripping, &options).await, Err(BodyError::TooSlow));
        let broken = Body::from_stream(stream::iter([Err::<Bytes, _>("gone")]));
        assert_eq!(read(&parts(), broken, &options).await, Err(BodyError::Broken("gone".to_owned())));
    }
}
