//! What stands in for a node in `quorate bench`: it grants at once and asks nobody, so that what is left is HTTP and JSON.

use crate::limiter::{Span, Time};
use crate::node::{Failure, Refusal, Verdict};
use crate::state::{Command, Grant, Outcome, Permit};
use std::sync::atomic::{AtomicU64, Ordering};

/// The stand-in.
#[derive(Debug, Default)]
pub(super) struct Ceiling {
    permits: AtomicU64,
}

impl Ceiling {
    /// A permit for every request; nothing else is decided here.
    pub(super) fn decide(&self, command: &Command) -> Result<Verdict, Failure> {
        let outcome = match command {
            Command::Acquire(_) => self.granted(),
            Command::Several(several) => Outcome::Several(several.acquires.iter().map(|_| self.granted()).collect()),
            _ => return Err(no_node()),
        };
        Ok(Verdict { outcome, at: Time(1) })
    }

    fn granted(&self) -> Outcome {
        let number = self.permits.fetch_add(1, Ordering::Relaxed) + 1;
        let first = Permit { number, reserved: 0, remaining: 1, reset_after: Span::ZERO, rule: None };
        Outcome::Granted(Grant {
            slot: Time(1),
            stamp: Time(1),
            start_before: None,
            expires_at: None,
            replayed: false,
            first,
            more: Vec::new(),
        })
    }
}

/// The answer to everything else.
pub(super) fn no_node() -> Failure {
    let detail = "this is only the ceiling of a benchmark: there is no node behind it".to_owned();
    Failure::Refused { refusal: Refusal::NoLeader, detail, retry_after: Span::from_secs(1) }
}
