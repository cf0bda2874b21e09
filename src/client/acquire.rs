//! From what a worker wants to a permit it may use: asking, waiting, asking again.
//!
//! Invariants
//! - What is granted to somebody who has gone is given back: every question is asked by a task that outlives its caller.
//! - Nothing starts on a dead permit. A dead one is dropped and another one asked for, [`DEAD_MAX`] times in a row at most.
//! - What is let through without the cluster was asked for ([`OnUnavailable`]) and is counted.

use super::Client;
use super::ask::Ask;
use super::backoff::{Chance, after_denial};
use super::degrade::{not_free_now, too_late};
use super::error::Error;
use super::held::Held;
use super::local::spacing;
use super::options::{Lead, OnUnavailable};
use super::pass::Pass;
use super::permit::Fate;
use super::reservation::{DEAD_MAX, Place, Reservation};
use crate::api::Code;
use crate::clock::Deadline;
use std::time::Duration;
use tokio::time::sleep;

/// Time for a decision, however little patience there is with the wait for a slot.
const DECISION_MIN: Duration = Duration::from_secs(1);
/// Least time for one node, in a client that goes on without the cluster.
const DEGRADING_ATTEMPT_MIN: Duration = Duration::from_millis(500);

impl Client {
    /// Waits until a permit may be used, and takes it up: start the work as soon as this returns.
    ///
    /// Dropped before that, it gives the permit back.
    pub async fn acquire(&self, ask: impl Into<Ask>) -> Result<Pass, Error> {
        self.reserve(ask).await?.start().await
    }

    /// Takes a permit that is free now, or none. Never waits for a slot.
    pub async fn try_acquire(&self, ask: impl Into<Ask>) -> Result<Option<Pass>, Error> {
        match self.acquire(ask.into().at_once()).await {
            Ok(pass) => Ok(Some(pass)),
            Err(Error::RateLimited(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reserves a permit: comes back as soon as its slot is known. [`Reservation::start`] waits for it; dropped, it is given back.
    pub async fn reserve(&self, ask: impl Into<Ask>) -> Result<Reservation, Error> {
        let ask = ask.into();
        let patience = ask.max_wait.map(Deadline::after);
        let place = self.place(&ask, patience, 0).await?;
        Ok(Reservation { client: self.clone(), ask, patience, place })
    }

    /// A place for this question: asks until there is one. `dead` permits in a row have come too late before.
    pub(super) async fn place(&self, ask: &Ask, patience: Option<Deadline>, mut dead: u32) -> Result<Place, Error> {
        let left = || patience.map(|patience| patience.remaining());
        let (mut denials, mut asked) = (0, dead > 0);
        loop {
            if asked && left().is_some_and(|left| left.is_zero()) {
                return Err(too_late(ask, "that time is over"));
            }
            if dead >= DEAD_MAX {
                return Err(all_dead(&ask.key));
            }
            asked = true;
            let error = match self.put(ask, left()).await {
                // Whatever is not returned here is dropped, and so given back.
                Ok(held) => match held.permit().fate() {
                    Fate::Dead => {
                        self.shared.tally.dead.one();
                        dead += 1;
                        continue;
                    }
                    // The slot was free by the clock of a leader that was ahead of the one that answered.
                    Fate::Wait(wait) if ask.at_once => {
                        return Err(not_free_now(ask, wait, "the slot has not come yet"));
                    }
                    Fate::Wait(wait) if left().is_some_and(|left| wait > left) => {
                        return Err(too_late(ask, "the slot comes later"));
                    }
                    Fate::Wait(_) | Fate::Start => return Ok(Place::Cluster(Box::new(held))),
                },
                Err(error) => error,
            };
            match error {
                Error::RateLimited(problem) if ask.at_once => return Err(Error::RateLimited(problem)),
                Error::RateLimited(problem) => {
                    let pause = after_denial(&problem, denials, left(), Chance::draw());
                    let Some(pause) = pause else { return Err(too_late(ask, &problem.detail)) };
                    denials += 1;
                    sleep(pause).await;
                }
                // The slot is spent; another one may do.
                Error::Refused(problem) if problem.code == Code::Expired => {
                    self.shared.tally.dead.one();
                    dead += 1;
                }
                error if error.is_outage() => return self.without_cluster(ask, left(), error),
                error => return Err(error),
            }
        }
    }

    /// Puts the question once, unless its answer is known: a denial that still stands, an outage just met.
    async fn put(&self, ask: &Ask, left: Option<Duration>) -> Result<Held, Error> {
        let shared = &self.shared;
        if shared.options.denial_cache
            && let Some(problem) = shared.denials.standing(ask, shared.began.elapsed())
        {
            shared.tally.denied_from_memory.one();
            return Err(Error::RateLimited(Box::new(problem)));
        }
        let asking = self.asking()?;
        let client = self.with_patience(left);
        let lead = self.lead(ask, left);
        let worker = shared.options.worker.as_deref();
        let result = match client.held(ask.request(left, lead, worker), asking, left).await {
            // It may be our lead that can never be granted. Nothing was consumed, so the same may be asked for without it.
            Err(unsettled) if lead.is_some() && is_never(&unsettled.error) => {
                shared.rules.refuse_leads(ask, shared.began.elapsed());
                client.held(ask.request(left, None, worker), asking, left).await
            }
            result => result,
        };
        match result {
            Ok(held) => {
                self.learn_grant(ask, &held);
                Ok(held)
            }
            Err(unsettled) => {
                self.learn_error(ask, &unsettled.error);
                Err(unsettled.into())
            }
        }
    }

    /// This client, with as much patience as one question gets: less where it goes on without an answer, or where its caller waits
    /// no longer for a permit anyway.
    pub(super) fn with_patience(&self, left: Option<Duration>) -> Self {
        let options = &self.shared.options;
        let (mut timeout, mut attempt_timeout) = (self.timeout, self.attempt_timeout);
        if options.on_unavailable != OnUnavailable::Closed {
            timeout = timeout.min(options.degrade_after);
            // One node that hangs is no outage: there has to be time for another.
            let nodes = u32::try_from(self.shared.nodes.configured().len()).unwrap_or(u32::MAX);
            attempt_timeout = attempt_timeout.min((timeout / nodes).max(DEGRADING_ATTEMPT_MIN)).min(timeout);
        }
        if let Some(left) = left {
            timeout = timeout.min(left.max(DECISION_MIN));
        }
        Self { timeout, attempt_timeout, ..self.clone() }
    }

    /// What a grant teaches about the key.
    pub(super) fn learn_grant(&self, ask: &Ask, held: &Held) {
        let shared = &self.shared;
        shared.tally.granted.one();
        shared.outage.over();
        let grant = &held.permit().grant;
        if let Some(limit) = &grant.limit {
            shared.rules.learn(&ask.key, limit);
        }
        if matches!(shared.options.on_unavailable, OnUnavailable::Local { .. })
            && let Some(interval) = shared.rules.interval(ask)
        {
            let now = shared.began.elapsed();
            let next = now.saturating_add(grant.wait_ms.duration()).saturating_add(spacing(interval, ask.cost, 1.0));
            shared.local.granted(&ask.key, next, now);
        }
    }

    /// What it teaches that there was none.
    pub(super) fn learn_error(&self, ask: &Ask, error: &Error) {
        let shared = &self.shared;
        match error {
            Error::RateLimited(problem) => {
                shared.tally.denied.one();
                shared.denials.note(ask, problem, shared.began.elapsed());
                shared.outage.over();
            }
            Error::Refused(_) => shared.outage.over(),
            error if error.is_outage() => {
                let unknown = matches!(error, Error::OutcomeUnknown { .. });
                if unknown {
                    shared.tally.outcome_unknown.one();
                } else {
                    shared.tally.unavailable.one();
                }
                self.met_outage();
            }
            // A decision of the cluster, or this client's own doing.
            _ => {}
        }
    }

    /// How far ahead the slot shall lie. Never past the patience, and never farther than the limit reserves: that could never be
    /// granted.
    pub(super) fn lead(&self, ask: &Ask, left: Option<Duration>) -> Option<Duration> {
        if ask.at_once {
            return None;
        }
        let farthest = self.shared.rules.lead_max(ask, self.shared.began.elapsed())?;
        let lead = match self.shared.options.lead {
            Lead::Measured => self.shared.round_trip.lead()?,
            Lead::Fixed(lead) => lead,
            Lead::None => return None,
        };
        Some(left.map_or(lead, |left| lead.min(left)).min(farthest)).filter(|lead| !lead.is_zero())
    }
}

/// Whether the request can never be granted as it is.
pub(super) fn is_never(error: &Error) -> bool {
    matches!(error, Error::Refused(problem) if problem.code == Code::Never)
}

pub(super) fn all_dead(key: &str) -> Error {
    Error::Timeout {
        detail: format!(
            "{DEAD_MAX} permits of {key:?} in a row came too late to be used: the start window is too short for the way \
             between here and the cluster"
        ),
    }
}
