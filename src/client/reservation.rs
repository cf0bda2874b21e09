//! A place in the future: known when it comes, taken up by starting, given back by being dropped.

use super::Client;
use super::ask::Ask;
use super::error::Error;
use super::held::Held;
use super::pass::{Pass, Source};
use super::permit::Fate;
use crate::clock::Deadline;
use std::time::Duration;
use tokio::time::{sleep, sleep_until};

/// Permits that may come too late one after the other before something must be wrong with the window.
pub(super) const DEAD_MAX: u32 = 10;

/// A permit that has not been used yet. Dropped, it goes back to the cluster.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is given back"]
pub struct Reservation {
    pub(super) client: Client,
    pub(super) ask: Ask,
    /// Until when the caller wants a permit.
    pub(super) patience: Option<Deadline>,
    pub(super) place: Place,
}

/// Where one stands.
#[derive(Debug)]
pub(super) enum Place {
    Cluster(Box<Held>),
    /// This process's own pace has its next start at `due`. It is taken only then; the cluster is asked once more at `again`.
    Local {
        due: Deadline,
        again: Deadline,
    },
    Open,
}

impl Reservation {
    /// The key.
    pub fn key(&self) -> &str {
        &self.ask.key
    }

    /// How long until it may start.
    pub fn starts_in(&self) -> Duration {
        match &self.place {
            Place::Cluster(held) => match held.permit().fate() {
                Fate::Wait(left) => left,
                Fate::Start | Fate::Dead => Duration::ZERO,
            },
            Place::Local { due, .. } => due.remaining(),
            Place::Open => Duration::ZERO,
        }
    }

    /// The number of the permit, as it is now: one that dies while it waits is replaced.
    pub fn number(&self) -> Option<u64> {
        match &self.place {
            Place::Cluster(held) => Some(held.permit().grant.permit),
            Place::Local { .. } | Place::Open => None,
        }
    }

    /// Waits until the permit may be used and takes it up. A permit that is dead by then is dropped and another one asked for,
    /// within the patience of the caller.
    pub async fn start(mut self) -> Result<Pass, Error> {
        let mut dead = 0;
        loop {
            let held = match self.place {
                Place::Open => {
                    self.client.shared.tally.open.one();
                    return Ok(Pass { key: self.ask.key, source: Source::Open });
                }
                Place::Local { due, again } => {
                    sleep_until(due.min(again).instant()).await;
                    let next = if due.passed() {
                        let left = self.patience.map(|patience| patience.remaining());
                        self.client.start_locally(&self.ask, left)?
                    } else {
                        Some(self.client.place(&self.ask, self.patience, 0).await?)
                    };
                    match next {
                        Some(place) => self.place = place,
                        None => return Ok(Pass { key: self.ask.key, source: Source::Local }),
                    }
                    continue;
                }
                Place::Cluster(held) => held,
            };
            loop {
                match held.permit().fate() {
                    Fate::Wait(left) => sleep(left).await,
                    Fate::Start => {
                        return Ok(Pass { key: self.ask.key, source: Source::Cluster(Box::new(held.into_permit())) });
                    }
                    Fate::Dead => break,
                }
            }
            self.client.shared.tally.dead.one();
            dead += 1;
            self.place = self.client.place(&self.ask, self.patience, dead).await?;
            // Given back only now, so that the next one is asked for without delay; its slot has come, but the cluster's time may
            // have stood still.
            drop(held);
        }
    }
}
