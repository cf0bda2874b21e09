//! Denials that still stand: a question that was denied is not asked again before that makes sense.
//!
//! Only denials whose reason lies in the key, not in the terms of the question, speak for the next one; and none by places in
//! flight, which are given back at any time. Time is the caller's: since the client began.

use super::ask::Ask;
use crate::api::{Limit, Millis, Problem, Reason};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys remembered at once; more are asked for every time.
const KEYS_MAX: usize = 1_024;

/// Denials by key, apart for those who would have waited and those who would not.
#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<HashMap<(String, bool), Denial>>);

#[derive(Debug)]
struct Denial {
    until: Duration,
    cost: u64,
    limit: Option<Limit>,
    problem: Problem,
}

impl Denials {
    /// A question was denied.
    pub(super) fn note(&self, ask: &Ask, problem: &Problem, now: Duration) {
        let Some(until) = problem.retry_after_ms.and_then(|after| now.checked_add(after.duration())) else { return };
        let by_key = match problem.reason {
            Some(Reason::ReservationsFull | Reason::WindowFull) => true,
            Some(Reason::NotFreeNow) => ask.at_once,
            _ => false,
        };
        if !by_key {
            return;
        }
        let mut denials = self.lock();
        if denials.len() >= KEYS_MAX {
            denials.retain(|_, denial| denial.until > now);
        }
        let name = (ask.key.clone(), ask.at_once);
        if denials.len() < KEYS_MAX || denials.contains_key(&name) {
            let denial = Denial { until, cost: ask.cost, limit: ask.limit.clone(), problem: problem.clone() };
            denials.insert(name, denial);
        }
    }

    /// The denial that still stands for this question, with what is left of its time.
    pub(super) fn standing(&self, ask: &Ask, now: Duration) -> Option<Problem> {
        let denials = self.lock();
        let denial = denials.get(&(ask.key.clone(), ask.at_once))?;
        let left = denial.until.checked_sub(now).filter(|left| !left.is_zero())?;
        let same = denial.limit == ask.limit && ask.cost >= denial.cost;
        same.then(|| denial.problem.clone().retry_after(Millis::up_from(left)))
    }

    /// Something of this key was given back: ask anew.
    pub(super) fn forget(&self, key: &str) {
        let mut denials = self.lock();
        for at_once in [false, true] {
            denials.remove(&(key.to_owned(), at_once));
        }
    }

    /// The limits are others now: ask anew.
    pub(super) fn forget_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, bool), Denial>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn denied(reason: Reason) -> Problem {
        Problem::denied("k", reason, Millis::up_from(100 * MS), "")
    }

    #[test]
    fn a_denial_stands_until_it_is_worth_asking_again() {
        let (denials, ask) = (Denials::default(), Ask::new("k").limit("1/s"));
        denials.note(&ask, &denied(Reason::ReservationsFull), 50 * MS);
        let left = |ask: &Ask, now| denials.standing(ask, now).and_then(|problem| problem.retry_after_ms);
        assert_eq!(left(&ask, 60 * MS), Some(Millis::up_from(90 * MS)));
        assert_eq!(left(&ask.clone().cost(2), 60 * MS), Some(Millis::up_from(90 * MS)), "more is denied as well");
        assert_eq!(left(&ask, 150 * MS), None);
        assert_eq!(left(&Ask::new("other").limit("1/s"), 60 * MS), None);
        assert_eq!(left(&Ask::new("k").limit("2/s"), 60 * MS), None, "another limit, another question");
        assert_eq!(left(&ask.clone().at_once(), 60 * MS), None, "a permit may be free though none can be reserved");
        denials.forget("k");
        assert_eq!(left(&ask, 60 * MS), None);
    }

    #[test]
    fn only_what_lies_in_the_key_speaks_for_the_next_question() {
        let (denials, ask) = (Denials::default(), Ask::new("k"));
        for reason in [Reason::WouldWaitTooLong, Reason::InFlightFull, Reason::NotFreeNow, Reason::Unrecognized] {
            denials.note(&ask, &denied(reason), Duration::ZERO);
            assert_eq!(denials.standing(&ask, MS), None, "{reason:?}");
        }
        let now = ask.at_once();
        denials.note(&now, &denied(Reason::NotFreeNow), Duration::ZERO);
        assert!(denials.standing(&now, MS).is_some());
        denials.note(&now.clone().cost(5), &denied(Reason::NotFreeNow), Duration::ZERO);
        assert_eq!(denials.standing(&now, MS), None, "less may be free");
    }

    #[test]
    fn memory_is_bounded() {
        let denials = Denials::default();
        for number in 0..2 * KEYS_MAX {
            denials.note(&Ask::new(format!("{number}")), &denied(Reason::WindowFull), Duration::ZERO);
        }
        assert_eq!(denials.lock().len(), KEYS_MAX);
        denials.note(&Ask::new("0"), &denied(Reason::WindowFull), 50 * MS);
        let left = denials.standing(&Ask::new("0"), 60 * MS).and_then(|problem| problem.retry_after_ms);
        assert_eq!(left, Some(Millis::up_from(90 * MS)), "what is known is brought up to date");
        denials.note(&Ask::new("late"), &denied(Reason::WindowFull), 200 * MS);
        assert_eq!(denials.lock().len(), 1, "those that are over made room");
        denials.forget_all();
        assert_eq!(denials.lock().len(), 0);
    }
}
