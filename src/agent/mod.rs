//! `quorate agent`: leased blocks, so that a site far away pays the way to the cluster once a block and not once a permit.
//!
//! Workers of the site ask the agent as they would ask a node. It reserves slots ahead in one batch, hands them out with the
//! times that are left of them, and gives back what nobody here needs.
//!
//! Invariants
//! - Every slot that is handed out was granted by the cluster to this agent, and is handed out once. `block.rs` has the argument
//!   why starts stay apart.
//! - Nothing is invented: an agent that holds nothing and reaches nobody refuses. One that dies wastes what it held.
//! - A permit that was handed out or given back is never handed out again, whoever gives it back: numbers mean one start.
//! - Only limits with slots, spacing and buckets, are leased, one permit at a time. All else is put to the cluster one to one.
//! - Keys, slots, waiting workers, remembered ids and bodies are bounded, each with a clear error.
//!
//! Not here: what is granted (the cluster decides).
//!
//! `block.rs` is the pure core; `ids.rs` remembers request ids; `asleep.rs` knows when the clock stood still; `desk.rs` is all state and what happens to it; `reserve.rs` asks for
//! blocks and gives back; `cluster.rs` is the way to the nodes; `ask.rs` reads requests; `server.rs` answers workers.

mod ask;
mod asleep;
pub mod block;
mod cluster;
mod desk;
mod ids;
mod meters;
mod options;
mod reserve;
mod server;

pub use options::Options;
pub use reserve::Agent;
