//! A permit in the hands of a worker: when it may start, and until when.

use crate::api::{AcquireResponse, Millis};
use crate::clock::{Deadline, Stopwatch};
use std::time::Duration;
use thiserror::Error;
use tokio::time::sleep_until;

/// A granted permit with its times on this process's own clock.
#[derive(Debug, Clone)]
pub struct Permit {
    /// What the cluster answered.
    pub grant: AcquireResponse,
    /// The id it was granted under.
    pub request_id: String,
    /// Counts from the receipt of the answer.
    start_after: Deadline,
    /// Counts from the first send; `None` when it does not expire.
    pub(super) start_within: Option<(Stopwatch, Duration)>,
}

/// The permit can no longer be used. Its slot is spent: discard it and ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the start window of the permit is over")]
pub struct TooLate;

impl Permit {
    /// To be called as soon as the answer is there: the wait begins here.
    pub(super) fn new(grant: AcquireResponse, request_id: String, asked: Stopwatch, sends: u32) -> Self {
        let start_after = Deadline::after(grant.wait_ms.duration());
        // A grant that is remembered from before our own first send was asked for by somebody else under the same id, at
        // an instant that we do not know. Its window may be over: count it as over.
        let others = grant.replayed && sends <= 1;
        let within = |window: Millis| (asked, if others { Duration::ZERO } else { window.duration() });
        Self { start_after, start_within: grant.start_before_ms.map(within), request_id, grant }
    }

    /// Sleeps until the permit may be used; never wakes early.
    pub async fn wait(&self) -> Result<(), TooLate> {
        sleep_until(self.start_after.instant()).await;
        self.check()
    }

    /// Whether the permit has not expired at this instant.
    pub fn check(&self) -> Result<(), TooLate> {
        match self.start_within {
            Some((asked, window)) if asked.elapsed() > window => Err(TooLate),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(wait: &str, start_before: Option<u64>, replayed: bool, sends: u32, asked: Stopwatch) -> Permit {
        let text = format!(r#"{{"granted":true,"key":"k","permit":1,"slot_ms":0,"wait_ms":{wait},"reserved":0}}"#);
        let mut grant: AcquireResponse = serde_json::from_str(&text).unwrap();
        grant.start_before_ms = start_before.map(|ms| Millis::down_from_ns(ms * 1_000_000));
        grant.replayed = replayed;
        Permit::new(grant, "id".to_owned(), asked, sends)
    }

    #[tokio::test]
    async fn waits_count_from_the_receipt() {
        let asked = Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let received = Stopwatch::start();
        assert_eq!(permit("30.5", None, false, 1, asked).wait().await, Ok(()));
        assert!(received.elapsed() >= Duration::from_micros(30_500));
    }

    #[tokio::test]
    async fn deadlines_count_from_the_first_send() {
        let asked = Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(permit("0", Some(19), false, 1, asked).wait().await, Err(TooLate));
        assert_eq!(permit("0", Some(60_000), false, 3, asked).wait().await, Ok(()));
        assert_eq!(permit("0", Some(60_000), true, 2, asked).wait().await, Ok(()), "our own retry");
        assert_eq!(permit("1", Some(60_000), true, 1, asked).wait().await, Err(TooLate), "somebody else's");
        assert_eq!(permit("0", None, true, 1, asked).wait().await, Ok(()), "it never expires");
    }
}
