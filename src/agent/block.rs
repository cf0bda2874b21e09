//! Blocks of slots: what is held, what to hand out, how many to ask for, what to give back. Pure functions of time.
//!
//! Every instant is a number of nanoseconds on one clock, the agent's own monotonic one.
//!
//! # Why starts stay apart
//!
//! The cluster promises (P2): a worker that first sent at `c_s` and received at `c_r`, and starts no earlier than `c_r + wait`
//! and no later than `c_s + before`, never starts too close to another. Here that worker is the agent: it takes `c_s` before
//! the first attempt for a block and `c_r` after the last byte of the answer. So slot `i` may start **from `c_r + wait_i`** and
//! **until `c_s + before_i`** on the agent's clock, whoever does the starting. What is left to show is that a worker that
//! obeys the agent's answer stays within these two instants. r bounds the drift of all clocks.
//!
//! - *Not too early.* The agent answers at `a`, reads its clock before that, and says `wait' = c_r + wait - a`, rounded up. The
//!   worker counts `wait'` from its receipt, which is later than `a`. From `c_r` on, real time of at least
//!   `(a - c_r) / (1 + r) + wait' / (1 + r) >= wait / (1 + r)` has passed: no less than the proof asks of one clock.
//! - *Not too late.* The worker counts `before'` from **its own first send**, at the real instant `t`, which nobody else knows. The
//!   agent knows `f`, when it first saw the `request_id` (a request without one has only one send), and `t <= f`. It says
//!   `before' = c_s + before - f`, rounded down.
//!   - If `f >= c_s` (the block was there, or on its way): from `c_s` to `f` real time of at most `(f - c_s) / (1 - r)` passes,
//!     from `t <= f` on at most `before' / (1 - r)`: together at most `before / (1 - r)`, as with one clock.
//!   - If `f < c_s` (the request waited here before its block was asked for, `e = c_s - f`): the worker's clock may run slow by
//!     r while the agent's, by which `e` was measured, runs fast by r. So only `e (1 - 2r)`, rounded down, is added to `before`:
//!     `(before + e (1 - 2r)) / (1 - r) <= before / (1 - r) + e / (1 + r)`.
//! - *A retry* under the same id gets the same slot with the same `f`, so `before'` does not change, while `wait'` shrinks as time
//!   passes. An agent that has forgotten the id has a later `f`, which is still no earlier than `t`. A request that comes while one under
//!   the same id still waits moves `f` to its own arrival: whose first send that was, nobody can tell, and a later `f` is always safe.
//!   An id that was refused, or whose permit was given back, is as good as new: an `f` from then would be earlier than the next `t`.
//!
//! A slot without a deadline (a limit without `start_window`) promises no more than its slot. It is handed out only while it lies
//! ahead: kept for later, several of them would start at once.
//!
//! # How many
//!
//! A slot of a spacing limit is an instant: held for somebody who does not come, it is lost for all. So nothing is reserved
//! ahead until requests come so quickly one after the other that it would have been used, then twice as many each time that all were
//! used; and as few as were used when more were lost than used. After a loss it takes longer to grow again ([`Pace`]).
//!
//! Not here: who waits, who asks the cluster, request ids.

use crate::limits::DRIFT_PPM;
use std::collections::VecDeque;

/// An instant or a length of time on the agent's clock, in nanoseconds.
pub type Ns = u64;

/// A worker has to get the answer and act: a permit that would die on the way is not handed out.
pub const TRAVEL_NS: Ns = 2_000_000;
/// Blocks in a row that have to be used before the next is larger, after several that were not.
const PATIENCE_MAX: u32 = 32;
/// So many round trips are worth being reserved ahead: half of it is left when the next block is asked for.
const ROUND_TRIPS_AHEAD: u64 = 4;

/// One slot that was granted to this agent, with what to tell whoever gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot<G> {
    /// Nobody may start earlier.
    pub start: Ns,
    /// Nobody may start later; without it, it is not used once it has come.
    pub until: Option<Ns>,
    /// When the agent first sent the request for it.
    pub sent: Ns,
    /// The grant.
    pub grant: G,
}

/// What a worker is told, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// From the receipt of the answer. To be rounded up.
    pub wait: Ns,
    /// From the worker's first send. To be rounded down.
    pub before: Option<Ns>,
}

impl<G> Slot<G> {
    /// A slot that was asked for at `sent`, first, and answered at `received`.
    pub fn new(grant: G, (sent, received): (Ns, Ns), wait: Ns, before: Option<Ns>) -> Self {
        let until = before.map(|before| sent.saturating_add(before));
        Self { start: received.saturating_add(wait), until, sent, grant }
    }

    /// What a worker is told whose request was first seen at `first_seen`, in an answer at `now`.
    pub fn told(&self, first_seen: Ns, now: Ns) -> Told {
        let before = self.until.map(|until| {
            let early = self.sent.saturating_sub(first_seen);
            let credit = early.saturating_sub(drift(early));
            until.saturating_sub(first_seen.max(self.sent)).saturating_add(credit)
        });
        Told { wait: self.start.saturating_sub(now), before }
    }

    /// Whether somebody can use it who is ready from `from` on.
    pub fn good(&self, now: Ns, from: Ns) -> bool {
        let ready = now.max(from);
        match self.until {
            Some(until) => self.start.max(ready).saturating_add(TRAVEL_NS) <= until,
            None => self.start >= ready,
        }
    }
}

/// `2r` of a length, rounded up.
fn drift(ns: Ns) -> Ns {
    let parts = (u128::from(ns) * u128::from(2 * DRIFT_PPM)).div_ceil(1_000_000);
    u64::try_from(parts).unwrap_or(u64::MAX)
}

/// What a request asks of its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The slot has to be useful this far from the arrival of the request.
    pub lead: Ns,
    /// The slot may lie no farther ahead, from the arrival of the request as well.
    pub max_wait: Option<Ns>,
    /// It has to be free now.
    pub now_only: bool,
}

impl Terms {
    /// From when on whoever came at `arrived` can use a slot. The cluster counts the lead on its own clock and from later on: by what
    /// the two may differ since then, a slot that it chose may come early.
    fn from(&self, arrived: Ns, now: Ns) -> Ns {
        arrived.saturating_add(self.lead).saturating_sub(drift(now.saturating_sub(arrived)))
    }

    /// What is left at `now` of the longest wait of whoever came at `arrived`.
    pub fn wait_left(&self, arrived: Ns, now: Ns) -> Option<Ns> {
        self.max_wait.map(|longest| longest.saturating_sub(now.saturating_sub(arrived)))
    }
}

/// What came of a request for a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken<G> {
    /// This one.
    Slot(Slot<G>),
    /// The first one lies ahead by this much, and only one that is free now was wanted.
    NotFree(Ns),
    /// The first one lies this much farther ahead than is acceptable.
    TooFar(Ns),
    /// None is held.
    Nothing,
}

/// The slots of one key that are held and not handed out, in order of their starts.
#[derive(Debug, Clone)]
pub struct Stock<G>(VecDeque<Slot<G>>);

impl<G> Default for Stock<G> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<G> Stock<G> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slots, first ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Slot<G>> {
        self.0.iter()
    }

    /// Puts a slot where it belongs.
    pub fn add(&mut self, slot: Slot<G>) {
        let at = self.0.partition_point(|other| other.start <= slot.start);
        self.0.insert(at, slot);
    }

    /// Drops what can no longer be used, and says how many that were.
    pub fn drop_dead(&mut self, now: Ns) -> usize {
        let before = self.0.len();
        self.0.retain(|slot| slot.good(now, now));
        before - self.0.len()
    }

    /// Hands out the first slot that will do for whoever came at `arrived`.
    pub fn take(&mut self, now: Ns, arrived: Ns, terms: &Terms) -> Taken<G> {
        let from = terms.from(arrived, now);
        let Some(at) = self.0.iter().position(|slot| slot.good(now, from)) else { return Taken::Nothing };
        let wait = self.0[at].start.saturating_sub(now);
        if terms.now_only && wait > 0 {
            return Taken::NotFree(wait);
        }
        if let Some(left) = terms.wait_left(arrived, now).filter(|left| wait > *left) {
            return Taken::TooFar(wait - left);
        }
        self.0.remove(at).map_or(Taken::Nothing, Taken::Slot)
    }

    /// Takes out what may still be given back, all but the first `keep`: slots that lie farther ahead than `way`, which a
    /// release takes to the cluster. The newest ones first, because under a start window only the end of the line comes back.
    pub fn give_back(&mut self, now: Ns, keep: usize, way: Ns) -> Vec<Slot<G>> {
        let far = self.0.partition_point(|slot| slot.start <= now.saturating_add(way));
        let mut back: Vec<_> = self.0.drain(far.max(keep).min(self.0.len())..).collect();
        back.reverse();
        back
    }

    /// Takes out everything, the newest ones first.
    pub fn take_all(&mut self) -> Vec<Slot<G>> {
        std::mem::take(&mut self.0).into_iter().rev().collect()
    }
}

/// How many slots to hold ahead, by how those before were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    ahead: u32,
    used: u32,
    lost: u32,
    streak: u32,
    patience: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { ahead: 0, used: 0, lost: 0, streak: 0, patience: 1 }
    }
}

impl Pace {
    /// How many to hold.
    pub fn ahead(&self) -> usize {
        self.ahead as usize
    }

    /// One that was held was handed out.
    pub fn used(&mut self) {
        self.used = self.used.saturating_add(1);
    }

    /// Some that were held were of no use to anybody here.
    pub fn lost(&mut self, count: usize) {
        self.lost = self.lost.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Whether to ask for more although nobody waits: some were used, and half or fewer are left.
    pub fn runs_low(&self, held: usize) -> bool {
        self.used > 0 && self.ahead > 0 && held <= self.ahead() / 2
    }

    /// Closes the books on what happened since the last block, and says how many to hold from now on, `most` at the most. `soon`
    /// says that somebody had to wait who came so quickly after the last one that a slot held for him would have been used.
    pub fn round(&mut self, soon: bool, most: u32) -> usize {
        if self.lost > self.used {
            self.ahead = self.ahead.min(self.used);
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.streak = 0;
        } else if soon || self.used > 0 && self.lost <= self.used / 4 {
            self.streak += 1;
            if self.streak >= self.patience {
                self.ahead = self.ahead.saturating_mul(2).max(1);
                // What was only tried has proved nothing yet.
                if self.used > 0 {
                    self.patience = (self.patience / 2).max(1);
                }
                self.streak = 0;
            }
        }
        self.ahead = self.ahead.min(most);
        (self.used, self.lost) = (0, 0);
        self.ahead()
    }
}

/// Most slots worth holding: enough for [`ROUND_TRIPS_AHEAD`], two at least, and none that would be older than `age_max` when it
/// comes.
pub fn most_ahead(round_trip: Ns, distance: Option<Ns>, age_max: Ns, block_max: u32) -> u32 {
    // Not known before two slots have been seen.
    let Some(distance) = distance.map(|distance| distance.max(1)) else { return block_max.min(2) };
    let useful = (ROUND_TRIPS_AHEAD * round_trip).div_ceil(distance).max(2);
    u32::try_from(useful.min(age_max / distance)).unwrap_or(u32::MAX).min(block_max)
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
