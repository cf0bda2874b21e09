//! What becomes of a question that nobody decides, for clients that shall go on without the cluster.
//!
//! Nothing here happens unless it was asked for ([`OnUnavailable`]), and whatever starts is counted where it starts. Only an outage
//! leads here: neither a decision nor this client's own queue does.

use super::Client;
use super::ask::Ask;
use super::backoff::Chance;
use super::error::Error;
use super::local::{Start, spacing};
use super::options::OnUnavailable;
use super::outage::Asking;
use super::reservation::Place;
use crate::api::{Millis, Problem, Reason};
use crate::clock::Deadline;
use std::time::Duration;

impl Client {
    /// Whether to put a question to the cluster, or the error that stands for it while it is out of reach.
    pub(super) fn asking(&self) -> Result<Asking, Error> {
        let options = &self.shared.options;
        if options.on_unavailable == OnUnavailable::Closed {
            return Ok(Asking::Usual);
        }
        let lasts = options.degrade_after.saturating_add(options.probe_every);
        match self.shared.outage.asking(self.shared.began.elapsed(), lasts) {
            Asking::Spared => Err(out_of_reach()),
            asking => Ok(asking),
        }
    }

    /// The same for somebody who has waited for their turn since then.
    pub(super) fn still_asking(&self, asking: Asking) -> Result<(), Error> {
        let degrades = self.shared.options.on_unavailable != OnUnavailable::Closed;
        if degrades && asking == Asking::Usual && self.shared.outage.is_known() {
            return Err(out_of_reach());
        }
        Ok(())
    }

    /// A question was not decided.
    pub(super) fn met_outage(&self) {
        self.shared.outage.met(self.shared.began.elapsed(), self.shared.options.probe_every);
    }

    /// What to do without the cluster. Nothing is taken here.
    pub(super) fn without_cluster(&self, ask: &Ask, left: Option<Duration>, error: Error) -> Result<Place, Error> {
        let shared = &self.shared;
        match shared.options.on_unavailable {
            OnUnavailable::Closed => Err(error),
            OnUnavailable::Open => Ok(Place::Open),
            OnUnavailable::Local { fraction } => {
                // A limit that is not known, or that counts what is in flight, has no pace.
                let Some(start) = self.local_start(ask, fraction) else { return Err(error) };
                self.local_place(ask, left, shared.local.look(&start))
            }
        }
    }

    /// Starts at this process's own pace, if that is due; else where one stands now.
    pub(super) fn start_locally(&self, ask: &Ask, left: Option<Duration>) -> Result<Option<Place>, Error> {
        let OnUnavailable::Local { fraction } = self.shared.options.on_unavailable else { return Err(out_of_reach()) };
        let start = self.local_start(ask, fraction).ok_or_else(out_of_reach)?;
        match self.shared.local.take(&start) {
            Ok(()) => {
                self.shared.tally.local.one();
                Ok(None)
            }
            Err(wait) => self.local_place(ask, left, wait).map(Some),
        }
    }

    fn local_start<'a>(&self, ask: &'a Ask, fraction: f64) -> Option<Start<'a>> {
        let interval = self.shared.rules.interval(ask)?;
        Some(Start {
            key: &ask.key,
            spacing: spacing(interval, ask.cost, fraction),
            outage: self.shared.outage.count(),
            now: self.shared.began.elapsed(),
            chance: Chance::draw(),
        })
    }

    fn local_place(&self, ask: &Ask, left: Option<Duration>, wait: Duration) -> Result<Place, Error> {
        const WHY: &str = "denied by the local limiter: the cluster is out of reach";
        if ask.at_once && !wait.is_zero() {
            self.shared.tally.local_denied.one();
            return Err(not_free_now(ask, wait, WHY));
        }
        if left.is_some_and(|left| wait > left) {
            self.shared.tally.local_denied.one();
            return Err(too_late(ask, WHY));
        }
        let again = self.shared.outage.next_probe(self.shared.began.elapsed());
        Ok(Place::Local { due: Deadline::after(wait), again: Deadline::after(again) })
    }
}

fn out_of_reach() -> Error {
    let detail = "the cluster was out of reach a moment ago".to_owned();
    Error::Unavailable { detail, problem: None }
}

/// Only a permit that is free now was wanted, and there is one only in a while.
pub(super) fn not_free_now(ask: &Ask, wait: Duration, why: &str) -> Error {
    Error::RateLimited(Box::new(Problem::denied(&ask.key, Reason::NotFreeNow, Millis::up_from(wait), why)))
}

/// The patience of the caller ends first.
pub(super) fn too_late(ask: &Ask, why: &str) -> Error {
    let within = ask.max_wait.unwrap_or_default();
    Error::Timeout { detail: format!("no permit of {:?} within {within:?}: {why}", ask.key) }
}
