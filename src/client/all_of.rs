//! Permits of several keys in one decision: all or nothing, with one slot.

use super::Client;
use super::acquire::all_dead;
use super::ask::Ask;
use super::backoff::{Chance, after_denial};
use super::degrade::{not_free_now, too_late};
use super::error::Error;
use super::exchange::Exchange;
use super::held::Held;
use super::options::OnUnavailable;
use super::outage::Asking;
use super::pass::{Pass, Source};
use super::permit::{Fate, Permit};
use super::request::{abandoned, name, runtime};
use super::reservation::DEAD_MAX;
use super::settle::{Effect, Unsettled, Unwanted};
use crate::api::{AcquireRequest, AcquireResponse, AllOfResponse, Code, PartRequest};
use crate::clock::Deadline;
use crate::limits::ALL_OF_MAX;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

impl Client {
    /// Waits until a permit of each of these keys may be used, and takes all of them up: they have one slot. Dropped before
    /// that, it gives all of them back.
    ///
    /// The shortest patience counts, and who wants one of them at once wants all of them at once. A client that paces itself
    /// without the cluster ([`OnUnavailable::Local`](super::OnUnavailable)) cannot do so for several keys together.
    pub async fn acquire_all(&self, asks: impl IntoIterator<Item = impl Into<Ask>>) -> Result<Vec<Pass>, Error> {
        let asks: Vec<Ask> = asks.into_iter().map(Into::into).collect();
        if asks.len() < 2 || asks.len() > ALL_OF_MAX {
            return Err(Error::Misuse(format!("2 to {ALL_OF_MAX} keys in one decision, these are {}", asks.len())));
        }
        let whole = Ask {
            max_wait: asks.iter().filter_map(|ask| ask.max_wait).min(),
            at_once: asks.iter().any(|ask| ask.at_once),
            ..Ask::new(asks.iter().map(|ask| ask.key.as_str()).collect::<Vec<_>>().join(", "))
        };
        let patience = whole.max_wait.map(Deadline::after);
        let left = || patience.map(|patience| patience.remaining());
        let (mut denials, mut dead) = (0, 0);
        while dead < DEAD_MAX {
            if denials + dead > 0 && left().is_some_and(|left| left.is_zero()) {
                return Err(too_late(&whole, "that time is over"));
            }
            match self.put_all(&asks, &whole, left()).await {
                Ok(all) => {
                    let until = fate(&all);
                    match until {
                        Fate::Wait(wait) if whole.at_once => {
                            return Err(not_free_now(&whole, wait, "the slot has not come yet"));
                        }
                        Fate::Wait(wait) if left().is_some_and(|left| wait > left) => {
                            return Err(too_late(&whole, "the slot comes later"));
                        }
                        Fate::Wait(wait) => sleep(wait).await,
                        Fate::Start | Fate::Dead => {}
                    }
                    if until != Fate::Dead && fate(&all) == Fate::Start {
                        return Ok(all.into_iter().map(pass).collect());
                    }
                    self.shared.tally.dead.one();
                    dead += 1;
                }
                Err(Error::RateLimited(problem)) if whole.at_once => return Err(Error::RateLimited(problem)),
                Err(Error::RateLimited(problem)) => {
                    let pause = after_denial(&problem, denials, left(), Chance::draw());
                    let Some(pause) = pause else { return Err(too_late(&whole, &problem.detail)) };
                    denials += 1;
                    sleep(pause).await;
                }
                Err(Error::Refused(problem)) if problem.code == Code::Expired => {
                    self.shared.tally.dead.one();
                    dead += 1;
                }
                Err(error) if error.is_outage() && self.shared.options.on_unavailable == OnUnavailable::Open => {
                    self.shared.tally.open.many(asks.len() as u64);
                    return Ok(asks.into_iter().map(|ask| Pass { key: ask.key, source: Source::Open }).collect());
                }
                Err(error) => return Err(error),
            }
        }
        Err(all_dead(&whole.key))
    }

    /// Puts the question once, in a task of its own.
    async fn put_all(&self, asks: &[Ask], whole: &Ask, left: Option<Duration>) -> Result<Vec<Held>, Error> {
        let asking = self.asking()?;
        let part = |ask: &Ask| PartRequest {
            key: ask.key.clone(),
            limit: ask.limit.clone(),
            cost: (ask.cost != 1).then_some(ask.cost),
        };
        let all_of = Some(asks.iter().map(part).collect());
        let worker = self.shared.options.worker.as_deref();
        let request = AcquireRequest { key: None, all_of, ..whole.request(left, None, worker) };
        let runtime = runtime()?;
        let (answer, caller) = oneshot::channel();
        let (client, home) = (self.with_patience(left), runtime.clone());
        self.shared.background.spawn(&runtime, async move {
            let result = client.all_in_turn(request, asking, left, &|| answer.is_closed()).await;
            let held = |permit| Held::new(client.clone(), home.clone(), permit);
            drop(answer.send(result.map(|all| all.into_iter().map(held).collect::<Vec<_>>())));
        });
        match caller.await.unwrap_or_else(|_| Err(Unsettled::certain(abandoned()))) {
            Ok(all) => {
                asks.iter().zip(&all).for_each(|(ask, held)| self.learn_grant(ask, held));
                Ok(all)
            }
            Err(unsettled) => {
                // Not remembered as a denial of one of the keys: what they were asked for together, they were.
                self.learn_error(whole, &unsettled.error);
                self.shared.denials.forget(&whole.key);
                Err(unsettled.into())
            }
        }
    }

    async fn all_in_turn(
        &self,
        mut request: AcquireRequest,
        asking: Asking,
        left: Option<Duration>,
        unwanted: Unwanted<'_>,
    ) -> Result<Vec<Permit>, Unsettled> {
        let (_turn, client) = self.turn_to_ask(asking, left).await?;
        let id = name(&mut request)?;
        let exchange = Exchange::post("/acquire", &request).map_err(Unsettled::certain)?;
        let keys: Vec<_> = request.all_of.iter().flatten().map(|part| part.key.as_str()).collect();
        let sound = |answer: &AllOfResponse| {
            let these = answer.permits.iter().map(|permit| permit.key.as_str());
            if answer.granted && these.eq(keys.iter().copied()) {
                Ok(())
            } else {
                Err("not what was asked for".to_owned())
            }
        };
        let settled = client.ask_while_wanted(&exchange, Effect::Permit(&id), unwanted, &sound).await?;
        let (all, first_send, retried) = (settled.answer, settled.first_send, settled.sends > 1);
        let permits = all.permits.into_iter().map(|one| {
            let grant = AcquireResponse {
                granted: true,
                key: one.key,
                permit: one.permit,
                policy: one.policy,
                policy_revision: one.policy_revision,
                slot_ms: all.slot_ms,
                wait_ms: all.wait_ms,
                start_before_ms: all.start_before_ms,
                reserved: one.reserved,
                remaining: one.remaining,
                limit: one.limit,
                replayed: all.replayed,
            };
            Permit::new(grant, id.clone(), first_send, retried)
        });
        Ok(permits.collect())
    }
}

/// What can be done with all of them: they have the same times, but for what their reading takes.
fn fate(all: &[Held]) -> Fate {
    let fates: Vec<_> = all.iter().map(|held| held.permit().fate()).collect();
    let longest = fates.iter().filter_map(|fate| if let Fate::Wait(wait) = fate { Some(*wait) } else { None }).max();
    if fates.contains(&Fate::Dead) { Fate::Dead } else { longest.map_or(Fate::Start, Fate::Wait) }
}

fn pass(held: Held) -> Pass {
    let permit = held.into_permit();
    Pass { key: permit.grant.key.clone(), source: Source::Cluster(Box::new(permit)) }
}
