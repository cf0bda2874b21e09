//! A key that goes from one limit to another: "what was granted stays, and nothing is granted twice".

use crate::config;
use crate::past::Figures;
use crate::play::{Play, moves, terms};
use crate::script::{any_limit, bucket, ramped, spacing, window};
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::{Limit, Span, Terms};

/// Puts a play under another limit.
fn change(play: &mut Play, limit: Limit) {
    play.rest();
    if limit != play.limit {
        play.register = play.register.adopt(&play.limit, &limit, play.now);
        play.limit = limit;
    }
}

/// How many permits of cost 1 are granted right now, up to `most`.
fn granted_at_once(play: &mut Play, most: u64) -> u64 {
    let at_once = Terms { free_now_only: true, ..Terms::default() };
    (0..most).take_while(|_| matches!(play.ask(1, at_once), Ok(Some(_)))).count() as u64
}

/// How much a limit grants at once if nothing came before.
fn whole(limit: &Limit) -> u64 {
    match limit {
        Limit::Spacing(_) => 1,
        Limit::Bucket(bucket) => bucket.burst(),
        Limit::Window(window) => window.count(),
        Limit::Concurrency(concurrency) => concurrency.max(),
    }
}

/// Limits on a rate of any kind.
fn rate_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![spacing(), bucket(), window(), ramped()]
}

proptest! {
    #![proptest_config(config(2_000))]

    /// "A permit keeps the distance of the limit it was granted by", and "`next` never moves back": whatever spacing limits and
    /// buckets a key goes through, the time that all permits with slots in `[x, x + t]` take, each by its own limit, adds up to
    /// no more than `t` and what one of them may be early and takes itself. So no change grants a stretch of time twice.
    #[test]
    fn no_stretch_of_time_is_granted_twice(
        (limits, moves) in (vec(prop_oneof![spacing(), bucket(), ramped()], 2..4), vec((0..4_usize, 1..4_u64, terms(), 0..3_000_u64, prop::option::weighted(0.2, any::<usize>())), 1..30))
    ) {
        let mut play = Play::new(limits[0]);
        let mut limits_of = Vec::new();
        for (which, cost, terms, wait_ms, release) in moves {
            change(&mut play, limits[which % limits.len()]);
            if matches!(play.ask(cost, terms), Ok(Some(_))) {
                limits_of.push((play.permits, play.limit));
            }
            if let Some(which) = release {
                play.release(which);
            }
            play.now = play.now.after(Span::from_millis(wait_ms));
        }
        let mut taken: Vec<_> = play.live.iter().map(|live| {
            let limit = &limits_of.iter().find(|(permit, _)| *permit == live.permit).unwrap().1;
            let figures = Figures::of(limit).unwrap();
            let takes = u128::from(live.cost) * figures.unit();
            let reach = figures.burst.map_or(takes, |burst| burst * figures.interval);
            (live.slot, takes, reach)
        }).collect();
        taken.sort_unstable();
        for (at, (first, ..)) in taken.iter().enumerate() {
            let (mut sum, mut most) = (0, 0);
            for (last, takes, reach) in &taken[at..] {
                (sum, most) = (sum + takes, most.max(*reach));
                prop_assert!(sum <= u128::from(last - first) + most, "{sum} ns in [{first}, {last}]: {play:#?}");
            }
        }
    }

    /// "What is owed in permits stays owed, at the new rate, up to a whole burst or window": after some were granted at one instant
    /// under one limit, another limit of any kind of rate grants no more than what they have left of it. Where the new rate is
    /// the slower one, exactly that; where it is faster less, because `next` never moves back.
    #[test]
    fn what_was_just_granted_counts_under_the_new_limit((old, new, asked) in (rate_limit(), rate_limit(), 1..10_u64)) {
        let mut play = Play::new(old);
        let before = granted_at_once(&mut play, asked);
        prop_assert!(before >= 1 && before <= whole(&old));
        change(&mut play, new);
        let after = granted_at_once(&mut play, 20);
        let left = if old == new { whole(&old) - before } else { whole(&new).saturating_sub(before) };
        let ramp = |limit: &Limit| !Figures::of(limit).is_none_or(|figures| figures.is_steady());
        if !ramp(&new) {
            prop_assert!(after <= left, "{before}, then {after} of {left}: {play:#?}");
        }
        let slower = match (Figures::of(&old), Figures::of(&new)) {
            (Some(old), Some(new)) => new.unit() >= old.unit(),
            _ => true,
        };
        if slower && !ramp(&old) && !ramp(&new) {
            prop_assert_eq!(after, left, "{:#?}", play);
        }
    }

    /// "Counts of a window are put into the cells of the new one so that they may only count longer": whatever was granted within
    /// the last `T - resolution` of both windows counts in the new one.
    #[test]
    fn a_new_window_counts_what_the_old_one_granted((old, new, waits) in (window(), window(), vec(0..1_000_u64, 1..6))) {
        let (Limit::Window(was), Limit::Window(is)) = (&old, &new) else { unreachable!() };
        let mut play = Play::new(old);
        for wait_ms in waits {
            granted_at_once(&mut play, 3);
            play.now = play.now.after(Span::from_millis(wait_ms));
        }
        change(&mut play, new);
        let span = was.rate().per().minus(was.resolution()).0.min(is.rate().per().minus(is.resolution()).0);
        let now = play.now.0;
        let begin = if is.is_aligned() { now / is.resolution().0 * is.resolution().0 } else { 0 };
        let counted = play.within((now - span.saturating_sub(1).min(now)).max(begin), now);
        let counts = !was.is_aligned();
        let after = granted_at_once(&mut play, 20);
        if counts && span > 0 {
            prop_assert!(after <= is.count().saturating_sub(counted), "{counted} before, {after} after: {play:#?}");
        }
    }

    /// "Permits ahead where they lie": from one window to another they can still be given back, and have never been.
    #[test]
    fn permits_ahead_of_a_window_can_be_given_back_after_a_change(
        (old, new, before, ahead, questions) in (window(), window(), moves(3, 10), vec((1..4_u64, terms()), 1..8), vec((1..4_u64, terms()), 1..6))
    ) {
        let mut play = Play::new(old);
        for one in &before {
            play.make(one);
        }
        let mut twin = play.clone();
        for (cost, terms) in ahead {
            let mut tried = play.clone();
            if matches!(tried.ask(cost, terms), Ok(Some(slot)) if slot > play.now) {
                play = tried;
            }
        }
        change(&mut play, new);
        change(&mut twin, new);
        for live in play.live.split_off(twin.live.len()) {
            prop_assert!(play.register.release(&new, play.now, live.permit).is_some());
        }
        for (cost, terms) in questions {
            let (found, expected) = (play.ask(cost, terms).map_err(|refused| refused.denial), twin.ask(cost, terms));
            prop_assert_eq!(found, expected.map_err(|refused| refused.denial));
        }
    }

    /// "Leases run on": "at most N in flight" holds for the new N as soon as it lets anybody in.
    #[test]
    fn leases_run_on_under_another_limit((limits, moves) in (vec(any_limit(), 2..4), vec((0..4_usize, 0..2_000_u64), 1..30))) {
        let mut play = Play::new(limits[0]);
        let mut leases: Vec<u64> = Vec::new();
        for (which, wait_ms) in moves {
            change(&mut play, limits[which % limits.len()]);
            let now = play.now.0;
            leases.retain(|ends| *ends > now);
            if let (Ok(Some(slot)), Limit::Concurrency(concurrency)) = (play.ask(1, Terms::default()), &play.limit) {
                leases.push(slot.after(concurrency.lease()).0);
                prop_assert!(leases.len() as u64 <= concurrency.max(), "{leases:?} {play:#?}");
            }
            play.now = play.now.after(Span::from_millis(wait_ms));
        }
    }
}
