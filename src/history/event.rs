//! What is told to the history: applied entries, and changes that stand in no entry.
//!
//! These types are the history's own, so that the replicated machine can change without it. Not here: how any of this is
//! kept.

use crate::limiter::{Key, Time};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One applied log entry. An entry without events is worth telling as well: it moves the history's idea of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// Its index in the log. What comes again after a restart is known by it and skipped.
    pub index: u64,
    /// Cluster time of the entry.
    pub at: Time,
    /// What came of its commands, in their order.
    pub events: Vec<Event>,
}

/// What came of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A permit was granted. A retry that got its old permit again is none.
    Granted {
        /// What was limited.
        key: Key,
        /// The stored rule that decided, if one did.
        policy: Option<Arc<str>>,
        /// The fencing number.
        permit: u64,
        /// When the permit may start.
        slot: Time,
        /// How many permits' worth it took.
        cost: u64,
        /// Who asked, if the request said so.
        worker: Option<Arc<str>>,
    },
    /// A request was denied.
    Denied {
        /// What was limited.
        key: Key,
        /// The stored rule that decided, if one did.
        policy: Option<Arc<str>>,
        /// How many permits' worth it would have taken.
        cost: u64,
        /// The word for the rule that refused.
        reason: &'static str,
        /// Who asked, if the request said so.
        worker: Option<Arc<str>>,
    },
    /// A permit was given back.
    Released {
        /// What was limited.
        key: Key,
        /// Its fencing number.
        permit: u64,
    },
    /// A key was set back to fresh; goes to the audit trail.
    Reset {
        /// Which.
        key: Key,
    },
    /// Something for the audit trail.
    Audit(Audit),
}

/// A change of the cluster itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Audit {
    /// A rule was stored.
    PolicyPut {
        /// Its name.
        name: String,
        /// Which version of it this is.
        revision: u64,
        /// The rule in a few words.
        summary: String,
    },
    /// A rule was deleted.
    PolicyDeleted {
        /// Its name.
        name: String,
        /// The version that is gone.
        revision: u64,
    },
    /// A key was set back to fresh.
    KeyReset {
        /// Which.
        key: String,
    },
    /// The members changed.
    Membership {
        /// Those who vote.
        voters: Vec<u64>,
        /// Those who only listen.
        learners: Vec<u64>,
    },
    /// This node saw a new leader.
    Leader {
        /// Which node.
        node: u64,
        /// Since which term.
        term: u64,
    },
}
