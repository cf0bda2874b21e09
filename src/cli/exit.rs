//! How the program ends.

use crate::api::{Code, Problem};
use crate::client;
use crate::config::Problems;
use std::fmt::Write as _;

/// The published exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// Granted or done.
    Done,
    /// Something went wrong.
    Error,
    /// The command line or the configuration is wrong.
    Usage,
    /// Over the limit.
    Denied,
    /// Certainly not granted: nobody decided.
    Unavailable,
    /// May or may not have been granted.
    OutcomeUnknown,
    /// The permit was granted: what came of the command to run under it, or what shells answer if it could not be started.
    Command(u8),
}

impl Exit {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Error => 1,
            Self::Usage => 2,
            Self::Denied => 3,
            Self::Unavailable => 4,
            Self::OutcomeUnknown => 5,
            Self::Command(code) => code,
        }
    }

    /// The word for it where no node has given a better one.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Error | Self::Command(_) => "error",
            Self::Usage => "usage",
            Self::Denied => Code::Denied.as_str(),
            Self::Unavailable => "unavailable",
            Self::OutcomeUnknown => Code::OutcomeUnknown.as_str(),
        }
    }
}

/// Why a command ends early.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    /// For a person; empty where nobody is there to read it.
    pub(super) message: String,
    /// What the node said, if one did.
    pub(super) problem: Option<Box<Problem>>,
    /// The id to ask again under, where the outcome is unknown.
    pub(super) request_id: Option<String>,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), problem: None, request_id: None }
    }

    pub(super) fn error(message: impl Into<String>) -> Self {
        Self::new(Exit::Error, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// All has been said; only the exit code is left.
    pub(super) fn said(exit: Exit) -> Self {
        Self::new(exit, String::new())
    }

    /// Nobody reads what we write: that is their right, and no error.
    pub(super) fn closed_pipe() -> Self {
        Self::said(Exit::Done)
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let exit = match &error {
            client::Error::RateLimited(_) | client::Error::Timeout { .. } => Exit::Denied,
            client::Error::Unavailable { .. } => Exit::Unavailable,
            client::Error::OutcomeUnknown { .. } => Exit::OutcomeUnknown,
            client::Error::Refused(_) | client::Error::LeaseLost(_) => Exit::Error,
            client::Error::Misuse(_) => Exit::Usage,
        };
        let mut failure = Self::new(exit, error.to_string());
        failure.problem = error.problem().cloned().map(Box::new);
        if let client::Error::OutcomeUnknown { request_id: Some(request_id), .. } = error {
            let _ = write!(failure.message, "\nask again with --request-id {request_id} to learn it");
            failure.request_id = Some(request_id);
        }
        if let Some(retry) = failure.problem.as_ref().and_then(|problem| problem.retry_after_ms) {
            let _ = write!(failure.message, " (again in {})", super::output::seconds(retry));
        }
        failure
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::usage(problems.to_string())
    }
}
