//! What is asked of a limit and what it answers.

use super::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The terms of one request: how much, and how long it would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// How many permits' worth of capacity this one takes; at least 1.
    pub cost: u64,
    /// The earliest useful slot is this far ahead: the answer still has to travel to the worker.
    pub lead: Span,
    /// The longest acceptable time until the slot; `None` leaves it to `max_reserved`.
    pub max_wait: Option<Span>,
    /// Take only what is free at this very instant.
    pub free_now_only: bool,
}

/// One permit, now or as soon as the limit reserves one.
impl Default for Ask {
    fn default() -> Self {
        Self { cost: 1, lead: Span::ZERO, max_wait: None, free_now_only: false }
    }
}

/// The verdict of a limit on one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The permit's slot, and what the register becomes.
    Granted {
        /// The first instant the worker may start.
        slot: Time,
        /// The first instant the permit after it may take.
        next: Time,
    },
    /// Over the limit; the register stays as it was.
    Denied(Denial),
    /// No state of the register could ever grant this; says why.
    Never(String),
}

/// Why a request was denied and when the same one could be granted if nobody else came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Which rule refused.
    pub reason: Reason,
    /// From now, in cluster time.
    pub retry_after: Span,
}

/// Which rule refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// `max_reserved` permits lie ahead already.
    ReservationsFull,
    /// The slot lies farther ahead than `max_wait`.
    WouldWaitTooLong,
    /// Only a permit free now was wanted.
    NotFreeNow,
}

impl Reason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReservationsFull => "reservations_full",
            Self::WouldWaitTooLong => "would_wait_too_long",
            Self::NotFreeNow => "not_free_now",
        }
    }
}
