//! Quorate: a rate limiter that does not forget and does not lie.
//!
//! A small Raft cluster keeps, per key, the linearizable register "when may the next permit start", and grants
//! reservations through committed log entries. `docs/ARCHITECTURE.md` is the map of the modules below; `tests/tidy.rs`
//! enforces which of them may use which.
//!
//! With the feature `client` alone there are only [`client`] and what it stands on: the wire ([`api`]), the text of rates
//! ([`limiter`]), the bounds ([`limits`]) and a stopwatch. What makes a node is behind the feature `server`, which is on
//! by default (`docs/adr/0019-client-without-server.md`).

#[cfg(feature = "server")]
pub mod agent;
pub mod api;
#[cfg(feature = "server")]
pub mod bench;
#[cfg(feature = "server")]
pub mod chaos;
#[cfg(feature = "server")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "client")]
pub mod clock;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "server")]
pub mod edge;
#[cfg(feature = "server")]
pub mod failpoint;
#[cfg(feature = "server")]
pub mod history;
#[cfg(feature = "server")]
pub mod http;
pub mod limiter;
pub mod limits;
#[cfg(feature = "server")]
pub mod metric_names;
#[cfg(feature = "server")]
pub mod node;
#[cfg(feature = "server")]
pub mod planted;
#[cfg(feature = "server")]
mod priority;
#[cfg(feature = "server")]
pub mod progress;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod raft;
#[cfg(feature = "server")]
pub mod state;
#[cfg(feature = "server")]
pub mod telemetry;
#[cfg(feature = "server")]
pub mod watch;
