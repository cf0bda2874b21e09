//! Stored rules: reading them, and changing them without running over somebody else's change.
//!
//! A change is the same whether it is applied once or twice, so a lost attempt is followed by another. What that one is
//! told may be the doing of the first: a refusal then says nothing about the whole, and only a look can.

use super::error::Error;
use super::exchange::Exchange;
use super::settle::{Effect, Unsettled};
use super::{Client, path};
use crate::api::{Code, PoliciesResponse, PolicyDeleted, PolicyRequest, PolicyResponse, Problem};

/// What has to be true of a policy for a change to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// It has this revision: `If-Match: "7"`.
    Revision(u64),
    /// It is there: `If-Match: *`.
    Exists,
    /// It is not there: `If-None-Match: *`.
    Absent,
}

/// A policy is not there any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Its name.
    pub name: String,
    /// The revision of the change; `None` where its answer was lost and only the absence is known.
    pub revision: Option<u64>,
}

impl Client {
    /// All policies, sorted by name.
    pub async fn policies(&self) -> Result<PoliciesResponse, Error> {
        Ok(self.ask(&Exchange::get("/policies".to_owned()), Effect::Nothing).await?.answer)
    }

    /// One policy; a refusal with `no_policy` if there is none of this name.
    pub async fn policy(&self, name: &str) -> Result<PolicyResponse, Error> {
        Ok(self.ask(&Exchange::get(path("policies", name)?), Effect::Nothing).await?.answer)
    }

    /// Makes a policy what it shall be. The same content again changes nothing and keeps its revision.
    ///
    /// If an attempt is lost and the next one refused, the policy is looked at: it is as it shall be (word for word), or
    /// the outcome is unknown.
    pub async fn put_policy(
        &self,
        name: &str,
        policy: &PolicyRequest,
        precondition: Option<Precondition>,
    ) -> Result<PolicyResponse, Error> {
        let exchange = Exchange::put(path("policies", name)?, policy)?;
        let settled = self.ask(&conditional(exchange, precondition), Effect::Repeatable).await;
        // Whatever came of it, the limits may be others now.
        self.shared.denials.forget_all();
        let unsettled = match settled {
            Ok(settled) => return Ok(settled.answer),
            Err(unsettled) => unsettled,
        };
        match by_state(unsettled)? {
            Refusal { doubt: None, problem } => Err(Error::Refused(problem)),
            Refusal { doubt: Some(doubt), problem } => match self.policy(name).await {
                Ok(stored) if is(&stored, policy) => Ok(stored),
                _ => Err(unknown(&doubt, &problem)),
            },
        }
    }

    /// Deletes a policy, if it has this revision where one is given.
    pub async fn delete_policy(&self, name: &str, if_match: Option<u64>) -> Result<Removed, Error> {
        let exchange = conditional(Exchange::delete(path("policies", name)?), if_match.map(Precondition::Revision));
        let settled = self.ask::<PolicyDeleted>(&exchange, Effect::Repeatable).await;
        self.shared.denials.forget_all();
        let unsettled = match settled {
            Ok(settled) => {
                let PolicyDeleted { name, revision, .. } = settled.answer;
                return Ok(Removed { name, revision: Some(revision) });
            }
            Err(unsettled) => unsettled,
        };
        match by_state(unsettled)? {
            Refusal { doubt: None, problem } => Err(Error::Refused(problem)),
            // Gone is what was wanted, whoever did it.
            Refusal { problem, .. } if problem.code == Code::NoPolicy => {
                Ok(Removed { name: name.to_owned(), revision: None })
            }
            Refusal { doubt: Some(doubt), problem } => Err(unknown(&doubt, &problem)),
        }
    }
}

fn conditional(exchange: Exchange, precondition: Option<Precondition>) -> Exchange {
    match precondition {
        None => exchange,
        Some(Precondition::Revision(revision)) => exchange.header("if-match", format!("\"{revision}\"")),
        Some(Precondition::Exists) => exchange.header("if-match", "*".to_owned()),
        Some(Precondition::Absent) => exchange.header("if-none-match", "*".to_owned()),
    }
}

/// A refusal because of how things stand.
struct Refusal {
    problem: Box<Problem>,
    /// Whether an earlier attempt may have made them so.
    doubt: Option<String>,
}

/// Tells refusals because of how things stand from all other failures. A request that is refused for what it is was
/// refused the first time as well.
fn by_state(unsettled: Unsettled) -> Result<Refusal, Error> {
    match unsettled {
        Unsettled { error: Error::Refused(problem), doubt }
            if matches!(
                problem.code,
                Code::RevisionMismatch | Code::PolicyConflict | Code::NoPolicy | Code::TooManyPolicies
            ) =>
        {
            Ok(Refusal { problem, doubt })
        }
        unsettled => Err(unsettled.into()),
    }
}

fn unknown(doubt: &str, problem: &Problem) -> Error {
    let detail = format!("{doubt}; asked again, the answer was: {}", problem.detail);
    Error::OutcomeUnknown { detail, request_id: None }
}

/// Whether a policy is what was asked for, word for word.
fn is(stored: &PolicyResponse, wanted: &PolicyRequest) -> bool {
    let overrides = |word: &String| word.parse().is_ok_and(|member| wanted.overrides.contains(&member));
    stored.pattern == wanted.pattern
        && stored.limit == wanted.limit
        && stored.overrides.len() == wanted.overrides.len()
        && stored.overrides.iter().all(overrides)
}
