//! What can come of a call besides an answer, told apart by what it says about the permit.

use crate::api::Problem;
use thiserror::Error;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// Over the limit: a decision like any other. Nothing was consumed.
    #[error("denied: {}", .0.detail)]
    Denied(Box<Problem>),
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
            Self::Denied(problem) | Self::Refused(problem) => Some(problem),
            Self::Unavailable { problem, .. } => problem.as_deref(),
            Self::OutcomeUnknown { .. } | Self::Misuse(_) => None,
        }
    }
}
