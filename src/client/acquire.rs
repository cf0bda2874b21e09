//! From what a worker wants to a permit it may use: asking, waiting, asking again.
//!
//! Invariants
//! - What is granted to somebody who has gone is given back: every question is asked by a task that outlives its caller.
//! - Nothing starts on a dead permit. A dead one is dropped and another one asked for, [`DEAD_MAX`] times in a row at most.
//! - What is let through without the cluster was asked for ([`OnUnavailable`]) and is counted.

use super::Client;
use super::ask::Ask;
use super::backoff::{Chance, after_denial};
use super::error::Error;
use super::exchange::Exchange;
use super::held::Held;
use super::local::{TooFar, spacing};
use super::options::{Lead, OnUnavailable};
use super::pass::Pass;
use super::permit::{Fate, Permit};
use super::reservation::{DEAD_MAX, Place, Reservation};
use super::settle::{Effect, Unwanted};
use crate::api::{AcquireRequest, AcquireResponse, Code, Millis, Problem, Reason};
use crate::clock::Deadline;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::time::{sleep, timeout};

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

    /// Asks for a permit and comes back with the answer, whenever its slot may come: for those who look after the rest
    /// themselves. Without a request id the request gets a random one.
    ///
    /// Dropped, it may leave a permit behind that nobody uses.
    pub async fn request(&self, request: AcquireRequest) -> Result<Permit, Error> {
        self.request_while_wanted(request, &|| false).await
    }

    async fn request_while_wanted(&self, mut request: AcquireRequest, unwanted: Unwanted<'_>) -> Result<Permit, Error> {
        if request.all_of.is_some() {
            return Err(Error::Misuse("this client asks for one key at a time: no all_of".to_owned()));
        }
        let request_id = match request.request_id.take() {
            Some(id) => id,
            None => super::random_id()?,
        };
        request.request_id = Some(request_id.clone());
        let exchange = Exchange::post("/acquire", &request)?;
        let effect = Effect::Permit(&request_id);
        let settled = self.ask_while_wanted::<AcquireResponse>(&exchange, effect, unwanted).await?;
        Ok(Permit::new(settled.answer, request_id, settled.first_send, settled.sends))
    }

    /// A place for this question: asks until there is one. `dead` permits in a row have come too late before.
    pub(super) async fn place(&self, ask: &Ask, patience: Option<Deadline>, mut dead: u32) -> Result<Place, Error> {
        let (mut denials, mut asked) = (0, dead > 0);
        loop {
            let left = patience.map(|patience| patience.remaining());
            if asked && left.is_some_and(|left| left.is_zero()) {
                let detail = format!("no permit of {:?} within {:?}", ask.key, ask.max_wait.unwrap_or_default());
                return Err(Error::Timeout { detail });
            }
            if dead >= DEAD_MAX {
                return Err(Error::Timeout {
                    detail: format!(
                        "{DEAD_MAX} permits of {:?} in a row came too late to be used: the start window is too short for \
                         the way between here and the cluster",
                        ask.key
                    ),
                });
            }
            asked = true;
            let error = match self.put(ask, left).await {
                Ok(held) if held.permit().fate() != Fate::Dead => return Ok(Place::Cluster(Box::new(held))),
                Ok(_) => {
                    self.shared.tally.dead.one();
                    dead += 1;
                    continue;
                }
                Err(error) => error,
            };
            match error {
                Error::RateLimited(problem) => {
                    let pause = after_denial(&problem, denials, left, Chance::draw()).filter(|_| !ask.at_once);
                    let Some(pause) = pause else { return Err(Error::RateLimited(problem)) };
                    denials += 1;
                    sleep(pause).await;
                }
                // The slot is spent; another one may do.
                Error::Refused(problem) if problem.code == Code::Expired => {
                    self.shared.tally.dead.one();
                    dead += 1;
                }
                error if error.is_outage() => return self.without_cluster(ask, left, error),
                error => return Err(error),
            }
        }
    }

    /// Puts the question once, unless its answer is known: a denial that still stands, an outage just met.
    async fn put(&self, ask: &Ask, left: Option<Duration>) -> Result<Held, Error> {
        let shared = &self.shared;
        let now = shared.began.elapsed();
        if shared.options.on_unavailable != OnUnavailable::Closed && shared.local.in_outage(now) {
            let detail = "the cluster was out of reach a moment ago".to_owned();
            return Err(Error::Unavailable { detail, problem: None });
        }
        if shared.options.denial_cache
            && let Some(problem) = shared.denials.standing(ask, now)
        {
            shared.tally.denied_from_memory.one();
            return Err(Error::RateLimited(Box::new(problem)));
        }
        let lead = self.lead(ask, left);
        let worker = shared.options.worker.as_deref();
        let result = match self.held(ask.request(left, lead, worker)).await {
            // It may be our lead that can never be granted. Nothing was consumed, so the same may be asked for without it.
            Err(Error::Refused(problem)) if problem.code == Code::Never && lead.is_some() => {
                shared.rules.refuse_leads(ask);
                self.held(ask.request(left, None, worker)).await
            }
            result => result,
        };
        self.learn(ask, &result);
        result
    }

    /// What an answer teaches about the key.
    pub(super) fn learn(&self, ask: &Ask, result: &Result<Held, Error>) {
        let shared = &self.shared;
        match result {
            Ok(held) => {
                shared.tally.granted.one();
                if let Some(limit) = &held.permit().grant.limit {
                    shared.rules.learn(&ask.key, limit);
                }
            }
            Err(Error::RateLimited(problem)) => {
                shared.tally.denied.one();
                shared.denials.note(ask, problem, shared.began.elapsed());
            }
            Err(Error::Unavailable { .. }) => shared.tally.unavailable.one(),
            Err(Error::OutcomeUnknown { .. }) => shared.tally.outcome_unknown.one(),
            Err(_) => {}
        }
    }

    /// How far ahead the slot shall lie. Never past the patience: that could never be granted.
    pub(super) fn lead(&self, ask: &Ask, left: Option<Duration>) -> Option<Duration> {
        if ask.at_once || !self.shared.rules.lead_goes(ask) {
            return None;
        }
        let lead = match self.shared.options.lead {
            Lead::Measured => self.shared.round_trip.lead()?,
            Lead::Fixed(lead) => lead,
            Lead::None => return None,
        };
        Some(left.map_or(lead, |left| lead.min(left))).filter(|lead| !lead.is_zero())
    }

    /// Asks in a task of its own. Where the caller has gone when the answer comes, what was granted is given back.
    async fn held(&self, request: AcquireRequest) -> Result<Held, Error> {
        let runtime = runtime()?;
        let (answer, caller) = oneshot::channel();
        let (client, home) = (self.clone(), runtime.clone());
        self.shared.background.spawn(&runtime, async move {
            let result = client.in_turn(request, &|| answer.is_closed()).await;
            // Without a caller the answer is dropped, and the permit in it goes back.
            drop(answer.send(result.map(|permit| Held::new(client, home, permit))));
        });
        caller.await.unwrap_or_else(|_| Err(abandoned()))
    }

    async fn in_turn(&self, request: AcquireRequest, unwanted: Unwanted<'_>) -> Result<Permit, Error> {
        let _turn = self.turn().await?;
        self.request_while_wanted(request, unwanted).await
    }

    /// Waits for its turn: a client has only so many requests under way at once, however many tasks it serves.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        let turn = timeout(self.timeout, self.shared.turns.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let detail = "too many requests of this client are under way".to_owned();
            Error::Unavailable { detail, problem: None }
        })
    }

    /// What to do without the cluster.
    pub(super) fn without_cluster(&self, ask: &Ask, left: Option<Duration>, error: Error) -> Result<Place, Error> {
        let shared = &self.shared;
        let now = shared.began.elapsed();
        if shared.options.on_unavailable != OnUnavailable::Closed && !shared.local.in_outage(now) {
            shared.local.met_outage(now);
        }
        match shared.options.on_unavailable {
            OnUnavailable::Closed => Err(error),
            OnUnavailable::Open => {
                shared.tally.open.one();
                Ok(Place::Open)
            }
            OnUnavailable::Local { fraction } => {
                // A limit that is not known, or that counts what is in flight, has no pace.
                let Some(interval) = shared.rules.interval(ask) else { return Err(error) };
                let longest = if ask.at_once { Some(Duration::ZERO) } else { left };
                match shared.local.take(&ask.key, spacing(interval, ask.cost, fraction), now, longest) {
                    Ok(wait) => {
                        shared.tally.local.one();
                        Ok(Place::Local(Deadline::after(wait)))
                    }
                    Err(TooFar(wait)) => {
                        shared.tally.local_denied.one();
                        let reason = if ask.at_once { Reason::NotFreeNow } else { Reason::WouldWaitTooLong };
                        let detail = "denied by the local limiter: the cluster is out of reach";
                        let problem = Problem::denied(&ask.key, reason, Millis::up_from(wait), detail);
                        Err(Error::RateLimited(Box::new(problem)))
                    }
                }
            }
        }
    }
}

/// The runtime that whatever outlives its caller runs on.
pub(super) fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| Error::Misuse("the client needs a tokio runtime, or client::blocking".to_owned()))
}

/// The task that asked was dropped, which only a runtime on its way down does.
pub(super) fn abandoned() -> Error {
    let detail = "the runtime ended before there was an answer".to_owned();
    Error::OutcomeUnknown { detail, request_id: None }
}
