//! The client API over HTTP/1.1: translates [`crate::api`] to [`crate::node::Handle`] and back.
//!
//! Invariants
//! - Every answer that is not a success is a problem (RFC 9457) with a stable code, also for unknown routes, wrong
//!   methods and panics. Two exceptions: probes answer in text, and bytes that are no HTTP at all get the bare 400 or
//!   431 of the HTTP library.
//! - Nothing is without a bound: connections, headers, bodies, and the time each of them and each answer may take.
//! - No decision is made here. What a request asks for is checked for shape and sense, then handed on.
//!
//! Not here: what is granted (`limiter/`, `state/`), who leads (`node/`), how things look in JSON (`api/`).
//!
//! The way of a request: `server.rs` accepts and puts the connection on a thread of the `crew.rs`, `guard.rs` bounds the connection, `express.rs` serves what is plain and hands
//! over to the HTTP library at the first request that is not, `shell.rs` surrounds every answer (panics, headers, counting), `route.rs` finds the file with the handler, `upstream.rs` is the node behind it.

mod acquire;
mod answer;
mod app;
mod ask;
mod audit;
mod batch;
mod body;
mod ceiling;
mod cluster;
mod crew;
mod digest;
mod express;
mod history;
mod index;
mod keys;
mod limit;
mod members;
mod meters;
mod metrics;
mod openapi;
mod options;
mod policies;
mod probes;
mod query;
mod rate_limit;
mod release;
mod respond;
mod rewound;
mod route;
mod server;
#[cfg(test)]
mod server_tests;
mod shell;
mod upstream;
mod utc;

pub use crew::Crew;
pub use limit::limit_of;
pub use openapi::document;
pub use options::Options;
pub use server::{serve, serve_ceiling};
