//! One question for one permit: put by a task that outlives its caller, in its turn.
//!
//! Invariants
//! - What is granted to somebody who has gone is given back: the task that asks sees that nobody takes the answer.
//! - A client has only so many requests under way at once. Who waits too long for that is told so, and it is no outage.

use super::Client;
use super::answer::is_of;
use super::error::Error;
use super::exchange::Exchange;
use super::held::Held;
use super::options::TIMEOUT_MAX;
use super::outage::Asking;
use super::permit::Permit;
use super::settle::{Effect, Settled, Unsettled, Unwanted};
use crate::api::{AcquireRequest, AcquireResponse, Millis, Wait};
use crate::clock::Stopwatch;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::time::timeout;

/// What is left for asking, however long the turn took to come.
const ASKING_MIN: Duration = Duration::from_secs(1);

impl Client {
    /// Asks for a permit and comes back with the answer, whenever its slot may come: for those who look after the rest
    /// themselves. Without a request id the request gets a random one.
    ///
    /// Dropped, it may leave a permit behind that nobody uses.
    pub async fn request(&self, request: AcquireRequest) -> Result<Permit, Error> {
        Ok(self.request_while_wanted(request, &|| false).await?)
    }

    async fn request_while_wanted(
        &self,
        mut request: AcquireRequest,
        unwanted: Unwanted<'_>,
    ) -> Result<Permit, Unsettled> {
        let Some(key) = request.key.clone().filter(|_| request.all_of.is_none()) else {
            let detail = "one key at a time here; several are asked for with acquire_all".to_owned();
            return Err(Unsettled::certain(Error::Misuse(detail)));
        };
        let ours = request.request_id.is_none();
        let request_id = name(&mut request)?;
        let exchange = Exchange::post("/acquire", &request).map_err(Unsettled::certain)?;
        let (client, effect) = if request.wait == Wait::Server {
            (self.in_line(request.max_wait_ms), Effect::Queued(&request_id))
        } else {
            (self.clone(), Effect::Permit(&request_id))
        };
        let sound = |grant: &AcquireResponse| is_of(grant, &key);
        let Settled { answer, first_send, sends, .. } =
            client.ask_while_wanted(&exchange, effect, unwanted, &sound).await?;
        Ok(Permit::new(answer, request_id, first_send, ours && sends > 1))
    }

    /// This client with the patience that it takes to stand in line at the node: an attempt that is cut off loses its place.
    fn in_line(&self, max_wait: Option<Millis>) -> Self {
        let held = max_wait.map_or(TIMEOUT_MAX, |wait| wait.duration().min(TIMEOUT_MAX));
        let (timeout, attempt_timeout) = (self.timeout + held, self.attempt_timeout + held);
        Self { timeout, attempt_timeout, ..self.clone() }
    }

    /// Asks in a task of its own. Where the caller has gone when the answer comes, what was granted is given back.
    pub(super) async fn held(
        &self,
        request: AcquireRequest,
        asking: Asking,
        left: Option<Duration>,
    ) -> Result<Held, Unsettled> {
        let runtime = runtime().map_err(Unsettled::certain)?;
        let (answer, caller) = oneshot::channel();
        let (client, home) = (self.clone(), runtime.clone());
        self.shared.background.spawn(&runtime, async move {
            let result = client.request_in_turn(request, asking, left, &|| answer.is_closed()).await;
            // Without a caller the answer is dropped, and the permit in it goes back.
            drop(answer.send(result.map(|permit| Held::new(client, home, permit))));
        });
        caller.await.unwrap_or_else(|_| Err(Unsettled::certain(abandoned())))
    }

    async fn request_in_turn(
        &self,
        request: AcquireRequest,
        asking: Asking,
        left: Option<Duration>,
        unwanted: Unwanted<'_>,
    ) -> Result<Permit, Unsettled> {
        let (_turn, client) = self.turn_to_ask(asking, left).await?;
        client.request_while_wanted(request, unwanted).await
    }

    /// Waits for its turn to ask. The client that comes with it has what is left of the time.
    pub(super) async fn turn_to_ask(
        &self,
        asking: Asking,
        left: Option<Duration>,
    ) -> Result<(SemaphorePermit<'_>, Self), Unsettled> {
        let begun = Stopwatch::start();
        let within = left.map_or(self.timeout, |left| left.min(self.timeout));
        let turn = self.turn(within).await.map_err(Unsettled::certain)?;
        self.still_asking(asking).map_err(Unsettled::certain)?;
        let timeout = self.timeout.saturating_sub(begun.elapsed()).max(ASKING_MIN).min(self.timeout);
        Ok((turn, Self { timeout, ..self.clone() }))
    }

    /// Waits for its turn: a client has only so many requests under way at once, however many tasks it serves.
    pub(super) async fn turn(&self, within: Duration) -> Result<SemaphorePermit<'_>, Error> {
        let turn = timeout(within, self.shared.turns.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| {
            let detail = format!("too many requests of this client are under way, for {within:?}");
            Error::Timeout { detail }
        })
    }
}

/// The id of a request: its own, or a random one.
pub(super) fn name(request: &mut AcquireRequest) -> Result<String, Unsettled> {
    let id = match request.request_id.take() {
        Some(id) => id,
        None => super::random_id().map_err(Unsettled::certain)?,
    };
    request.request_id = Some(id.clone());
    Ok(id)
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
