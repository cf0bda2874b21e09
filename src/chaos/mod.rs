//! Real nodes, real faults, real workers, and a verdict.
//!
//! A run starts the nodes of a cluster as processes of this very program, puts proxies between them and in front of them,
//! lets workers in other processes start things at a target that has one clock, and meanwhile kills, stops, cuts off,
//! delays and breaks whatever the plan says, several at once, as the seed decides. Afterwards it judges what was seen:
//! by a linearizability checker, by the target's arrivals, and by the states of the nodes.
//!
//! Invariants
//! - Nothing here takes part in a node: it sees nodes as workers and operators do, from outside.
//! - What could not be injected is said; what was injected is counted; a run without load or without faults fails.
//! - Whatever ends a run, nothing of it stays behind but its directory.
//! - The judge is tested itself: hand-made bad histories are refused.
//!
//! Not here: the simulation of a whole cluster in one process (`tests/`), the command line (`cli/`).

mod clocks;
mod cluster;
mod disk;
mod fault;
mod floor;
mod helpers;
mod history;
mod inject;
mod judge;
mod leader;
mod load;
mod members;
pub mod model;
mod operations;
mod ports;
mod power;
mod proxy;
mod replays;
mod report;
mod rng;
mod run;
mod schedule;
pub mod target;
mod ticks;
mod tools;
mod windows;
pub mod worker;

pub use crate::progress::Progress;
pub use fault::Kind;
pub use judge::{Finding, Starts};
pub use ports::free_port;
pub use report::{Bar, Load, Report, Second, Spread};
pub use run::{Plan, run, run_until};
pub use tools::Tools;
