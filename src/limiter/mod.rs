//! The arithmetic of limits: pure functions of (register, request, time).
//!
//! Invariants
//! - Integers only, in nanoseconds of cluster time. No floats, no clock, no randomness, no hash order.
//! - Rounding goes the safe way: intervals and waits up, deadlines down.
//! - A denial leaves the register as it was.
//!
//! Not here: who asks twice (`state/`), what time it is (`clock/`), how a limit looks in JSON (`api/`).

mod decision;
mod key;
mod limit;
mod rate;
mod spacing;
mod time;

pub use decision::{Ask, Decision, Denial, Reason};
pub use key::{Key, KeyError};
pub use limit::{Limit, LimitError};
pub use rate::{Rate, RateError, parse_duration};
pub use spacing::Spacing;
pub use time::{Span, Time};
