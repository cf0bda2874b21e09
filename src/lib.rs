//! Quorate: a rate limiter that does not forget and does not lie.
//!
//! A small Raft cluster keeps, per key, the linearizable register "when may the next permit start", and grants
//! reservations through committed log entries. `docs/ARCHITECTURE.md` is the map of the modules below; `tests/tidy.rs`
//! enforces which of them may use which.

pub mod agent;
pub mod api;
pub mod bench;
pub mod chaos;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod edge;
pub mod failpoint;
pub mod history;
pub mod http;
pub mod limiter;
pub mod limits;
pub mod metric_names;
pub mod node;
pub mod planted;
pub mod progress;
pub mod proxy;
pub mod raft;
pub mod state;
pub mod telemetry;
pub mod watch;
