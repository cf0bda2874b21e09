//! A running node: takes requests, finds the leader, batches, stamps, proposes, and answers with the right certainty.
//!
//! Invariants
//! - No decision is made from a node's own state: it comes out of a committed log entry, or there is none.
//! - A request is answered as refused only if it is certain that it was not applied; else the outcome is unknown.
//! - One hop: a forwarded request is never forwarded again.
//! - Everything that waits is bounded in number and time.
//!
//! Not here: how entries are agreed on and stored (`raft/`), what clients send (`http/`).

mod answer;
mod forward;
mod forwarder;
mod handle;
mod held;
mod membership;
mod options;
mod proposer;
mod queue;
mod reach;
mod room;
mod running;
mod search;
mod verdict;
mod views;
mod waitroom;

pub use crate::raft::{Observer, StartError, Surroundings};
pub use handle::Handle;
pub use membership::{Change, Changed, Obstacle};
pub use options::Options;
pub use running::{Node, start, start_in};
pub use verdict::{Failure, Look, Refusal, Rules, Verdict};
pub use views::{ClusterView, DigestView, MemberView, Readiness};
