//! Holding one request until its slot has come.
//!
//! How long a request is held has two parts: what its permit asked for (the wait for the slot, and for a reservation where the
//! limit had none left), and what this proxy and the way to the cluster added. They are measured apart.

use super::errands::Errands;
use super::lines::{Lines, Place};
use super::options::Options;
use super::refusal::Refusal;
use crate::api::{AcquireRequest, Code, Kind, Limit, Millis, Problem, Reason};
use crate::client::Error;
use crate::clock::Stopwatch;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Permits that may come too late one after the other before something must be wrong with the window.
const EXPIRED_MAX: u32 = 5;
/// Least pause before a limit without a free reservation is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Holds requests.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    options: Arc<Options>,
    errands: Errands,
    lines: Lines,
}

/// How long a request was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    /// In all.
    pub(super) all: Duration,
    /// What its permit asked for.
    pub(super) asked_for: Duration,
}

impl Held {
    /// What this proxy and the way to the cluster added.
    pub(super) fn overhead(&self) -> Duration {
        self.all.saturating_sub(self.asked_for)
    }
}

impl Holder {
    pub(super) fn new(options: Arc<Options>, errands: Errands) -> Self {
        Self { options, errands, lines: Lines::default() }
    }

    /// Comes back when the request may be passed on. Dropped before that, it gives back what it has.
    pub(super) async fn hold(&self, key: &str) -> Result<Held, Refusal> {
        let watch = Stopwatch::start();
        let mut asked_for = Duration::ZERO;
        let mut expired = 0;
        let mut place = None;
        if self.lines.any(key) {
            place = Some(self.stand(key, &watch).await?);
            asked_for += watch.elapsed();
        }
        loop {
            let left = self.options.max_wait.saturating_sub(watch.elapsed());
            match self.errands.ask(key, self.request(key, left)).answer().await {
                Ok(held) => {
                    // The next one of the line may ask while this one waits for its slot.
                    place = None;
                    let Some(permit) = held.permit() else { continue };
                    if is_lease(permit.grant.limit.as_ref()) {
                        return Err(Refusal::Refused(Box::new(no_leases(key))));
                    }
                    asked_for += permit.grant.wait_ms.duration();
                    let in_time = permit.wait().await.is_ok();
                    held.done();
                    if in_time {
                        return Ok(Held { all: watch.elapsed(), asked_for });
                    }
                    expired += 1;
                    if expired >= EXPIRED_MAX {
                        return Err(Refusal::Expired(expired));
                    }
                }
                Err(Error::RateLimited(problem)) if problem.reason.is_some_and(is_for_want_of_a_place) => {
                    let pause = problem.retry_after_ms.map_or(PAUSE_MIN, Millis::duration).max(PAUSE_MIN);
                    let begun = Stopwatch::start();
                    if pause > left {
                        return Err(Refusal::TooLong(problem));
                    }
                    if place.is_some() {
                        sleep(pause).await;
                    } else {
                        place = Some(self.stand(key, &watch).await?);
                    }
                    asked_for += begun.elapsed();
                }
                Err(Error::Refused(problem)) if problem.code == Code::Expired && expired < EXPIRED_MAX => expired += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn stand(&self, key: &str, watch: &Stopwatch) -> Result<Place, Refusal> {
        let left = self.options.max_wait.saturating_sub(watch.elapsed());
        timeout(left, self.lines.stand(key)).await.map_err(|_| {
            let detail = format!("nothing became free within {:?}", self.options.max_wait);
            let retry_after = Millis::up_from_ns(1_000_000_000);
            Refusal::TooLong(Box::new(Problem::denied(key, Reason::WouldWaitTooLong, retry_after, detail)))
        })
    }

    fn request(&self, key: &str, left: Duration) -> AcquireRequest {
        AcquireRequest {
            limit: self.options.limit.clone(),
            max_wait_ms: Some(Millis::up_from(left)),
            worker: Some("proxy".to_owned()),
            ..AcquireRequest::new(key)
        }
    }
}

/// Whether waiting could help. A place in flight becomes free when somebody's work ends, which a proxy does not keep.
const fn is_for_want_of_a_place(reason: Reason) -> bool {
    matches!(reason, Reason::ReservationsFull | Reason::WindowFull)
}

/// Whether a limit bounds what is in flight and not what starts.
pub(super) fn is_lease(limit: Option<&Limit>) -> bool {
    matches!(limit, Some(Limit::Members(members)) if members.kind == Some(Kind::Concurrency))
}

fn no_leases(key: &str) -> Problem {
    let detail = "the stored policy of this key limits what is in flight, which a proxy cannot keep: it knows when requests \
                  start, not when their work ends";
    Problem::new(Code::Never, detail).about(key)
}
