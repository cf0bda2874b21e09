//! The arithmetic of limits: pure functions of (register, request, time).
//!
//! Invariants
//! - Integers only, in nanoseconds of cluster time. No floats, no clock, no randomness, no hash order.
//! - Rounding goes the safe way: intervals, counts and waits up, deadlines down.
//! - A denial leaves the register as it was.
//!
//! Not here: who asks twice (`state/`), what time it is (`clock/`), how a limit looks in JSON (`api/`).

mod book;
mod bucket;
mod cells;
mod chain;
mod concurrency;
mod decide;
mod decision;
mod key;
mod leases;
mod limit;
mod overrides;
mod pace;
mod ramp;
mod rate;
mod register;
mod spacing;
mod start;
mod time;
mod window;

pub use bucket::Bucket;
pub use concurrency::Concurrency;
pub use decide::{Part, decide};
pub use decision::{Decision, Denial, Reason, Terms};
pub use key::{Key, KeyError};
pub use limit::{Limit, LimitError};
pub use overrides::{Member, Overrides};
pub use ramp::Ramp;
pub use rate::{Rate, RateError, parse_duration};
pub use register::{Entry, Register, Standing};
pub use spacing::Spacing;
pub use time::{Span, Time};
pub use window::Window;
