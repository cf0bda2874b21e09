//! "Several limits at once are decided in one log entry, all or nothing; the answer names the one that refused."

use crate::config;
use crate::play::{Move, Play, moves, terms};
use crate::script::any_limit;
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::{
    Bucket, Concurrency, Decision, Limit, Part, Rate, Reason, Register, Spacing, Span, Terms, Time, Window, decide,
};

/// One move of one key, or a question to all of them.
#[derive(Debug, Clone)]
enum Turn {
    Alone(usize, Move),
    All(Vec<u64>, Terms),
}

fn turns(terms: impl Strategy<Value = Terms>, count_max: usize) -> impl Strategy<Value = Vec<Turn>> {
    let alone = (0..3_usize, moves(3, 1)).prop_map(|(key, moves)| Turn::Alone(key, moves[0].clone()));
    let all = (vec(1..4_u64, 3), terms).prop_map(|(costs, terms)| Turn::All(costs, terms));
    vec(prop_oneof![2 => alone, 3 => all], 1..count_max)
}

/// Asks all keys at once and enters what is granted.
fn ask_all(plays: &mut [Play], costs: &[u64], terms: &Terms) -> (Vec<Decision>, Decision) {
    for play in plays.iter_mut() {
        play.rest();
    }
    let now = plays[0].now;
    let part = |(play, cost): (&'_ Play, &u64)| (play.register.clone(), play.limit, *cost);
    let owned: Vec<_> = plays.iter().zip(costs).map(part).collect();
    let parts: Vec<_> = owned.iter().map(|(register, limit, cost)| Part { register, limit, cost: *cost }).collect();
    let alone = parts.iter().map(|part| decide(&[*part], now, terms)).collect();
    let together = decide(&parts, now, terms);
    if let Decision::Granted { slot } = together {
        for (play, cost) in plays.iter_mut().zip(costs) {
            play.enter(*cost, terms.lead, slot);
        }
    }
    (alone, together)
}

/// All keys live by the same clock.
fn make(plays: &mut [Play], key: usize, one: &Move) {
    let key = key % plays.len();
    plays[key].make(one);
    let now = plays[key].now;
    for play in plays {
        play.now = now;
    }
}

proptest! {
    #![proptest_config(config(2_000))]

    /// "All or nothing", "the answer names the one that refused": if one of them refuses alone, they refuse together, and the one
    /// that is named says the same alone, with the longest wait of all. Else only the terms of the request can refuse. And whatever
    /// happens, each key alone keeps its own promise.
    #[test]
    fn together_they_grant_what_each_of_them_would(
        (limits, turns) in (vec(any_limit(), 2..4), turns(terms(), 30))
    ) {
        let mut plays: Vec<_> = limits.iter().map(|limit| Play::new(*limit)).collect();
        for turn in &turns {
            match turn {
                Turn::Alone(key, one) => make(&mut plays, *key, one),
                Turn::All(costs, terms) => {
                    let now = plays[0].now;
                    let registers: Vec<_> = plays.iter().map(|play| play.register.clone()).collect();
                    let (alone, together) = ask_all(&mut plays, costs, terms);
                    let waits = alone.iter().filter_map(|one| match one {
                        Decision::Denied { denial, .. } => Some(denial.retry_after),
                        _ => None,
                    });
                    let (longest, never) = (waits.max(), alone.iter().position(|one| matches!(one, Decision::Never { .. })));
                    match (&together, never) {
                        (Decision::Never { by, .. }, never) => prop_assert_eq!(Some(*by), never),
                        (_, Some(_)) => prop_assert!(false, "{alone:?} and {together:?}"),
                        (Decision::Denied { by, denial }, None) if longest.is_some() => {
                            prop_assert_eq!(&alone[*by], &Decision::Denied { by: 0, denial: *denial });
                            prop_assert_eq!(Some(denial.retry_after), longest);
                        }
                        (Decision::Denied { denial, .. }, None) => {
                            let by_terms = match denial.reason {
                                Reason::NotFreeNow => terms.free_now_only,
                                Reason::WouldWaitTooLong => terms.max_wait.is_some(),
                                _ => false,
                            };
                            prop_assert!(by_terms, "nobody refuses alone: {together:?}");
                        }
                        (Decision::Granted { slot }, None) => {
                            prop_assert!(longest.is_none(), "{alone:?} and {together:?}");
                            let wait = slot.since(now);
                            prop_assert!(wait >= terms.lead && terms.max_wait.is_none_or(|longest| wait <= longest));
                        }
                    }
                    if !matches!(together, Decision::Granted { .. }) {
                        let resting = |register: &Register, limit: &Limit| register.idle_at(limit) <= now;
                        for (play, before) in plays.iter().zip(&registers) {
                            prop_assert!(play.register == *before || resting(before, &play.limit), "nothing changes");
                        }
                    }
                }
            }
            for play in &plays {
                let kept = play.keeps_its_promise();
                prop_assert!(kept.is_ok(), "{}: {play:#?}", kept.unwrap_err());
            }
        }
    }

    /// "Several limits get one common slot: the earliest that all of them have." Here everything happens at whole milliseconds, so
    /// that all of them can be looked at.
    #[test]
    fn the_common_slot_is_the_earliest((limits, turns) in (vec(small_limit(), 2..4), turns(small_terms(), 25))) {
        let mut plays: Vec<_> = limits.iter().map(|limit| Play::new(*limit)).collect();
        for turn in &turns {
            match turn {
                Turn::Alone(key, Move::Ask { cost, .. }) => make(&mut plays, *key, &Move::Ask { cost: *cost, terms: WAITING }),
                Turn::Alone(key, Move::Wait(span)) => make(&mut plays, *key, &Move::Wait(Span(span.0 % 20_000_000 / MS * MS))),
                Turn::Alone(key, one @ Move::Release(_)) => make(&mut plays, *key, one),
                Turn::Alone(..) => {}
                Turn::All(costs, terms) => {
                    let before = plays.clone();
                    let now = before[0].now;
                    let (_, together) = ask_all(&mut plays, costs, terms);
                    let Decision::Granted { slot } = together else { continue };
                    let has = |at: Time| {
                        before.iter().zip(costs).all(|(play, cost)| {
                            play.register.earliest(&play.limit, now, at, *cost).is_ok_and(|slot| slot == at)
                        })
                    };
                    prop_assert!(has(slot));
                    let from = now.after(terms.lead);
                    let sooner = (0..slot.since(from).0 / MS).map(|ms| from.after(Span(ms * MS))).find(|at| has(*at));
                    prop_assert_eq!(sooner, None, "all of them have it before {}: {:#?}", slot, before);
                }
            }
        }
    }
}

const MS: u64 = 1_000_000;
const WAITING: Terms = Terms { lead: Span::ZERO, max_wait: Some(Span::from_millis(100)), free_now_only: false };

fn small_terms() -> impl Strategy<Value = Terms> {
    prop_oneof![3 => Just(0), 1 => 1..10_u64].prop_map(|lead_ms| Terms { lead: Span(lead_ms * MS), ..WAITING })
}

fn small_limit() -> impl Strategy<Value = Limit> {
    let rate = |count, per_ms: u64| Rate::new(count, Span(per_ms * MS)).unwrap();
    prop_oneof![
        (1..8_u64, 0..20_u32).prop_map(move |(per, reserved)| {
            Limit::Spacing(Spacing::new(rate(1, per), Span::ZERO, reserved).unwrap())
        }),
        (1..8_u64, 1..6_u64, 0..20_u32).prop_map(move |(per, burst, reserved)| {
            Limit::Bucket(Bucket::new(rate(1, per), burst, Span::ZERO, reserved).unwrap())
        }),
        (1..6_u64, 1..9_u64).prop_map(move |(count, per)| Limit::Window(Window::aligned(rate(count, per)))),
        // Of one permit at a time a cell is full or empty, so that this too happens at whole milliseconds.
        (1..5_u64, 1..4_u64).prop_map(move |(cells, cell)| {
            Limit::Window(Window::sliding(rate(1, cells * cell), Some(Span(cell * MS))).unwrap())
        }),
        (1..9_u64, 10..50_u64)
            .prop_map(|(max, lease)| Limit::Concurrency(Concurrency::new(max, Span(lease * MS)).unwrap())),
    ]
}

/// What is free at once takes no slot that another limit has to wait for; what lies before a permit that was pushed ahead stays
/// free, and one that is pushed is no reservation of its own.
#[test]
fn whoever_is_pushed_ahead_leaves_the_time_before_it_to_others() {
    let spacing =
        |rate: &str, reserved| Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, reserved).unwrap());
    let (slow, quick) = (spacing("1/10s", 5), spacing("1/s", 0));
    let mut plays = [Play::new(slow), Play::new(quick)];
    let now = plays[0].now;
    plays[0].ask(1, Terms::default()).unwrap();
    let (_, together) = ask_all(&mut plays, &[1, 1], &Terms::default());
    let at = |secs| now.after(Span::from_secs(secs));
    assert_eq!(together, Decision::Granted { slot: at(10) });
    for second in 0..10 {
        plays[1].now = at(second);
        assert_eq!(plays[1].ask(1, Terms::default()).unwrap(), Some(at(second)), "before it");
    }
    plays[1].now = at(10);
    assert!(plays[1].ask(1, Terms::default()).is_err(), "there it is");
    plays[1].now = at(11);
    assert_eq!(plays[1].ask(1, Terms::default()).unwrap(), Some(at(11)));
}
