//! One register under one limit, and the exact log of what it granted: what the promises of each kind are stated on.
//!
//! Below the machine, so that thousands of plays cost little.

use crate::past::Figures;
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::{Decision, Denial, Entry, Limit, Part, Register, Span, Terms, Time, decide};

/// One thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum Move {
    Ask {
        cost: u64,
        terms: Terms,
    },
    Wait(Span),
    /// Until the last refusal says, give or take a nanosecond.
    WaitForRetry(i64),
    Release(usize),
    Renew(usize),
}

/// One permit that was granted and not given back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) permit: u64,
    pub(crate) slot: u64,
    pub(crate) cost: u64,
    /// Of a lease.
    pub(crate) ends: u64,
}

/// A refusal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) cost: u64,
    pub(crate) terms: Terms,
    pub(crate) denial: Denial,
}

/// A register and its log.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) limit: Limit,
    pub(crate) register: Register,
    pub(crate) now: Time,
    pub(crate) permits: u64,
    /// In the order they were granted.
    pub(crate) live: Vec<Live>,
    retry_at: Time,
}

impl Play {
    pub(crate) fn new(limit: Limit) -> Self {
        // Not at the beginning of time, where windows have no past.
        let now = Time(1_000_000_000_000);
        Self { limit, register: Register::default(), now, permits: 0, live: Vec::new(), retry_at: now }
    }

    /// Asks, and enters what is granted.
    pub(crate) fn ask(&mut self, cost: u64, terms: Terms) -> Result<Option<Time>, Refused> {
        self.rest();
        let part = Part { register: &self.register, limit: &self.limit, cost };
        match decide(&[part], self.now, &terms) {
            Decision::Granted { slot } => {
                self.enter(cost, terms.lead, slot);
                Ok(Some(slot))
            }
            Decision::Denied { denial, .. } => {
                self.retry_at = self.now.after(denial.retry_after);
                Err(Refused { cost, terms, denial })
            }
            Decision::Never { .. } => Ok(None),
        }
    }

    /// Enters a permit that was granted.
    pub(crate) fn enter(&mut self, cost: u64, lead: Span, slot: Time) {
        self.permits += 1;
        let permit = self.permits;
        self.register.take(&self.limit, self.now, lead, &Entry { permit, slot, cost, request: None });
        let ends =
            if let Limit::Concurrency(concurrency) = self.limit { slot.after(concurrency.lease()) } else { slot };
        self.live.push(Live { permit, slot: slot.0, cost, ends: ends.0 });
    }

    /// A key that is as good as a fresh one is one.
    pub(crate) fn rest(&mut self) {
        if self.register.idle_at(&self.limit) <= self.now {
            self.register = Register::default();
        }
    }

    /// Gives the one at `which` back; whether it could be.
    pub(crate) fn release(&mut self, which: usize) -> bool {
        let Some(at) = which.checked_rem(self.live.len()) else { return false };
        let ahead = self.live[at].ends > self.now.0;
        let released = self.register.release(&self.limit, self.now, self.live[at].permit).is_some();
        assert_eq!(released, ahead, "what lies ahead or runs can be given back, and nothing else: {:?}", self.live[at]);
        if released {
            self.live.remove(at);
        }
        released
    }

    /// Makes one move; what was refused, if it was a question.
    pub(crate) fn make(&mut self, one: &Move) -> Option<Refused> {
        match *one {
            Move::Ask { cost, terms } => return self.ask(cost, terms).err(),
            Move::Wait(span) => self.now = self.now.after(span),
            Move::WaitForRetry(by) => self.now = self.now.max(Time(self.retry_at.0.saturating_add_signed(by))),
            Move::Release(which) => {
                self.release(which);
            }
            Move::Renew(which) => {
                let at = which.checked_rem(self.live.len())?;
                let ends = self.register.renew(&self.limit, self.now, self.live[at].permit);
                let runs = matches!(self.limit, Limit::Concurrency(_)) && self.live[at].ends > self.now.0;
                assert_eq!(ends.is_some(), runs, "a lease that runs is renewed, and no other");
                if let Some(ends) = ends {
                    assert!(ends.0 >= self.live[at].ends, "a renewal never shortens a lease");
                    self.live[at].ends = ends.0;
                }
            }
        }
        None
    }

    /// All live slots and costs, in the order of the slots.
    pub(crate) fn slots(&self) -> Vec<(u64, u64)> {
        let mut slots: Vec<_> = self.live.iter().map(|live| (live.slot, live.cost)).collect();
        slots.sort_unstable();
        slots
    }

    /// Costs of the slots in `[from, to]`.
    pub(crate) fn within(&self, from: u64, to: u64) -> u64 {
        self.live.iter().filter(|live| from <= live.slot && live.slot <= to).map(|live| live.cost).sum()
    }

    /// P1 and its like for the other kinds, over everything that was granted and not given back.
    pub(crate) fn keeps_its_promise(&self) -> Result<(), String> {
        let slots = self.slots();
        match &self.limit {
            // "Two permits of one key are never closer than the limit allows."
            Limit::Spacing(_) => {
                let figures = Figures::of(&self.limit).expect("a kind of rate");
                let close = slots
                    .windows(2)
                    .find(|pair| u128::from(pair[1].0 - pair[0].0) < u128::from(pair[0].1) * figures.unit());
                close.map_or(Ok(()), |pair| Err(format!("{pair:?} are too close")))
            }
            // "The costs add up to at most `burst + t / I`", for all pairs of slots.
            Limit::Bucket(_) => {
                let figures = Figures::of(&self.limit).expect("a kind of rate");
                for (at, (first, _)) in slots.iter().enumerate() {
                    let mut sum = 0;
                    for (last, cost) in &slots[at..] {
                        sum += u128::from(*cost);
                        let most = figures.burst.unwrap_or(1) * figures.interval + u128::from(last - first);
                        if sum * figures.interval > most {
                            return Err(format!("{sum} in [{first}, {last}]"));
                        }
                    }
                }
                Ok(())
            }
            // "Never more than `N` in any `T - resolution`, and in any `T` never more than `N` plus what the oldest cell held";
            // aligned, "never more than `N` in a cell".
            Limit::Window(window) => {
                let (cell, per) = (window.resolution().0, window.rate().per().0);
                for (slot, _) in &slots {
                    let (begin, end) = (slot / cell * cell, slot / cell * cell + cell);
                    let checks = if window.is_aligned() {
                        [("cell", begin, end - 1), ("cell", begin, end - 1)]
                    } else {
                        [("T - resolution", *slot, slot + per - cell), ("T but its oldest cell", end, slot + per - 1)]
                    };
                    for (what, from, to) in checks {
                        if self.within(from, to) > window.count() {
                            return Err(format!("{} in the {what} [{from}, {to}]", self.within(from, to)));
                        }
                    }
                }
                Ok(())
            }
            // "At most N in flight."
            Limit::Concurrency(concurrency) => {
                let running = self.live.iter().filter(|live| live.ends > self.now.0);
                let in_flight: u64 = running.map(|live| live.cost).sum();
                if in_flight > concurrency.max() { Err(format!("{in_flight} in flight")) } else { Ok(()) }
            }
        }
    }
}

/// Moves with costs up to `cost_max`.
pub(crate) fn moves(cost_max: u64, count_max: usize) -> impl Strategy<Value = Vec<Move>> {
    let ask = (1..=cost_max, terms()).prop_map(|(cost, terms)| Move::Ask { cost, terms });
    let one = prop_oneof![
        10 => ask,
        3 => wait(),
        2 => (-1..=1_i64).prop_map(Move::WaitForRetry),
        3 => any::<usize>().prop_map(Move::Release),
        1 => any::<usize>().prop_map(Move::Renew),
    ];
    vec(one, 1..=count_max)
}

pub(crate) fn wait() -> impl Strategy<Value = Move> {
    prop_oneof![3 => 1..2_000_u64, 1 => 1..60_000_u64].prop_map(|ms| Move::Wait(Span::from_millis(ms)))
}

pub(crate) fn terms() -> impl Strategy<Value = Terms> {
    let lead = prop_oneof![4 => Just(0), 1 => 1..5_000_u64, 1 => 1..60_000_u64];
    let max_wait = prop::option::of(prop_oneof![0..3_000_u64, 0..100_000_u64]);
    (lead, max_wait, prop::bool::weighted(0.05)).prop_map(|(lead, max_wait, free_now_only)| Terms {
        lead: Span::from_millis(lead),
        max_wait: max_wait.map(Span::from_millis),
        free_now_only,
    })
}
