//! The sequential specification that histories are checked against, key by key: a register of slots, with requests that
//! take effect at most once and releases that give a slot back.
//!
//! The model says what an answer may be, not what it must be: the stamp of an entry is the leader's clock, which no worker
//! sees. What it holds to is the order (permits grow, stamps never go back), the distance of the slots that are taken, that a
//! look sees the last permit, and that nobody is turned away from a register that is free.
//!
//! Outcomes that nobody knows stay open for ever: such a request may take effect at any time after it was sent, or never.
//! So that no search over slots is needed, it changes nothing here, and the others allow for it: a look may show a permit
//! that nobody was told of, and a denial may be due to it.
//!
//! Self-contained: nothing here knows how a history was made.

use porcupine_rs::{CheckResult, Model, Operation};
use std::collections::BTreeMap;
use std::time::Duration;

/// Answers carry whole microseconds, and a stamp is worked out from rounded ones.
const ROUNDING_US: u64 = 10;
/// Slots are remembered this many units back from the last: farther than any reservation reaches.
const REMEMBERED_UNITS: u64 = 32;

/// One operation on one key, and when it was under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The key.
    pub key: u16,
    /// Sent.
    pub from_ns: u64,
    /// Answered; `u64::MAX` if it never was.
    pub to_ns: u64,
    /// What was done and answered.
    pub op: Op,
}

/// What was done, with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A permit was granted.
    Grant {
        /// The fencing number.
        permit: u64,
        /// Cluster time of the slot.
        slot_us: u64,
        /// The distance of two slots of this key; zero if its slots are not spaced.
        unit_us: u64,
        /// Cluster time of the decision, where the answer tells.
        stamp_us: Option<u64>,
    },
    /// A request was turned away because its slot was farther ahead than this.
    Denied {
        /// How far.
        farther_than_us: u64,
        /// Requests of this key that may have taken a slot unseen.
        unseen: u64,
    },
    /// A permit was given back.
    Release {
        /// Which.
        permit: u64,
    },
    /// A permit may have been given back.
    MaybeRelease {
        /// Which.
        permit: u64,
    },
    /// A look.
    Look {
        /// The last permit; zero if the key was idle.
        permit: u64,
        /// Cluster time.
        now_us: u64,
        /// Set if no worker was told of this permit.
        unseen: bool,
    },
    /// A request whose outcome nobody knows.
    Unknown,
}

/// A slot that is taken.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Taken {
    slot_us: u64,
    permit: u64,
    /// It may have been given back.
    doubtful: bool,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct State {
    last_permit: u64,
    now_us: u64,
    unit_us: u64,
    /// In the order of the slots.
    taken: Vec<Taken>,
}

/// The model, for the checker.
#[derive(Debug, Clone)]
pub struct Register;

impl Model for Register {
    type State = State;
    type Op = (u16, Op);
    type Metadata = ();

    fn partition_operations(history: &[Operation<Self>]) -> Vec<Vec<Operation<Self>>> {
        let mut by_key: BTreeMap<u16, Vec<Operation<Self>>> = BTreeMap::new();
        for operation in history {
            by_key.entry(operation.op.0).or_default().push(operation.clone());
        }
        by_key.into_values().collect()
    }

    fn init() -> State {
        State::default()
    }

    fn step(state: &State, (_, op): &Self::Op) -> (bool, State) {
        match state.after(op) {
            Some(next) => (true, next),
            None => (false, State::default()),
        }
    }
}

impl State {
    /// The state after `op`, if `op` can be answered like that in this one.
    pub fn after(&self, op: &Op) -> Option<Self> {
        let mut next = self.clone();
        match *op {
            Op::Grant { permit, slot_us, unit_us, stamp_us } => {
                let in_time =
                    |stamp_us: u64| stamp_us + ROUNDING_US >= self.now_us && slot_us + ROUNDING_US >= stamp_us;
                let in_order = permit > self.last_permit && stamp_us.is_none_or(in_time);
                let far = |taken: &Taken| taken.doubtful || taken.slot_us.abs_diff(slot_us) + ROUNDING_US >= unit_us;
                if !in_order || !self.taken.iter().all(far) {
                    return None;
                }
                next.last_permit = permit;
                next.now_us = self.now_us.max(stamp_us.unwrap_or(0));
                next.unit_us = unit_us;
                if unit_us > 0 {
                    let at = next.taken.partition_point(|taken| taken.slot_us < slot_us);
                    next.taken.insert(at, Taken { slot_us, permit, doubtful: false });
                    next.forget();
                }
            }
            Op::Denied { farther_than_us, unseen } => {
                // The decision was no earlier than the last one, and the slot at most where the register ends: those that nobody
                // was told of took a unit each, from there or from the decision on.
                let known_us = self.taken.last().map_or(0, |last| last.slot_us + self.unit_us);
                let end_us = known_us.max(self.now_us) + unseen * self.unit_us;
                if end_us + ROUNDING_US <= self.now_us + farther_than_us {
                    return None;
                }
            }
            Op::Release { permit } => next.taken.retain(|taken| taken.permit != permit),
            Op::MaybeRelease { permit } => {
                for taken in next.taken.iter_mut().filter(|taken| taken.permit == permit) {
                    taken.doubtful = true;
                }
            }
            Op::Look { permit: 0, now_us, .. } => {
                let past = |taken: &Taken| taken.doubtful || taken.slot_us + self.unit_us <= now_us + ROUNDING_US;
                if !self.taken.iter().all(past) {
                    return None;
                }
            }
            Op::Look { permit, now_us, unseen } => {
                let sees_last = permit == self.last_permit || (unseen && permit > self.last_permit);
                if !sees_last || now_us + ROUNDING_US < self.now_us {
                    return None;
                }
                next.last_permit = permit;
            }
            Op::Unknown => {}
        }
        Some(next)
    }

    fn forget(&mut self) {
        let reach_us = REMEMBERED_UNITS * self.unit_us;
        let last_us = self.taken.last().map_or(0, |taken| taken.slot_us);
        self.taken.retain(|taken| taken.slot_us + reach_us >= last_us);
    }
}

/// What the checker says of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains every answer.
    Linearizable,
    /// There is none, for these keys; with the operation that fits nowhere.
    Not(Vec<(u16, String)>),
    /// The search did not end in time, for these keys.
    Undecided(Vec<u16>),
}

/// Looks for an order of all calls that the model accepts, key by key, each within the time.
pub fn check(calls: &[Call], within: Duration) -> Verdict {
    let mut by_key: BTreeMap<u16, Vec<Operation<Register>>> = BTreeMap::new();
    for call in calls {
        let time = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        by_key.entry(call.key).or_default().push(Operation {
            client_id: None,
            call_time: time(call.from_ns),
            return_time: time(call.to_ns),
            op: (call.key, call.op.clone()),
            metadata: None,
        });
    }
    let (mut bad, mut undecided) = (Vec::new(), Vec::new());
    for (key, operations) in by_key {
        match porcupine_rs::check_operations_timeout(&operations, within) {
            CheckResult::Ok => {}
            CheckResult::Illegal => bad.push((key, stuck(&operations, within))),
            CheckResult::Unknown => undecided.push(key),
        }
    }
    match (bad.is_empty(), undecided.is_empty()) {
        (false, _) => Verdict::Not(bad),
        (true, false) => Verdict::Undecided(undecided),
        (true, true) => Verdict::Linearizable,
    }
}

/// The first operation to be answered that the longest order found has no place for.
fn stuck(operations: &[Operation<Register>], within: Duration) -> String {
    let (_, info) = porcupine_rs::check_operations_info_timeout(operations, within);
    let Some(longest) =
        info.partial_linearizations.first().and_then(|orders| orders.iter().max_by_key(|order| order.len()))
    else {
        return "not even a first operation fits".to_owned();
    };
    let placed: std::collections::HashSet<usize> = longest.iter().copied().collect();
    let left = operations.iter().enumerate().filter(|(at, _)| !placed.contains(at)).map(|(_, operation)| operation);
    left.min_by_key(|operation| operation.return_time).map_or_else(
        || "everything fits, and yet it does not".to_owned(),
        |operation| format!("after {} others {:?} fits nowhere", longest.len(), operation.op.1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 1_000;
    const SOON: Duration = Duration::from_secs(20);

    fn call(from: u64, to: u64, op: Op) -> Call {
        Call { key: 1, from_ns: from, to_ns: to, op }
    }

    fn grant(from: u64, to: u64, permit: u64, slot_us: u64, stamp_us: u64) -> Call {
        call(from, to, Op::Grant { permit, slot_us, unit_us: UNIT, stamp_us: Some(stamp_us) })
    }

    fn look(from: u64, to: u64, permit: u64) -> Call {
        call(from, to, Op::Look { permit, now_us: u64::MAX / 2, unseen: false })
    }

    fn verdict(calls: &[Call]) -> bool {
        check(calls, SOON) == Verdict::Linearizable
    }

    #[test]
    fn concurrent_grants_are_put_in_order() {
        let calls = [
            grant(0, 100, 3, 12_000, 10_000),
            grant(0, 100, 1, 10_000, 10_000),
            grant(0, 100, 2, 11_000, 10_000),
            look(50, 60, 2),
            look(110, 120, 3),
            call(130, 140, Op::Grant { permit: 4, slot_us: 13_000, unit_us: UNIT, stamp_us: None }),
        ];
        assert!(verdict(&calls));
    }

    /// The checker itself: each of these histories is one that a broken cluster would give.
    #[test]
    fn bad_histories_are_refused() {
        let two_leaders = [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 10_400, 10_400)];
        assert!(!verdict(&two_leaders), "slots too close");
        let same_slot = [grant(0, 10, 1, 10_000, 10_000), grant(5, 30, 2, 10_000, 10_000)];
        assert!(!verdict(&same_slot), "one slot twice");
        let back_in_time = [grant(0, 10, 2, 10_000, 10_000), grant(20, 30, 1, 11_000, 10_000)];
        assert!(!verdict(&back_in_time), "a later grant with an earlier permit");
        let stamps = [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 11_000, 9_000)];
        assert!(!verdict(&stamps), "time went back");
        let stale = [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 11_000, 10_500), look(40, 50, 1)];
        assert!(!verdict(&stale), "a look at the past");
        let before = [look(0, 5, 1), grant(10, 20, 1, 10_000, 10_000)];
        assert!(!verdict(&before), "a look at the future");
        let denied = Op::Denied { farther_than_us: 2 * UNIT, unseen: 0 };
        let empty = [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 50_000, 50_000), call(40, 50, denied.clone())];
        assert!(!verdict(&empty), "turned away from a free register");
        let idle = Op::Look { permit: 0, now_us: 10_500, unseen: false };
        assert!(!verdict(&[grant(0, 10, 1, 10_000, 10_000), call(20, 30, idle)]), "forgot a slot that is taken");
    }

    #[test]
    fn a_denial_is_fine_while_the_register_is_full() {
        let denied = Op::Denied { farther_than_us: UNIT, unseen: 0 };
        let full = [
            grant(0, 10, 1, 10_000, 10_000),
            grant(11, 20, 2, 11_000, 10_000),
            grant(21, 30, 3, 12_000, 10_000),
            call(40, 50, denied),
        ];
        assert!(verdict(&full));
    }

    /// One request that nobody was told the end of excuses one unit, not everything.
    #[test]
    fn unseen_requests_excuse_a_unit_each() {
        let denied = |farther_than_us, unseen| call(40, 50, Op::Denied { farther_than_us, unseen });
        let with = |denied: Call| {
            let unknown = call(5, u64::MAX, Op::Unknown);
            [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 11_000, 10_500), unknown, denied]
        };
        // It ends at 12,000, or at 13,000 with the one unseen: 2,500 from the last decision.
        assert!(verdict(&with(denied(1_400, 0))), "full without any");
        assert!(!verdict(&with(denied(2_400, 0))), "free without any");
        assert!(verdict(&with(denied(2_400, 1))), "full if it took one");
        assert!(!verdict(&with(denied(2_600, 1))), "free even if it took one");
        let rested = |denied: Call| [grant(0, 10, 1, 10_000, 10_000), grant(20, 30, 2, 90_000, 90_000), denied];
        assert!(!verdict(&rested(denied(3_100, 2))), "free even if both came just before");
        assert!(verdict(&rested(denied(2_900, 2))), "full if both came just before");
    }

    /// Nobody is told cluster time of an idle key: what is given is the latest that it can have been.
    #[test]
    fn a_key_is_idle_only_when_its_last_unit_is_over() {
        let idle = |now_us| call(20, 30, Op::Look { permit: 0, now_us, unseen: false });
        let one = grant(0, 10, 1, 10_000, 9_000);
        assert!(!verdict(&[one.clone(), idle(9_999)]), "its slot lies ahead");
        assert!(!verdict(&[one.clone(), idle(10_900)]), "its unit is not over");
        assert!(verdict(&[one.clone(), idle(11_000)]));
        assert!(verdict(&[idle(0), one.clone()].map(|call| Call { from_ns: 0, to_ns: 30, ..call })), "looked before");
        let back = call(12, 15, Op::Release { permit: 1 });
        assert!(verdict(&[one, back, idle(9_500)]), "given back");
    }

    #[test]
    fn what_was_given_back_may_be_taken_again_and_only_that() {
        let first = [grant(0, 10, 1, 10_000, 9_000), grant(20, 30, 2, 11_000, 9_100)];
        let again = grant(60, 70, 3, 11_000, 9_200);
        let release = |permit| call(40, 50, Op::Release { permit });
        let with = |release: Call| first.iter().cloned().chain([release, again.clone()]).collect::<Vec<_>>();
        assert!(verdict(&with(release(2))));
        assert!(!verdict(&with(release(1))), "another one was given back");
        assert!(verdict(&with(call(40, u64::MAX, Op::MaybeRelease { permit: 2 }))), "nobody knows");
        assert!(
            !verdict(&with(call(80, u64::MAX, Op::MaybeRelease { permit: 2 }))),
            "asked for too late to explain it"
        );
    }

    #[test]
    fn unknown_outcomes_explain_what_they_can() {
        let unseen = |permit| Op::Look { permit, now_us: u64::MAX / 2, unseen: true };
        let calls = [call(0, u64::MAX, Op::Unknown), call(10, 20, unseen(7)), grant(30, 40, 8, 10_000, 10_000)];
        assert!(verdict(&calls));
        let later = [grant(30, 40, 8, 10_000, 10_000), call(50, 60, unseen(7))];
        assert!(!verdict(&later), "a permit from before the last one");
    }

    /// The search stays short where many are under way at once and some never end.
    #[test]
    fn a_long_history_is_decided_quickly() {
        let mut calls = Vec::new();
        for n in 0..20_000_u64 {
            let key = u16::try_from(n % 10).unwrap();
            let at = n / 10;
            let op = Op::Grant { permit: n + 1, slot_us: at * UNIT, unit_us: UNIT, stamp_us: Some(at * UNIT) };
            calls.push(Call { key, from_ns: (at * 10).saturating_sub(60), to_ns: at * 10 + 60, op });
            if n % 97 == 0 {
                calls.push(Call { key, from_ns: at * 10, to_ns: u64::MAX, op: Op::Unknown });
            }
        }
        assert!(verdict(&calls));
    }
}
