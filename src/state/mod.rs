//! The replicated state machine: commands in, outcomes out.

mod command;
mod outcome;

pub use command::{Acquire, Batch, Command, Identity, LeaderId, Stamp};
pub use outcome::{Applied, Grant, KeyView, Outcome};
