//! Reading a whole request body within its size and its time.

use crate::api::{Code, Problem};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use std::time::Duration;
use tokio::time::timeout;

/// Why there is no body.
#[derive(Debug, PartialEq, Eq)]
pub enum BodyError {
    /// Over the bound, in bytes.
    TooLarge(usize),
    /// Not all of it came in time.
    TooSlow(Duration),
    /// The connection or its chunks broke.
    Broken(String),
}

impl BodyError {
    /// The same as a problem.
    pub fn problem(&self) -> Problem {
        match self {
            Self::TooLarge(most) => {
                Problem::new(Code::TooLarge, format!("a body has at most {most} bytes, this one has more"))
            }
            Self::TooSlow(within) => {
                Problem::new(Code::BadRequest, format!("the body did not arrive in time: all of it within {within:?}"))
            }
            Self::Broken(why) => Problem::new(Code::BadRequest, format!("the body broke off: {why}")),
        }
    }
}

/// The whole body, of at most `most` bytes.
pub async fn read_up_to(most: usize, within: Duration, body: Incoming) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > most as u64 {
        return Err(BodyError::TooLarge(most));
    }
    timeout(within, collect(most, body)).await.unwrap_or(Err(BodyError::TooSlow(within)))
}

async fn collect(most: usize, mut body: Incoming) -> Result<Bytes, BodyError> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > most {
            return Err(BodyError::TooLarge(most));
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}
