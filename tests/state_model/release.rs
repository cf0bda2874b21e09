//! "Release of a permit whose slot is still ahead gives it back exactly: the newest one rolls `next` back; one in the middle leaves
//! a hole that the next fitting acquire takes (earliest first)."

use crate::config;
use crate::past::Figures;
use crate::play::{Move, Play, moves, terms};
use crate::script::{any_limit, ramped, spacing};
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::{Decision, Limit, Part, Register, Spacing, Span, Terms, Time, decide};
use quorate::limits::HOLES_MAX;

/// What a register answers to some questions, now and later.
fn answers(register: &Register, limit: &Limit, now: Time, questions: &[(u64, Terms, u64)]) -> Vec<Decision> {
    let answer = |(cost, terms, later_ms): &(u64, Terms, u64)| {
        let at = now.after(Span::from_millis(*later_ms));
        let fresh = Register::default();
        let register = if register.idle_at(limit) <= at { &fresh } else { register };
        decide(&[Part { register, limit, cost: *cost }], at, terms)
    };
    questions.iter().map(answer).collect()
}

fn questions() -> impl Strategy<Value = Vec<(u64, Terms, u64)>> {
    vec((1..5_u64, terms(), prop_oneof![Just(0), 0..20_000_u64]), 1..8)
}

proptest! {
    #![proptest_config(config(2_000))]

    /// "Gives it back exactly": whatever is granted ahead and given back again, in any order, has never been. "No capacity that
    /// could be given back is lost", for limits of every kind.
    #[test]
    fn what_is_all_given_back_has_never_been(
        (limit, moves, ahead, order, questions) in
            (prop_oneof![3 => any_limit(), 1 => ramped()], prop_oneof![Just(vec![]), moves(4, 20)], vec((1..5_u64, terms()), 1..12), any::<u64>(), questions())
    ) {
        let mut play = Play::new(limit);
        for one in &moves {
            play.make(one);
        }
        play.rest();
        let before = play.clone();
        for (cost, terms) in ahead {
            let mut tried = play.clone();
            // One that is free now could not be given back.
            if let Ok(Some(_)) = tried.ask(cost, terms)
                && tried.live.last().is_some_and(|live| live.ends > play.now.0)
            {
                play = tried;
            }
        }
        let mut new: Vec<_> = play.live[before.live.len()..].to_vec();
        let mut seed = order;
        while !new.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let live = new.remove((seed >> 33) as usize % new.len());
            prop_assert!(play.register.release(&limit, play.now, live.permit).is_some());
            prop_assert!(play.register.release(&limit, play.now, live.permit).is_none(), "once");
        }
        let (found, expected) = (&play.register, &before.register);
        prop_assert_eq!(answers(found, &limit, play.now, &questions), answers(expected, &limit, play.now, &questions));
        prop_assert_eq!(found.standing(&limit, play.now), expected.standing(&limit, play.now), "{:#?}\n{:#?}", found, expected);
    }

    /// "Exactly": the newest one that is given back at once leaves the register as it was, and one that is too late leaves it too.
    #[test]
    fn the_newest_is_undone_and_the_late_is_not((limit, moves, cost, terms) in (any_limit(), moves(4, 20), 1..5_u64, terms())) {
        let mut play = Play::new(limit);
        for one in &moves {
            play.make(one);
        }
        // The first of two leaves nothing that has passed behind, so that what is compared is what matters.
        let _ = play.ask(1, Terms::default());
        let before = play.clone();
        if let Ok(Some(slot)) = play.ask(cost, terms) {
            let permit = play.permits;
            let with = play.register.clone();
            let came = Time(play.live.last().map_or(slot.0, |live| live.ends));
            prop_assert!(play.register.release(&limit, came, permit).is_none(), "too late");
            prop_assert_eq!(&play.register, &with, "and so nothing changes");
            if came > play.now {
                prop_assert!(play.register.release(&limit, play.now, permit).is_some());
                let standing = |register: &Register| register.standing(&limit, play.now);
                prop_assert_eq!(standing(&play.register), standing(&before.register));
                prop_assert_eq!(play.register.ahead(play.now), before.register.ahead(play.now));
            }
        }
    }

    /// "After any interleaving of acquires and releases the live slots of a key are still spaced, and no capacity that could be
    /// given back is lost": without leads, a request gets the first instant at which it fits between all live permits; with a
    /// start window, after all of them.
    #[test]
    fn the_earliest_gap_is_taken((limit, moves) in (spacing(), moves(3, 40))) {
        let figures = Figures::of(&limit).unwrap();
        let windowed = figures.start_window > 0;
        let mut play = Play::new(limit);
        for one in &moves {
            let Move::Ask { cost, terms } = one else {
                play.make(one);
                continue;
            };
            let length = |cost: u64| u128::from(cost) * figures.unit();
            let ends = play.live.iter().map(|live| u128::from(live.slot) + length(live.cost));
            let mut instants: Vec<_> = ends.chain([u128::from(play.now.0)]).filter(|at| *at >= u128::from(play.now.0)).collect();
            instants.sort_unstable();
            let fits = |at: &&u128| {
                let apart = |slot: u128, taken: u64| {
                    !windowed && **at + length(*cost) <= slot || slot + length(taken) <= **at
                };
                play.live.iter().all(|live| apart(u128::from(live.slot), live.cost))
            };
            let expected = instants.iter().find(fits).copied();
            let terms = Terms { lead: Span::ZERO, ..*terms };
            if let Ok(Some(slot)) = play.ask(*cost, terms) {
                prop_assert_eq!(Some(u128::from(slot.0)), expected, "{:#?}", play);
            }
        }
    }
}

/// P7: "everything has a limit": of the holes of a key the longest are kept, and of equal ones the first.
#[test]
fn only_so_many_holes_are_remembered() {
    let limit = Limit::Spacing(Spacing::new("1/s".parse().unwrap(), Span::ZERO, 10_000).unwrap());
    let mut play = Play::new(limit);
    let now = play.now;
    let ask = |play: &mut Play| play.ask(1, Terms::default()).unwrap().unwrap().since(now).0 / 1_000_000_000;
    let count = 2 * HOLES_MAX as u64 + 100;
    assert!((0..count).all(|expected| ask(&mut play) == expected));
    // Every other one, so that no two holes are neighbours.
    let released = (1..count - 1).step_by(2).filter(|permit| {
        let at = play.live.iter().position(|live| live.permit == permit + 1).unwrap();
        play.release(at)
    });
    let holes: Vec<_> = released.collect();
    assert!(holes.len() > HOLES_MAX);
    for hole in &holes[..HOLES_MAX] {
        assert_eq!(ask(&mut play), *hole, "earliest first, of those that are kept");
    }
    assert_eq!(ask(&mut play), count, "and then the end");
}
