//! Many permits in one request.

use super::acquire::is_never;
use super::answer::result_of;
use super::ask::Ask;
use super::degrade::too_late;
use super::error::Error;
use super::exchange::Exchange;
use super::held::Held;
use super::outage::Asking;
use super::permit::{Fate, Permit};
use super::request::{abandoned, runtime};
use super::reservation::{Place, Reservation};
use super::settle::{Effect, Unsettled, Unwanted};
use super::{Client, random_id};
use crate::api::{AcquireRequest, BatchRequest, BatchResponse};
use crate::clock::Deadline;
use crate::limits::BATCH_REQUESTS_MAX;
use std::time::Duration;
use tokio::sync::oneshot;

impl Client {
    /// Reserves several permits in one request: a reservation or an error for each, in order. Nothing is asked for twice here:
    /// a denial is an answer.
    ///
    /// `atomic`: all or nothing, and then one denial is an error of the whole.
    pub async fn batch(
        &self,
        asks: impl IntoIterator<Item = impl Into<Ask>>,
        atomic: bool,
    ) -> Result<Vec<Result<Reservation, Error>>, Error> {
        let asks: Vec<Ask> = asks.into_iter().map(Into::into).collect();
        if asks.is_empty() || asks.len() > BATCH_REQUESTS_MAX {
            return Err(Error::Misuse(format!(
                "a batch has 1 to {BATCH_REQUESTS_MAX} requests, this has {}",
                asks.len()
            )));
        }
        let patience: Vec<_> = asks.iter().map(|ask| ask.max_wait.map(Deadline::after)).collect();
        let results = match self.decided(&asks, atomic).await {
            Ok(results) => {
                results.into_iter().map(|result| result.map(|held| Place::Cluster(Box::new(held)))).collect()
            }
            // Without the cluster nobody can grant all or nothing.
            Err(error) if atomic || !error.is_outage() => return Err(error),
            Err(error) => {
                let without = |ask: &Ask| self.without_cluster(ask, ask.max_wait, error.clone());
                let places: Vec<_> = asks.iter().map(without).collect();
                if places.iter().all(Result::is_err) {
                    return Err(error);
                }
                places
            }
        };
        let reserve = |((ask, patience), place): ((Ask, Option<Deadline>), Result<Place, Error>)| {
            let place = in_time(&ask, patience, place?)?;
            Ok(Reservation { client: self.clone(), ask, patience, place })
        };
        Ok(asks.into_iter().zip(patience).zip(results).map(reserve).collect())
    }

    /// What the cluster says, once more without leads where it may be those that can never be granted.
    async fn decided(&self, asks: &[Ask], atomic: bool) -> Result<Vec<Result<Held, Error>>, Error> {
        let asking = self.asking()?;
        let leads: Vec<_> = asks.iter().map(|ask| self.lead(ask, ask.max_wait)).collect();
        let led = |nth: usize, error: &Error| leads[nth].is_some() && is_never(error);
        let refuse_lead = |ask: &Ask| self.shared.rules.refuse_leads(ask, self.shared.began.elapsed());
        let all: Vec<_> = asks.iter().zip(leads.iter().copied()).collect();
        let mut results = match self.held_batch(&all, atomic, asking).await {
            Err(unsettled) if is_never(&unsettled.error) && leads.iter().any(Option::is_some) => {
                match about(&unsettled.error, asks) {
                    Some(nth) => _ = refuse_lead(&asks[nth]),
                    None => asks.iter().for_each(|ask| _ = refuse_lead(ask)),
                }
                let without: Vec<_> = asks.iter().map(|ask| (ask, None)).collect();
                self.held_batch(&without, atomic, asking).await
            }
            results => results,
        }
        .map_err(|unsettled| {
            // A whole batch fails by one of its requests, or by none in particular.
            let nth = about(&unsettled.error, asks);
            if nth.is_some() || !matches!(unsettled.error, Error::RateLimited(_)) {
                self.learn_error(&asks[nth.unwrap_or(0)], &unsettled.error);
            } else {
                self.shared.tally.denied.one();
            }
            Error::from(unsettled)
        })?;
        let again: Vec<usize> = results
            .iter()
            .enumerate()
            .filter_map(|(nth, result)| result.as_ref().err().filter(|error| led(nth, error)).map(|_| nth))
            .collect();
        if !again.is_empty() {
            for nth in &again {
                refuse_lead(&asks[*nth]);
            }
            let without: Vec<_> = again.iter().map(|nth| (&asks[*nth], None)).collect();
            // What was granted above stays granted: what becomes of these is their own.
            match self.held_batch(&without, false, asking).await {
                Ok(more) => again.iter().zip(more).for_each(|(nth, result)| results[*nth] = result),
                Err(unsettled) => again.iter().for_each(|nth| results[*nth] = Err(unsettled.clone().into())),
            }
        }
        for (ask, result) in asks.iter().zip(&results) {
            match result {
                Ok(held) => self.learn_grant(ask, held),
                Err(error) => self.learn_error(ask, error),
            }
        }
        Ok(results)
    }

    /// Asks in a task of its own. Where the caller has gone when the answer comes, what was granted is given back.
    async fn held_batch(
        &self,
        asks: &[(&Ask, Option<Duration>)],
        atomic: bool,
        asking: Asking,
    ) -> Result<Vec<Result<Held, Error>>, Unsettled> {
        let worker = self.shared.options.worker.as_deref();
        let mut requests = Vec::with_capacity(asks.len());
        for (ask, lead) in asks {
            let request_id = Some(random_id().map_err(Unsettled::certain)?);
            requests.push(AcquireRequest { request_id, ..ask.request(ask.max_wait, *lead, worker) });
        }
        let runtime = runtime().map_err(Unsettled::certain)?;
        let (answer, caller) = oneshot::channel();
        let (client, home) = (self.with_patience(None), runtime.clone());
        self.shared.background.spawn(&runtime, async move {
            let results = client.batch_in_turn(requests, atomic, asking, &|| answer.is_closed()).await;
            let held = |permit| Held::new(client.clone(), home.clone(), permit);
            drop(answer.send(results.map(|all| all.into_iter().map(|one| one.map(held)).collect())));
        });
        caller.await.unwrap_or_else(|_| Err(Unsettled::certain(abandoned())))
    }

    async fn batch_in_turn(
        &self,
        requests: Vec<AcquireRequest>,
        atomic: bool,
        asking: Asking,
        unwanted: Unwanted<'_>,
    ) -> Result<Vec<Result<Permit, Error>>, Unsettled> {
        let (_turn, client) = self.turn_to_ask(asking, None).await?;
        let batch = BatchRequest { requests, atomic };
        let exchange = Exchange::post("/acquire/batch", &batch).map_err(Unsettled::certain)?;
        let many = batch.requests.len();
        let sound = |answer: &BatchResponse| match answer.results.len() {
            results if results == many => Ok(()),
            results => Err(format!("{results} results of {many} requests")),
        };
        // Every request of it has an id, so the whole may be sent again.
        let settled = client.ask_while_wanted(&exchange, Effect::Repeatable, unwanted, &sound).await?;
        let (first_send, retried) = (settled.first_send, settled.sends > 1);
        let permits = settled.answer.results.into_iter().zip(batch.requests).map(|(value, request)| {
            let (key, id) = (request.key.unwrap_or_default(), request.request_id.unwrap_or_default());
            result_of(value, &key, &id).map(|grant| Permit::new(grant, id, first_send, retried))
        });
        Ok(permits.collect())
    }
}

/// Which request the problem of a whole batch is about.
fn about(error: &Error, asks: &[Ask]) -> Option<usize> {
    let index = usize::try_from(error.problem()?.index?).ok()?;
    Some(index).filter(|index| *index < asks.len())
}

/// A slot past the patience of its caller is given back.
fn in_time(ask: &Ask, patience: Option<Deadline>, place: Place) -> Result<Place, Error> {
    if let (Place::Cluster(held), Some(patience)) = (&place, patience)
        && let Fate::Wait(wait) = held.permit().fate()
        && wait > patience.remaining()
    {
        return Err(too_late(ask, "the slot comes later"));
    }
    Ok(place)
}
