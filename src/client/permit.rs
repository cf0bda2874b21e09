//! A permit in the hands of a worker: when it may start, and until when.

use crate::api::{AcquireResponse, Millis};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

/// A granted permit with its times on this process's own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// What the cluster answered.
    pub grant: AcquireResponse,
    /// The id it was granted under.
    pub request_id: String,
    /// Start no earlier.
    pub start_after: Instant,
    /// Discard it past this; `None` when it does not expire.
    pub start_before: Option<Instant>,
}

/// The permit can no longer be used. Its slot is spent: discard it and ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the start window of the permit is over")]
pub struct TooLate;

impl Permit {
    pub(super) fn new(
        grant: AcquireResponse,
        request_id: String,
        first_sent: Instant,
        received: Instant,
        sends: u32,
    ) -> Self {
        // A grant that is remembered from before our own first send was asked for by somebody else under the same id, at
        // an instant that we do not know. Its deadline may have passed: count it as passed.
        let first_sent = if grant.replayed && sends <= 1 { None } else { Some(first_sent) };
        let deadline = |window: Millis| first_sent.map_or(received, |sent| sent + window.duration());
        Self {
            start_after: received + grant.wait_ms.duration(),
            start_before: grant.start_before_ms.map(deadline),
            request_id,
            grant,
        }
    }

    /// Sleeps until the permit may be used; never wakes early.
    pub async fn wait(&self) -> Result<(), TooLate> {
        sleep_until(self.start_after).await;
        self.check()
    }

    /// Whether the permit has not expired at this instant.
    pub fn check(&self) -> Result<(), TooLate> {
        match self.start_before {
            Some(deadline) if Instant::now() > deadline => Err(TooLate),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn permit(wait: &str, start_before: Option<u64>, replayed: bool, sends: u32, age: Duration) -> Permit {
        let text = format!(r#"{{"granted":true,"key":"k","permit":1,"slot_ms":0,"wait_ms":{wait},"reserved":0}}"#);
        let mut grant: AcquireResponse = serde_json::from_str(&text).unwrap();
        grant.start_before_ms = start_before.map(|ms| Millis::down_from_ns(ms * 1_000_000));
        grant.replayed = replayed;
        let received = Instant::now();
        Permit::new(grant, "id".to_owned(), received.checked_sub(age).unwrap(), received, sends)
    }

    #[tokio::test]
    async fn waits_count_from_the_receipt() {
        let before = Instant::now();
        let permit = permit("30.5", None, false, 1, Duration::from_secs(1));
        assert_eq!(permit.wait().await, Ok(()));
        assert!(before.elapsed() >= Duration::from_micros(30_500));
    }

    #[tokio::test]
    async fn deadlines_count_from_the_first_send() {
        assert_eq!(permit("0", Some(900), false, 1, Duration::from_secs(1)).wait().await, Err(TooLate));
        assert_eq!(permit("0", Some(60_000), false, 3, Duration::from_secs(1)).wait().await, Ok(()));
        assert_eq!(permit("0", Some(60_000), true, 2, Duration::from_secs(1)).wait().await, Ok(()), "our own retry");
        assert_eq!(permit("1", Some(60_000), true, 1, Duration::ZERO).wait().await, Err(TooLate), "somebody else's");
        assert_eq!(permit("0", None, true, 1, Duration::ZERO).wait().await, Ok(()), "it never expires");
    }
}
