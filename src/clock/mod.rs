//! The only readers of clocks, and the rule that turns their readings into cluster time.
//!
//! Time is data here: the leader stamps it into the log entry and everybody applies that. What a node adds of its own is
//! one [`Reading`] per stamped entry, taken **after** the entry arrived and stored with it, never replicated.
//!
//! ```text
//! on every election     (C, obs) = the last stamped entry in my own log order, or the snapshot's last stamp
//!                       base     = (C, obs) if obs was read on my clocks and obs <= now on both, else (C, now)
//! T(now)                = base.C + max(0, min(now.mono - base.mono, now.raw - base.raw))
//! on every stamp        base = (T(now), now)
//! ```
//!
//! **Lemma.** For entries i before j in the log, stamped at real times `s_i` and `s_j`, `C_j - C_i <= (1 + r)(s_j - s_i)`,
//! where r bounds only how *fast* a node's elapsed time may run. Freezes, pauses, late delivery and lost time waste
//! capacity and nothing else. `tests/clock_model` checks it on random histories.
//!
//! Invariants
//! - No wall clock in any decision: [`wall_millis`] is for history and the date of an answer, which people read. Nothing in a decision reads any
//!   clock but through [`Clocks`].
//! - Never a maximum over observations: two nodes that continue from the latest time *each* of them knows are ahead of
//!   one another in turn, and both grant. The last entry in log order is the one that everybody agrees on.
//! - Every doubt (another boot, another time namespace, a reading from the future) is settled by losing elapsed time.
//!
//! What the caller owes to the rule
//! - The proposer gathers the entry's requests first and reads the clocks then; an answer reads them after the commit.
//! - `obs` lives in the entry: truncation takes it along. After a snapshot, `obs` is the moment of installing.
//! - An entry stamped by another leader id than its log id names was stamped on a timeline that had ended. Apply rejects
//!   it, and **it is no base either**: its stamp may lie ahead of entries that stand before it in the log.
//! - `T` is monotone, so apply's clamp `max(stamp, state.now)` has nothing to do unless a rule above was broken.
//!
//! A client has only the stopwatch: the rest is for nodes, behind the feature `server`.
//!
//! Not here: who leads and what is in the log (`raft/`), what is done with the time (`state/`).

#[cfg(feature = "server")]
mod manual;
#[cfg(feature = "server")]
mod reading;
mod stopwatch;
#[cfg(feature = "server")]
mod system;
#[cfg(feature = "server")]
mod timeline;
#[cfg(feature = "server")]
mod wall;
#[cfg(feature = "server")]
mod watch;

#[cfg(feature = "server")]
pub use manual::ManualClocks;
#[cfg(feature = "server")]
pub use reading::{ClockId, Clocks, Reading};
pub use stopwatch::{Deadline, Stopwatch};
#[cfg(feature = "server")]
pub use system::SystemClocks;
#[cfg(feature = "server")]
pub use timeline::Timeline;
#[cfg(feature = "server")]
pub use wall::wall_millis;
#[cfg(feature = "server")]
pub use watch::DriftWatch;
