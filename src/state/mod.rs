//! The replicated state machine: batches of commands in, outcomes out.
//!
//! Invariants
//! - Pure: the same batches in the same order give the same state, bit for bit, on every node. Time comes from the stamp
//!   in the batch; nothing here reads a clock, a random number or the order of a hash map.
//! - Whatever grows is bounded: keys by the batch's `keys_max`, request ids by `limits`, the work of forgetting either by
//!   a number per entry.
//! - A command that is not granted changes nothing.
//!
//! Not here: how entries get into an order everybody agrees on (`raft/`), and what a limit means (`limiter/`).

mod acquire;
mod command;
mod keys;
mod machine;
mod outcome;
mod policies;
mod requests;
mod shards;
mod snapshot;
mod sorted;

pub use command::{
    Acquire, Batch, Command, Held, Identity, LeaderId, Several, SeveralRule, Stamp, Wanted, Withdraw, request_id_hash,
};
pub use machine::{Frozen, Machine};
pub use outcome::{Applied, Grant, KeyView, Outcome, Permit};
pub use policies::{Condition, Pattern, Policy, PolicyError, Rule, Stored, policy_name};
pub use snapshot::SnapshotError;
