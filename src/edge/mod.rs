//! What every listener of ours has in common: nodes, `quorate proxy` and `quorate agent`. Sockets, deadlines, turning away, stopping.
//!
//! Invariants
//! - Connections, heads and bodies are bounded; past a bound there is a problem document, never silence.
//! - A listener that is told to stop accepts nobody any more, lets requests in flight finish within its grace, then closes.
//! - Who holds a request can see that its client has gone ([`Hangup`]), also behind a body that nobody reads yet.
//!
//! Not here: anything about permits. [`serve`] is for the two small servers; a node spreads its connections over threads and answers
//! far more requests, so its loop is its own (`http/server.rs`), of the same parts.

pub mod accept;
mod body;
mod guard;
mod listener;
pub mod reject;
mod reply;
mod scrape;
mod signals;
mod socket;

pub use body::{BodyError, read_up_to};
pub use guard::{Deadlines, Guarded, Phase};
pub use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
pub use listener::{Bounds, Peer, serve};
pub use reply::{Body, BoxError, json, problem, said, text};
pub use scrape::{metrics, upkeep};
pub use signals::Signals;
pub use socket::{Hangup, Socket};
