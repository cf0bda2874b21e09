//! A lease in the hands of its holder: renewed while the work goes on, given back when it is done.
//!
//! Invariants
//! - The deadline counts from the send of the request that the last answer belongs to, never from its receipt.
//! - A lease that was not renewed by its deadline is lost, whatever the cluster thinks of it: nobody here can know.
//! - Every call may be dropped halfway and made again: a renewal means the same when it is done twice.
//!
//! Not here: what becomes of the work when the lease is lost (whoever does it decides that).

use super::error::Error;
use super::{Client, Permit};
use crate::api::{Code, Kind, Limit, ReleaseResponse};
use crate::clock::Stopwatch;
use std::time::Duration;
use thiserror::Error;
use tokio::time::sleep;

/// A lease is renewed this often within its length: two renewals may fail before it is lost.
const RENEWALS: u32 = 3;
/// One attempt may take this part of the length, so that a node that hangs does not cost the lease.
const ATTEMPTS: u32 = 6;
/// Less than this is no attempt.
const ATTEMPT_MIN: Duration = Duration::from_millis(50);
/// Pauses within the length of a lease after renewals that failed, and their bounds.
const PAUSES: u32 = 20;
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Least patience with a release: past the deadline the place may be taken still, if the cluster lost time.
const RELEASE_MIN: Duration = Duration::from_secs(1);

/// A lease that can be kept.
#[derive(Debug, Clone)]
pub struct Lease {
    client: Client,
    key: String,
    permit: u64,
    /// Counts from the send of the last request that was answered.
    sent: Stopwatch,
    /// How long after that the holder has to be done.
    length: Duration,
}

/// The holder can no longer rely on the lease: somebody else may have its place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Lost {
    /// The cluster says that it is over.
    #[error("{0}")]
    Over(String),
    /// It was not renewed by its deadline. The cluster may still hold it.
    #[error("it could not be renewed in time: {0}")]
    Late(String),
}

impl Permit {
    /// The lease that this permit is, to be kept through `client`; `None` if it is another kind of permit.
    pub fn lease(&self, client: &Client) -> Option<Lease> {
        let Some(Limit::Members(members)) = &self.grant.limit else { return None };
        let (sent, length) = self.start_within.filter(|_| members.kind == Some(Kind::Concurrency))?;
        Some(Lease { client: client.clone(), key: self.grant.key.clone(), permit: self.grant.permit, sent, length })
    }
}

impl Lease {
    /// How long the lease can still be relied on.
    pub fn left(&self) -> Duration {
        self.length.saturating_sub(self.sent.elapsed())
    }

    /// Renews the lease again and again. Comes back only when it is lost, at its deadline at the latest.
    pub async fn keep(&mut self) -> Lost {
        loop {
            sleep((self.length / RENEWALS).saturating_sub(self.sent.elapsed())).await;
            if let Err(lost) = self.renew_within(self.left()).await {
                return lost;
            }
        }
    }

    /// Tries to renew a lease past its deadline, until the cluster has said whether it still holds it.
    pub async fn recover(&mut self) -> Result<(), Lost> {
        loop {
            match self.renew_within(self.client.timeout).await {
                Err(Lost::Late(_)) => {}
                settled => return settled,
            }
        }
    }

    /// Gives the lease back. Tries no longer than it would last anyway, or a moment.
    pub async fn release(&self) -> Result<ReleaseResponse, Error> {
        let patience = self.left().max(RELEASE_MIN).min(self.client.timeout);
        self.patient(patience).release(&self.key, self.permit).await
    }

    async fn renew_within(&mut self, patience: Duration) -> Result<(), Lost> {
        let begun = Stopwatch::start();
        let mut last = "nobody was asked".to_owned();
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Lost::Late(last));
            }
            let sent = Stopwatch::start();
            match self.patient(left).renew(&self.key, self.permit).await {
                Ok(answer) => {
                    (self.sent, self.length) = (sent, answer.start_before_ms.duration());
                    return Ok(());
                }
                Err(Error::Refused(problem)) if problem.code == Code::NoPermit => {
                    return Err(Lost::Over(problem.detail));
                }
                Err(error) => last = error.to_string(),
            }
            sleep((self.length / PAUSES).clamp(PAUSE_MIN, PAUSE_MAX).min(left)).await;
        }
    }

    /// The client with no more patience than this, and little with a single node.
    fn patient(&self, timeout: Duration) -> Client {
        let attempt = (self.length / ATTEMPTS).max(ATTEMPT_MIN);
        let attempt_timeout = attempt.min(self.client.attempt_timeout).min(timeout);
        Client { timeout, attempt_timeout, ..self.client.clone() }
    }
}
