//! `quorate proxy`: a reverse proxy that holds each request until its permit, then passes it on.
//!
//! Invariants
//! - No request is passed on without a permit whose slot has come and whose window is open: without a cluster none is.
//! - Bodies go through as they come, both ways. Nothing is read from a client while its request is held.
//! - A client that goes away while it is held gives back what it has: its place, its permit, or the permit that is on its way.
//! - Held requests are bounded, and so is the time that each is held.
//!
//! Not here: what is granted (the cluster decides), TLS (put this behind or in front of something that speaks it).
//!
//! The way of a request: `server.rs` gives it a place, `hold.rs` holds it, `forward.rs` passes it on, `headers.rs` knows what
//! belongs to one connection and not to the message.

mod errands;
mod forward;
mod headers;
mod hold;
mod lines;
mod meters;
mod options;
mod refusal;
mod server;
mod timed;

pub use options::{KeySource, Options, upstream};
pub use server::{Listeners, run};
