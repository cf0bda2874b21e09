//! What can come of a call besides an answer, told apart by what it says about the permit.

use super::lease::Lost;
use crate::api::{Code, Millis, Problem};
use std::time::Duration;
use thiserror::Error;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// Over the limit: a decision like any other. Nothing was consumed, unless the detail names an earlier attempt that was lost.
    #[error("denied: {}", .0.detail)]
    RateLimited(Box<Problem>),
    /// There was no permit to be had within the patience of the caller, or this client's own queue was too long. Nothing is held.
    #[error("timeout: {detail}")]
    Timeout {
        /// What the time went by with.
        detail: String,
    },
    /// Nobody decided. Certainly nothing was consumed.
    #[error("unavailable: {detail}")]
    Unavailable {
        /// The last thing that went wrong.
        detail: String,
        /// What the node said, if one did.
        problem: Option<Box<Problem>>,
    },
    /// The request may or may not have been applied. For a permit, only asking again under the same id is safe; for
    /// anything else, look before you ask again.
    #[error("outcome unknown: {detail}")]
    OutcomeUnknown {
        /// How certainty was lost.
        detail: String,
        /// The id to ask again under; only requests for permits have one.
        request_id: Option<String>,
    },
    /// A node refused the request as such; asking again changes nothing.
    #[error("refused: {}", .0.detail)]
    Refused(Box<Problem>),
    /// The lease under which work was done is lost: the work was dropped, because another one may be in flight.
    #[error("lease lost: {0}")]
    LeaseLost(Lost),
    /// The call could not even be made.
    #[error("{0}")]
    Misuse(String),
}

impl Error {
    pub(super) fn unavailable(problem: Problem) -> Self {
        Self::Unavailable { detail: problem.detail.clone(), problem: Some(Box::new(problem)) }
    }

    /// What the node said, if one did.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::RateLimited(problem) | Self::Refused(problem) => Some(problem),
            Self::Unavailable { problem, .. } => problem.as_deref(),
            Self::Timeout { .. } | Self::OutcomeUnknown { .. } | Self::LeaseLost(_) | Self::Misuse(_) => None,
        }
    }

    /// When asking again makes sense, where the cluster said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem()?.retry_after_ms.map(Millis::duration)
    }

    /// Whether the cluster was out of reach: nobody decided, or nobody could say so. A healthy cluster that has no room for
    /// another key has decided.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::Unavailable { problem, .. } => {
                problem.as_ref().is_none_or(|problem| !matches!(problem.code, Code::TooManyKeys))
            }
            Self::OutcomeUnknown { .. } => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_when_nobody_decided() {
        let said = |code| Error::unavailable(Problem::new(code, "said so"));
        assert!(said(Code::NoQuorum).is_outage() && said(Code::NoLeader).is_outage());
        assert!(Error::Unavailable { detail: String::new(), problem: None }.is_outage());
        assert!(Error::OutcomeUnknown { detail: String::new(), request_id: None }.is_outage());
        assert!(!said(Code::TooManyKeys).is_outage(), "the whole cluster decided that");
        assert!(!Error::RateLimited(Box::new(Problem::new(Code::Denied, ""))).is_outage());
        assert!(!Error::Misuse(String::new()).is_outage());
    }

    #[test]
    fn a_denial_says_when_to_ask_again() {
        let problem = Problem::new(Code::Denied, "full").retry_after(Millis::up_from(Duration::from_millis(40)));
        assert_eq!(Error::RateLimited(Box::new(problem)).retry_after(), Some(Duration::from_millis(40)));
        assert_eq!(Error::Timeout { detail: String::new() }.retry_after(), None);
    }
}
