//! What is asked of a limit and what it answers.

use super::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// The terms of one request: how soon, and how long it would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Terms {
    /// The earliest useful slot is this far ahead: the answer still has to travel to the worker.
    pub lead: Span,
    /// The longest acceptable time until the slot; `None` leaves it to the limit.
    pub max_wait: Option<Span>,
    /// Take only what is free at this very instant.
    pub free_now_only: bool,
}

/// The verdict on one request. Where several limits are asked at once, `by` is the place of the one that refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The first instant the worker may start, the same for all limits.
    Granted {
        /// In cluster time.
        slot: Time,
    },
    /// Over the limit; nothing changes.
    Denied {
        /// Which limit refused.
        by: usize,
        /// Why, and for how long.
        denial: Denial,
    },
    /// No state could ever grant this; says why.
    Never {
        /// Which limit refuses.
        by: usize,
        /// For a person.
        why: String,
    },
}

/// Why a request was denied and when the same one could be granted if nobody else came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// Which rule refused.
    pub reason: Reason,
    /// From now, in cluster time. Of several limits that refuse it is the longest: a lower bound for all of them together.
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
    /// The window has no room now.
    WindowFull,
    /// As many as may be are in flight.
    InFlightFull,
}

impl Reason {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReservationsFull => "reservations_full",
            Self::WouldWaitTooLong => "would_wait_too_long",
            Self::NotFreeNow => "not_free_now",
            Self::WindowFull => "window_full",
            Self::InFlightFull => "in_flight_full",
        }
    }
}
