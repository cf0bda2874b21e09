//! A permit in the hands of a worker: when it may start, and until when.
//!
//! Two instants, and never the other way round: the wait counts from the **receipt** of the answer, the deadline from the
//! **first send** of the request. Both err on the safe side (`docs/GUARANTEES.md`).

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

/// What can be done with a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its slot comes in this long, within the window.
    Wait(Duration),
    /// Start now.
    Start,
    /// It cannot be used any more, or will not be when its slot comes.
    Dead,
}

/// What can be done with a permit whose slot comes in `until_slot`, of a request first sent `since_sent` ago, that has to start
/// within `window` of that.
fn fate(since_sent: Duration, until_slot: Duration, window: Option<Duration>) -> Fate {
    if window.is_some_and(|window| since_sent.saturating_add(until_slot) > window) {
        Fate::Dead
    } else if until_slot.is_zero() {
        Fate::Start
    } else {
        Fate::Wait(until_slot)
    }
}

impl Permit {
    /// To be called as soon as the answer is there: the wait begins here.
    ///
    /// `retried`: the id was made for this very question, and an attempt under it came before the last. Then a grant that is
    /// remembered is that attempt's. Any other was asked for at an instant that we do not know, perhaps by an earlier call under
    /// the same id. Its window may be over: it is counted as over.
    pub(super) fn new(grant: AcquireResponse, request_id: String, asked: Stopwatch, retried: bool) -> Self {
        let start_after = Deadline::after(grant.wait_ms.duration());
        let others = grant.replayed && !retried;
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

    /// What can be done with it at this instant.
    pub(super) fn fate(&self) -> Fate {
        let until_slot = self.start_after.remaining();
        match self.start_within {
            None => fate(Duration::ZERO, until_slot, None),
            Some((asked, window)) => fate(asked.elapsed(), until_slot, Some(window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(wait: &str, start_before: Option<u64>, replayed: bool, retried: bool, asked: Stopwatch) -> Permit {
        let text = format!(r#"{{"granted":true,"key":"k","permit":1,"slot_ms":0,"wait_ms":{wait},"reserved":0}}"#);
        let mut grant: AcquireResponse = serde_json::from_str(&text).unwrap();
        grant.start_before_ms = start_before.map(|ms| Millis::down_from_ns(ms * 1_000_000));
        grant.replayed = replayed;
        Permit::new(grant, "id".to_owned(), asked, retried)
    }

    #[tokio::test]
    async fn waits_count_from_the_receipt() {
        let asked = Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let received = Stopwatch::start();
        assert_eq!(permit("30.5", None, false, false, asked).wait().await, Ok(()));
        assert!(received.elapsed() >= Duration::from_micros(30_500));
    }

    #[tokio::test]
    async fn deadlines_count_from_the_first_send() {
        let asked = Stopwatch::start();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(permit("0", Some(19), false, false, asked).wait().await, Err(TooLate));
        assert_eq!(permit("0", Some(60_000), false, true, asked).wait().await, Ok(()));
        assert_eq!(permit("0", Some(60_000), true, true, asked).wait().await, Ok(()), "our own retry");
        assert_eq!(permit("1", Some(60_000), true, false, asked).wait().await, Err(TooLate), "somebody else's");
        assert_eq!(permit("0", None, true, false, asked).wait().await, Ok(()), "it never expires");
    }

    #[test]
    fn a_permit_is_dead_as_soon_as_its_slot_lies_past_its_window() {
        let ms = Duration::from_millis;
        assert_eq!(fate(ms(3), Duration::ZERO, None), Fate::Start);
        assert_eq!(fate(ms(3), ms(9), None), Fate::Wait(ms(9)));
        assert_eq!(fate(ms(3), ms(9), Some(ms(12))), Fate::Wait(ms(9)));
        assert_eq!(fate(ms(4), ms(9), Some(ms(12))), Fate::Dead, "nobody has to wait to know that");
        assert_eq!(fate(ms(12), Duration::ZERO, Some(ms(12))), Fate::Start, "the last instant");
        assert_eq!(fate(ms(13), Duration::ZERO, Some(ms(12))), Fate::Dead);
        assert_eq!(fate(Duration::MAX, ms(1), Some(Duration::MAX)), Fate::Wait(ms(1)), "no overflow");
        assert_eq!(permit("0", Some(60_000), true, false, Stopwatch::start()).fate(), Fate::Dead, "somebody else's");
    }
}
