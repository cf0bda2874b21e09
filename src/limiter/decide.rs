//! The decision: one limit, or several at once, all or nothing.
//!
//! Several limits get one common slot: the earliest that all of them have. Each limit judges by its own rule whether it would
//! reserve that far; a limit that has room now does not mind that another one makes the request wait.

use super::decision::{Decision, Denial, Reason, Terms};
use super::limit::Limit;
use super::register::Register;
use super::time::Time;
use crate::limits::AHEAD_MAX;

/// One limit of a request, and how its key stands.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The state of the key under this limit.
    pub register: &'a Register,
    /// The limit.
    pub limit: &'a Limit,
    /// What it takes of it.
    pub cost: u64,
}

/// Rounds of looking for a common slot. Every round passes a hole or a full cell of some limit; whoever has more of them than
/// this gets a slot after everything that is taken.
const ROUNDS_MAX: usize = 32;

/// Decides one request. Pure: entering the permits is the caller's.
pub fn decide(parts: &[Part<'_>], now: Time, terms: &Terms) -> Decision {
    let from = now.after(terms.lead);
    let mut slot = from;
    let mut last = 0;
    let mut refused: Option<(usize, Denial)> = None;
    for (by, part) in parts.iter().enumerate() {
        if let Some(why) = part.limit.never(part.cost, terms) {
            return Decision::Never { by, why };
        }
        let judged = match part.register.earliest(part.limit, now, from, part.cost) {
            Ok(own) => {
                if own > slot {
                    (slot, last) = (own, by);
                }
                part.register.refuses(part.limit, now, terms, own)
            }
            Err(denial) => Some(denial),
        };
        if let Some(denial) = judged
            && refused.is_none_or(|(_, worst)| denial.retry_after > worst.retry_after)
        {
            refused = Some((by, denial));
        }
    }
    if let Some((by, denial)) = refused {
        return Decision::Denied { by, denial };
    }
    if parts.len() > 1 {
        (slot, last) = common(parts, now, (slot, last));
        // A limit that has room now may still have too much ahead of it to be pushed there as well.
        let crowded = |part: &Part<'_>| slot > now && part.register.ahead(now) >= AHEAD_MAX;
        if let Some(by) = parts.iter().position(crowded) {
            let retry_after = parts[by].register.ahead_freed_after(now);
            return Decision::Denied { by, denial: Denial { reason: Reason::ReservationsFull, retry_after } };
        }
        // Whatever was found has to be a slot of every limit: one that is not would break the register it is entered into.
        let fits = |part: &Part<'_>| part.register.earliest(part.limit, now, slot, part.cost) == Ok(slot);
        if let Some(by) = parts.iter().position(|part| !fits(part)) {
            debug_assert!(false, "no common slot at {slot}");
            return Decision::Denied {
                by,
                denial: Denial { reason: Reason::ReservationsFull, retry_after: slot.since(now) },
            };
        }
        let wait = slot.since(now);
        let denied = |reason, retry_after| Decision::Denied { by: last, denial: Denial { reason, retry_after } };
        if terms.free_now_only && slot > now {
            return denied(Reason::NotFreeNow, wait);
        }
        if let Some(longest) = terms.max_wait.filter(|longest| wait > *longest) {
            return denied(Reason::WouldWaitTooLong, wait.minus(longest));
        }
    }
    Decision::Granted { slot }
}

/// The earliest slot from `slot` on that all have, and which of them it came from. After everything that is taken there is
/// nothing but room, so they all have one.
fn common(parts: &[Part<'_>], now: Time, (mut slot, mut last): (Time, usize)) -> (Time, usize) {
    for _ in 0..ROUNDS_MAX {
        let before = slot;
        for (by, part) in parts.iter().enumerate() {
            // What is in flight has been judged: it does not depend on the slot.
            let own = part.register.earliest(part.limit, now, slot, part.cost).unwrap_or(slot);
            if own > slot {
                (slot, last) = (own, by);
            }
        }
        if slot == before {
            return (slot, last);
        }
    }
    let free = parts.iter().map(|part| part.register.idle_at(part.limit)).max();
    (slot.max(free.unwrap_or(slot)), last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Entry, Spacing, Span, Window};

    fn spacing(rate: &str, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
    }

    fn taken(limit: &Limit, slots: &[u64]) -> Register {
        let mut register = Register::default();
        for (permit, second) in (1..).zip(slots) {
            let (now, slot) = (Time(0), Time(second * 1_000_000_000));
            let cost = 1;
            register.take(limit, now, Span::ZERO, &Entry { permit, slot, cost, request: None });
        }
        register
    }

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// "Several limits get one common slot: the earliest that all of them have."
    #[test]
    fn the_slot_is_the_first_that_all_of_them_have() {
        let (two, three) = (spacing("1/2s", 10), spacing("1/3s", 10));
        // Free of the first: 2 to 4 s, and from 6 s on. Free of the second: 3 to 6 s, and from 9 s on.
        let (one, other) = (taken(&two, &[0, 4]), taken(&three, &[0, 6]));
        let parts = [Part { register: &one, limit: &two, cost: 1 }, Part { register: &other, limit: &three, cost: 1 }];
        assert_eq!(decide(&parts[..1], at(0), &Terms::default()), Decision::Granted { slot: at(2) });
        assert_eq!(decide(&parts[1..], at(0), &Terms::default()), Decision::Granted { slot: at(3) });
        assert_eq!(decide(&parts, at(0), &Terms::default()), Decision::Granted { slot: at(9) });
        let hasty = Terms { max_wait: Some(Span::from_secs(8)), ..Terms::default() };
        let denial = Denial { reason: Reason::WouldWaitTooLong, retry_after: Span::from_secs(1) };
        assert_eq!(decide(&parts, at(0), &hasty), Decision::Denied { by: 1, denial });
    }

    /// "The answer names the one that refused": of several the one that refuses longest.
    #[test]
    fn whoever_refuses_longest_is_named() {
        let (one, other) = (spacing("1/2s", 0), spacing("1/3s", 0));
        let (first, second, fresh) = (taken(&one, &[0]), taken(&other, &[0]), Register::default());
        let busy = Part { register: &first, limit: &one, cost: 1 };
        let busier = Part { register: &second, limit: &other, cost: 1 };
        let free = Part { register: &fresh, limit: &one, cost: 1 };
        let refused = |parts: &[Part<'_>]| match decide(parts, at(1), &Terms::default()) {
            Decision::Denied { by, denial } => (by, denial.retry_after),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&[busy, busier]), (1, Span::from_secs(2)));
        assert_eq!(refused(&[busier, free, busy]), (0, Span::from_secs(2)));
        assert_eq!(refused(&[free, busy]), (1, Span::from_secs(1)));
        let never = Part { cost: 0, ..free };
        assert!(matches!(decide(&[busy, never], at(1), &Terms::default()), Decision::Never { by: 1, .. }));
    }

    /// P7: "everything has a limit": permits that another limit pushes ahead are bounded like all others.
    #[test]
    fn nobody_is_pushed_ahead_without_end() {
        let (now, second) = (Time(0), Span::from_secs(1));
        let wide = Limit::Window(Window::aligned("1000000/s".parse().unwrap()));
        let mut crowd = Register::default();
        for permit in 1..=AHEAD_MAX {
            let slot = now.after(second).after(Span(permit));
            crowd.take(&wide, now, Span::ZERO, &Entry { permit, slot, cost: 1, request: None });
        }
        let narrow = spacing("1/s", 10);
        let mut busy = Register::default();
        busy.take(&narrow, now, Span::ZERO, &Entry { permit: 1, slot: now, cost: 1, request: None });
        let busy = Part { register: &busy, limit: &narrow, cost: 1 };
        let crowded = Part { register: &crowd, limit: &wide, cost: 1 };
        let pushed = |now| decide(&[busy, crowded], now, &Terms::default());
        let denial = Denial { reason: Reason::ReservationsFull, retry_after: second.plus(Span(1)) };
        assert_eq!(pushed(now), Decision::Denied { by: 1, denial });
        assert_eq!(pushed(now.after(second)), Decision::Granted { slot: now.after(second) }, "not pushed at all");
        let alone = decide(&[crowded], now, &Terms::default());
        assert_eq!(alone, Decision::Granted { slot: now }, "what is free now is not ahead");
    }
}
