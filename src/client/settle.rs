//! One question, put to the nodes in turn until one settles it.
//!
//! Invariants
//! - A request that may have been applied is sent again only where twice means the same as once.
//! - Doubt sticks: once an attempt was lost on the way, "certainly not granted" is never said of the whole again.
//! - The first send is the earliest that the answer can belong to. An attempt that never left, or that a node of ours refused as
//!   certainly not applied, was none: no entry of the log can carry it.

use super::Client;
use super::answer::{Again, Judgement, judge};
use super::backoff::{Chance, around, beyond};
use super::error::Error;
use super::exchange::{Exchange, Reply};
use crate::api::{Code, Problem};
use crate::clock::{Deadline, Stopwatch};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::sleep;

/// First pause after all nodes have turned a request away.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest such pause: elections take about a second, and nobody should sleep through the end of one.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// With less time than this a certain "nobody decided" would only be put in doubt by one more attempt: it ends before its answer.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);
/// Rounds in which nobody even took the connection before giving up: one more than the first, for a node that is just
/// being restarted.
const SILENT_ROUNDS_MAX: u32 = 2;

/// What came of one question, put to as many nodes as it took.
pub(super) struct Settled<T> {
    pub(super) answer: T,
    /// The first send that the answer can belong to.
    pub(super) first_send: Stopwatch,
    /// How many attempts the answer can belong to, the last one included.
    pub(super) sends: u32,
    /// How an earlier attempt was lost that may have been applied.
    pub(super) doubt: Option<String>,
}

/// Why a question was not settled.
#[derive(Debug, Clone)]
pub(super) struct Unsettled {
    pub(super) error: Error,
    /// How an earlier attempt was lost that may have been applied.
    pub(super) doubt: Option<String>,
}

impl Unsettled {
    /// Nothing was sent, or all of it was answered.
    pub(super) const fn certain(error: Error) -> Self {
        Self { error, doubt: None }
    }
}

/// The error, with what came before it in view: a refusal speaks of its own attempt only.
impl From<Unsettled> for Error {
    fn from(Unsettled { error, doubt }: Unsettled) -> Self {
        let Some(doubt) = doubt else { return error };
        let doubted = |mut problem: Box<Problem>| {
            let detail = &problem.detail;
            problem.detail = format!("{detail} (but an earlier attempt was lost and may still be applied: {doubt})");
            problem
        };
        match error {
            Self::RateLimited(problem) => Self::RateLimited(doubted(problem)),
            Self::Refused(problem) => Self::Refused(doubted(problem)),
            other => other,
        }
    }
}

/// What asking does, and so what is safe to do after an attempt was lost.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect<'a> {
    /// Nothing: asked again at will, and never in doubt.
    Nothing,
    /// Takes a permit under this id: asked again at will.
    Permit(&'a str),
    /// The same, answered only when its turn has come: how long that takes says nothing about the way there.
    Queued(&'a str),
    /// The same whether it is applied once or twice: asked again at will.
    Repeatable,
    /// Something else each time: never asked again once it may have been applied.
    Once,
}

/// Whether nobody waits for the answer any more.
pub(super) type Unwanted<'a> = &'a (dyn Fn() -> bool + Send + Sync);
/// What is wrong with an answer, if it cannot be the one to this question.
pub(super) type Sound<'a, T> = &'a (dyn Fn(&T) -> Result<(), String> + Send + Sync);

impl Client {
    /// Puts one question to the nodes in turn until one settles it or the deadline has come.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        exchange: &Exchange,
        effect: Effect<'_>,
    ) -> Result<Settled<T>, Unsettled> {
        self.ask_while_wanted(exchange, effect, &|| false, &|_| Ok(())).await
    }

    /// The same for somebody who may go away. A question in doubt is asked on, because only its answer says what there is to
    /// give back; any other is dropped.
    pub(super) async fn ask_while_wanted<T: DeserializeOwned>(
        &self,
        exchange: &Exchange,
        effect: Effect<'_>,
        unwanted: Unwanted<'_>,
        sound: Sound<'_, T>,
    ) -> Result<Settled<T>, Unsettled> {
        let deadline = Deadline::after(self.timeout);
        let mut doubt = None;
        let mut last = Again::new("no node was asked".to_owned());
        let mut first_send = None;
        let (mut sends, mut silent_rounds, mut pause) = (0, 0, PAUSE_MIN);
        let mut tried = false;
        loop {
            let mut heard = false;
            for node in self.shared.nodes.in_turn() {
                let left = deadline.remaining();
                let in_doubt = doubt.is_some();
                if !is_worth_it(left, tried, in_doubt) || (unwanted() && !in_doubt) {
                    return Err(give_up(last, doubt, effect));
                }
                tried = true;
                let sending = Stopwatch::start();
                let reply = self.wire.exchange(&node, exchange, left.min(self.attempt_timeout)).await;
                self.note(&node, &reply, effect, sending);
                let sent = !matches!(reply, Reply::NotSent(_));
                heard |= sent;
                if sent {
                    first_send.get_or_insert(sending);
                    sends += 1;
                }
                match judge(&node, reply, sound) {
                    Judgement::Settled(answer) => {
                        return Ok(Settled { answer, first_send: first_send.unwrap_or(sending), sends, doubt });
                    }
                    // The change that is under way may be this very one.
                    Judgement::Final(Error::Refused(problem))
                        if doubt.is_some() && problem.code == Code::MembershipConflict =>
                    {
                        last = Again { problem: Some(problem.clone()), ..Again::new(problem.detail) };
                    }
                    Judgement::Final(error) => return Err(finally(error, doubt, effect)),
                    Judgement::Again(again) => {
                        if again.in_doubt {
                            doubt = Some(again.detail.clone());
                        } else if doubt.is_none() && again.is_certain(sent) {
                            (first_send, sends) = (None, 0);
                        }
                        last = again;
                    }
                }
                if doubt.is_some() && matches!(effect, Effect::Once) {
                    return Err(give_up(last, doubt, effect));
                }
            }
            silent_rounds = if heard { 0 } else { silent_rounds + 1 };
            if silent_rounds >= SILENT_ROUNDS_MAX && doubt.is_none() {
                return Err(give_up(last, doubt, effect));
            }
            let nap = match last.retry_after {
                Some(after) => beyond(after.clamp(PAUSE_MIN / 2, PAUSE_MAX), Chance::draw()),
                None => around(pause, Chance::draw()),
            };
            if nap + ATTEMPT_MIN >= deadline.remaining() {
                return Err(give_up(last, doubt, effect));
            }
            sleep(nap).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What a reply teaches besides its answer: who leads, and how far away the cluster is.
    fn note(&self, node: &str, reply: &Reply, effect: Effect<'_>, sending: Stopwatch) {
        self.shared.nodes.learn(node, reply);
        self.shared.tally.sent.many(u64::from(!matches!(reply, Reply::NotSent(_))));
        if let (Reply::Answered { status: 200 | 429, .. }, Effect::Permit(_)) = (reply, effect) {
            self.shared.round_trip.note(sending.elapsed());
        }
    }
}

/// Whether there is time for an attempt. A first one is always made, and in doubt nothing is lost by another.
fn is_worth_it(left: Duration, tried: bool, in_doubt: bool) -> bool {
    !left.is_zero() && (!tried || in_doubt || left >= ATTEMPT_MIN)
}

/// The last word on a question, by a node that decided. What it says of an attempt before is nothing: "nobody decided" then becomes
/// an unknown outcome, and a refusal keeps its doubt.
fn finally(error: Error, doubt: Option<String>, effect: Effect<'_>) -> Unsettled {
    match (error, effect) {
        (error, Effect::Nothing) => Unsettled::certain(error),
        (Error::Unavailable { detail, problem }, _) if doubt.is_some() => {
            give_up(Again { problem, ..Again::new(detail) }, doubt, effect)
        }
        (error, _) => Unsettled { error, doubt },
    }
}

fn give_up(last: Again, doubt: Option<String>, effect: Effect<'_>) -> Unsettled {
    let error = match (&doubt, effect) {
        (None, _) | (_, Effect::Nothing) => Error::Unavailable { detail: last.detail, problem: last.problem },
        (Some(detail), Effect::Permit(id) | Effect::Queued(id)) => {
            Error::OutcomeUnknown { detail: detail.clone(), request_id: Some(id.to_owned()) }
        }
        (Some(detail), Effect::Repeatable | Effect::Once) => {
            Error::OutcomeUnknown { detail: detail.clone(), request_id: None }
        }
    };
    Unsettled { error, doubt }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certain_answer_is_not_put_in_doubt_by_an_attempt_without_time() {
        let ms = Duration::from_millis;
        assert!(is_worth_it(ms(1), false, false), "somebody has to be asked");
        assert!(!is_worth_it(ms(1), true, false) && !is_worth_it(ATTEMPT_MIN.saturating_sub(ms(1)), true, false));
        assert!(is_worth_it(ATTEMPT_MIN, true, false));
        assert!(is_worth_it(ms(1), true, true), "it may learn what became of the last one");
        assert!(!is_worth_it(Duration::ZERO, false, true));
    }

    #[test]
    fn the_last_word_is_no_word_on_a_lost_attempt() {
        let doubt = || Some("cut off".to_owned());
        let full = || Error::unavailable(Problem::new(Code::TooManyKeys, "full"));
        assert!(matches!(finally(full(), None, Effect::Permit("id")).error, Error::Unavailable { .. }));
        assert!(matches!(finally(full(), doubt(), Effect::Permit("id")).error, Error::OutcomeUnknown { .. }));
        assert!(matches!(finally(full(), doubt(), Effect::Nothing).error, Error::Unavailable { .. }));
        let denied = || Error::RateLimited(Box::new(Problem::new(Code::Denied, "full")));
        let said = |doubt| Error::from(finally(denied(), doubt, Effect::Permit("id"))).to_string();
        assert_eq!(said(None), "denied: full");
        assert!(said(doubt()).ends_with("may still be applied: cut off)"));
    }
}
