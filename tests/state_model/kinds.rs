//! What each kind of limit promises, over every permit that was granted and not given back: with costs, leads, reservations,
//! releases, renewals and expiries in between.

use crate::config;
use crate::past::{Figures, interval};
use crate::play::{Move, Play, moves, wait};
use crate::script::{bucket, concurrency, ramped, spacing, window};
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::{Decision, Limit, Part, Ramp, Reason, Register, Spacing, Span, Terms, Time, decide};

/// Plays all moves, and checks after each that the promise holds.
fn play(
    limit: Limit,
    moves: &[Move],
    mut check: impl FnMut(&Play, &Move) -> Result<(), String>,
) -> Result<(), TestCaseError> {
    let mut play = Play::new(limit);
    for (at, one) in moves.iter().enumerate() {
        let before = play.clone();
        let refused = play.make(one);
        let mut checked = play.keeps_its_promise().and_then(|()| check(&play, one));
        if let Some(refused) = refused {
            checked = checked.and_then(|()| {
                // A denial leaves the register as it was.
                let same = play.register == before.register || before.register.idle_at(&limit) <= play.now;
                let early = play.now.after(refused.denial.retry_after).before(Span(1));
                let granted = |at| {
                    let part = Part { register: &play.register, limit: &limit, cost: refused.cost };
                    matches!(decide(&[part], at, &refused.terms), Decision::Granted { .. })
                };
                // "On a ramp a hole that is too short may do later": a bucket may grant sooner than it says. And who asks for a
                // lead, but will not wait longer than that, may find the hole gone that it had.
                let ramped = matches!(limit, Limit::Bucket(bucket) if bucket.ramp().is_some());
                let hasty = refused.terms.lead > Span::ZERO && refused.terms.max_wait.is_some();
                let gone = hasty && matches!(limit, Limit::Spacing(spacing) if spacing.ramp().is_some());
                if !same || !ramped && granted(early) || !gone && !granted(early.after(Span(1))) {
                    return Err(format!("unchanged {same}, early {}: {refused:?}", granted(early)));
                }
                Ok(())
            });
        }
        prop_assert!(checked.is_ok(), "move {at}, {one:?}: {}\n{play:#?}", checked.unwrap_err());
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(2_000))]

    /// P1: "Two permits of one key are never closer than the limit allows, in cluster time", and `retry_after` is exact.
    #[test]
    fn spacing_keeps_its_distance((limit, moves) in (spacing(), moves(4, 40))) {
        play(limit, &moves, |_, _| Ok(()))?;
    }

    /// "Of all permits with slots in `[x, x + t]` […] the costs add up to at most `burst + t / I`", and `retry_after` is exact.
    #[test]
    fn a_bucket_never_admits_more((limit, moves) in (bucket(), moves(4, 40))) {
        play(limit, &moves, |_, _| Ok(()))?;
    }

    /// "Never more than `N` in any `T - resolution`, and in any `T` never more than `N` plus what the oldest cell held"; "a request
    /// is refused only if the last `T + resolution` held more than `N` with it". Aligned: "never more than `N` in a cell".
    #[test]
    fn a_window_counts_right_in_both_directions((limit, moves) in (window(), moves(4, 40))) {
        let Limit::Window(window) = limit else { unreachable!() };
        let (cell, per) = (window.resolution().0, window.rate().per().0);
        let mut before = Play::new(limit);
        play(limit, &moves, |after, one| {
            let refused = before.make(one);
            if let Some(refused) = refused {
                let from = after.now.after(refused.terms.lead).0;
                let begin = if window.is_aligned() { from / cell * cell } else { (from + 1).saturating_sub(per + cell) };
                let end = if window.is_aligned() { begin + cell - 1 } else { u64::MAX };
                if after.within(begin, end) + refused.cost <= window.count() {
                    return Err(format!("refused with {} in [{begin}, {end}]", after.within(begin, end)));
                }
            }
            Ok(())
        })?;
    }

    /// "At most N in flight": "leases that end when they are released, or by themselves in cluster time", "renewable". And nobody
    /// is refused while fewer are.
    #[test]
    fn no_more_are_in_flight((limit, moves) in (concurrency(), moves(4, 60))) {
        let Limit::Concurrency(concurrency) = &limit else { unreachable!() };
        let mut before = Play::new(limit);
        play(limit, &moves, |after, one| {
            let refused = before.make(one);
            let in_flight: u64 = after.live.iter().filter(|live| live.ends > after.now.0).map(|live| live.cost).sum();
            match refused {
                Some(refused) if in_flight + refused.cost <= concurrency.max() => Err(format!("refused with {in_flight}")),
                Some(refused) if refused.denial.reason != Reason::InFlightFull => Err("for another reason".to_owned()),
                _ => Ok(()),
            }
        })?;
    }

    /// "From X to Y over t": no window of any length admits more than the full rate does; and after its
    /// first permit a ramp grants no more than the area under its rate, of a bucket up to a burst later.
    #[test]
    fn a_ramp_is_never_ahead_of_its_rate((limit, moves) in (ramped(), moves(1, 40))) {
        let figures = Figures::of(&limit).unwrap();
        let ramp = match &limit { Limit::Spacing(spacing) => spacing.ramp(), Limit::Bucket(bucket) => bucket.ramp(), _ => None };
        let Ramp { from, over } = ramp.unwrap();
        let (slow, fast, over) = (interval(from), figures.interval, u128::from(over.0));
        let (mut began, mut began_after) = (u64::MAX, 0);
        let mut rested = Play::new(limit);
        play(limit, &moves, |after, one| {
            // Whoever asks after a rest begins anew.
            if matches!(one, Move::Ask { .. }) && rested.register.idle_at(&limit) <= after.now {
                (began, began_after) = (u64::MAX, rested.permits);
            }
            rested = after.clone();
            let mut slots: Vec<_> =
                after.live.iter().filter(|live| live.permit > began_after).map(|live| live.slot).collect();
            slots.sort_unstable();
            // Also with one that was given back since.
            began = slots.first().map_or(began, |first| began.min(*first));
            for (count, slot) in (0_u128..).zip(&slots) {
                let early = figures.burst.map_or(0, |burst| burst - 1) * fast;
                let (from, to) = (u128::from(slots[0] - began), u128::from(slot - began) + early);
                // The area under the rate from `from` to `to`, times `2 * slow * fast * over`: on the ramp it is
                // `((over - u) / slow + u / fast) / over`, and `1 / fast` after it.
                let (a, b) = (from.min(over), to.min(over));
                let ramp = 2 * over * fast * (b - a) + (b * b - a * a) * (slow - fast);
                let flat = 2 * over * slow * ((to - b) - (from - a));
                if count * 2 * slow * fast * over > ramp + flat {
                    return Err(format!("{count} more from {from} to {to} ns of the ramp"));
                }
            }
            Ok(())
        })?;
    }

    /// "May start as soon as no more than `burst` intervals are taken": where slots come in order, each is the earliest at which
    /// no stretch of time that ends there holds more than `burst + t / I`. Found by looking at all of them.
    #[test]
    fn a_bucket_grants_as_soon_as_it_may(
        (limit, lead_ms, moves) in (bucket(), prop_oneof![Just(0), 1..3_000_u64], vec(prop_oneof![3 => ask(), 1 => wait(), 1 => Just(Move::Release(0))], 1..50))
    ) {
        let figures = Figures::of(&limit).unwrap();
        let terms = Terms { lead: Span::from_millis(lead_ms), ..Terms::default() };
        let mut play = Play::new(limit);
        for one in &moves {
            let Move::Ask { cost, .. } = *one else {
                // Only the newest one: it is as if it had never been.
                if matches!(one, Move::Release(_)) && !play.live.is_empty() {
                    play.release(play.live.len() - 1);
                } else {
                    play.make(one);
                }
                continue;
            };
            if u128::from(cost) > figures.burst.unwrap_or(1) {
                continue;
            }
            let from = play.now.after(terms.lead).0;
            let slots = play.slots();
            let mut earliest = u128::from(from.max(slots.last().map_or(0, |(slot, _)| *slot)));
            let mut sum = u128::from(cost);
            for (slot, cost) in slots.iter().rev() {
                sum += u128::from(*cost);
                let over = sum.saturating_sub(figures.burst.unwrap_or(1));
                earliest = earliest.max(u128::from(*slot) + over * figures.interval);
            }
            let found = play.register.earliest(&limit, play.now, Time(from), cost).map(|slot| u128::from(slot.0));
            prop_assert_eq!(found, Ok(earliest), "{:#?}", play);
            let reached = earliest <= u128::from(from) + figures.max_reserved * figures.interval;
            prop_assert_eq!(play.ask(cost, terms).is_ok(), reached);
        }
    }
}

fn ask() -> impl Strategy<Value = Move> {
    (1..4_u64).prop_map(|cost| Move::Ask { cost, terms: Terms::default() })
}

/// "Also how long a key has to rest before it begins anew": a nanosecond less, and it goes on.
#[test]
fn a_ramp_begins_anew_after_a_whole_rest_only() {
    let ramp = Ramp { from: "1/4s".parse().unwrap(), over: Span::from_secs(30) };
    let limit = Spacing::new("1/s".parse().unwrap(), Span::ZERO, 0).unwrap().with_ramp(ramp).unwrap();
    let limit = Limit::Spacing(limit);
    for (early, length) in [(1, 1), (0, 4)] {
        let mut play = Play::new(limit);
        play.ask(1, Terms::default()).unwrap();
        // It takes four seconds, and then it rests.
        play.now = play.now.after(Span::from_secs(34)).before(Span(early));
        assert_eq!(play.register.idle_at(&limit), play.now.after(Span(early)));
        play.ask(1, Terms::default()).unwrap();
        let next = play.register.standing(&limit, play.now).next;
        assert_eq!(next.since(play.now), Span::from_secs(length));
    }
    assert_eq!(Register::default().idle_at(&limit), Time::ZERO);
}
