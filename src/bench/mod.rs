//! How fast a cluster is, measured from outside, and beside others in the same run.
//!
//! A load of so many connections runs in threads of its own and speaks to sockets directly, so that the generator costs little of what
//! it measures. Closed loop: each connection asks again when it has its answer. Open loop: requests are due at a rate whether or not
//! answers have come, and every latency counts from the instant its request was **due**; a server that stalls cannot hide that by
//! being asked less (coordinated omission).
//!
//! Invariants
//! - What is measured is said: answers that granted nothing, errors and changes of the leader are counted, never left out.
//! - Figures of different machines or runs are never compared: ratios are of one run.
//! - Whatever is started here is ended here.
//!
//! Not here: the command line (`cli/`), micro-benchmarks (`benches/`).

mod baseline;
mod compare;
mod dialect;
mod fill;
mod histogram;
mod load;
mod pacer;
mod plan;
mod rival;
mod table;
mod wire;

pub use baseline::Baseline;
pub use compare::{Comparison, Row, compare};
pub use dialect::{Dialect, WaitMode};
pub use fill::fill;
pub use histogram::{Quantiles, Second};
pub use load::{Measured, measure};
pub use plan::Plan;
pub use table::{table, text};
