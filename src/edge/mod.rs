//! What the two small servers at the edge have in common, `quorate proxy` and `quorate agent`: accepting, answering, stopping.
//!
//! Invariants
//! - Connections, heads and bodies are bounded; past a bound there is a problem document, never silence.
//! - A listener that is told to stop accepts nobody any more, lets requests in flight finish within its grace, then closes.
//! - Who holds a request can see that its client has gone ([`Hangup`]), also behind a body that nobody reads yet.
//!
//! Not here: anything about permits. A node has a server of its own (`http/`), which answers far more requests.

mod body;
mod listener;
mod reply;
mod scrape;
mod signals;
mod socket;

pub use body::{BodyError, read_up_to};
pub use hyper::body::Incoming;
pub use listener::{Bounds, Peer, serve};
pub use reply::{Body, json, problem, said, text};
pub use scrape::{metrics, upkeep};
pub use signals::Signals;
pub use socket::Hangup;
