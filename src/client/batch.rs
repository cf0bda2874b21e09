//! Many permits in one request.

use super::acquire::{abandoned, runtime};
use super::answer::result_of;
use super::ask::Ask;
use super::error::Error;
use super::exchange::Exchange;
use super::held::Held;
use super::permit::Permit;
use super::reservation::{Place, Reservation};
use super::settle::{Effect, Unwanted};
use super::{Client, random_id};
use crate::api::{AcquireRequest, BatchRequest, BatchResponse};
use crate::clock::Deadline;
use crate::limits::BATCH_REQUESTS_MAX;
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
        let reserve = |ask: Ask, place: Result<Place, Error>| {
            let patience = ask.max_wait.map(Deadline::after);
            place.map(|place| Reservation { client: self.clone(), ask, patience, place })
        };
        let results = match self.held_batch(&asks, atomic).await {
            Ok(results) => results,
            Err(error) => {
                self.learn(&asks[0], &Err(error.clone()));
                // Without the cluster nobody can grant all or nothing.
                if atomic || !error.is_outage() {
                    return Err(error);
                }
                let places = asks.into_iter().map(|ask| {
                    let place = self.without_cluster(&ask, ask.max_wait, error.clone());
                    reserve(ask, place)
                });
                let places: Vec<_> = places.collect();
                return if places.iter().all(Result::is_err) { Err(error) } else { Ok(places) };
            }
        };
        let results = asks.into_iter().zip(results).map(|(ask, result)| {
            self.learn(&ask, &result);
            reserve(ask, result.map(|held| Place::Cluster(Box::new(held))))
        });
        Ok(results.collect())
    }

    /// Asks in a task of its own. Where the caller has gone when the answer comes, what was granted is given back.
    async fn held_batch(&self, asks: &[Ask], atomic: bool) -> Result<Vec<Result<Held, Error>>, Error> {
        let worker = self.shared.options.worker.as_deref();
        let mut requests = Vec::with_capacity(asks.len());
        for ask in asks {
            let request_id = Some(random_id()?);
            let request = ask.request(ask.max_wait, self.lead(ask, ask.max_wait), worker);
            requests.push(AcquireRequest { request_id, ..request });
        }
        let runtime = runtime()?;
        let (answer, caller) = oneshot::channel();
        let (client, home) = (self.clone(), runtime.clone());
        self.shared.background.spawn(&runtime, async move {
            let results = client.batch_in_turn(requests, atomic, &|| answer.is_closed()).await;
            let held = |permit| Held::new(client.clone(), home.clone(), permit);
            drop(answer.send(results.map(|all| all.into_iter().map(|one| one.map(held)).collect())));
        });
        caller.await.unwrap_or_else(|_| Err(abandoned()))
    }

    async fn batch_in_turn(
        &self,
        requests: Vec<AcquireRequest>,
        atomic: bool,
        unwanted: Unwanted<'_>,
    ) -> Result<Vec<Result<Permit, Error>>, Error> {
        let _turn = self.turn().await?;
        let batch = BatchRequest { requests, atomic };
        let exchange = Exchange::post("/acquire/batch", &batch)?;
        // Every request of it has an id, so the whole may be sent again.
        let settled = self.ask_while_wanted::<BatchResponse>(&exchange, Effect::Repeatable, unwanted).await?;
        let results = settled.answer.results;
        if results.len() != batch.requests.len() {
            let detail = format!("{} results of {} requests", results.len(), batch.requests.len());
            return Err(Error::OutcomeUnknown { detail, request_id: None });
        }
        let ids = batch.requests.into_iter().map(|request| request.request_id.unwrap_or_default());
        let permits = results.into_iter().zip(ids).map(|(value, id)| {
            result_of(value, &id).map(|grant| Permit::new(grant, id, settled.first_send, settled.sends))
        });
        Ok(permits.collect())
    }
}
