//! What each kind promises, tried on random requests: costs, leads, waits and releases, at instants that bunch.
//!
//! Each test quotes the sentence of `docs/LIMITS.md` that it checks. The checks know nothing of registers: they look at slots.

use super::document::read;
use super::stage::{Rng, Stage, ms, sec, within};
use quorate::limiter::{Limit, Reason, Span, Terms};
use quorate::state::Outcome;
use serde_json::{Value, json};

/// A permit that was not given back.
#[derive(Debug, Clone, Copy)]
struct Kept {
    permit: u64,
    slot: u64,
    cost: u64,
}

/// A request that was denied: how it looked then.
struct Refused<'a> {
    now: u64,
    cost: u64,
    terms: Terms,
    retry_after: u64,
    kept: &'a [Kept],
    stage: &'a Stage,
}

/// How a key is used.
#[derive(Clone, Copy)]
struct Use {
    steps: usize,
    /// Mean time between two requests.
    gap: u64,
    cost_max: u64,
    lead_max: u64,
    wait_max: u64,
}

/// Uses one key at random, and says of every denial how it was.
fn play(limit: &Value, seed: u64, how: Use, mut denied: impl FnMut(&Refused<'_>)) -> Vec<Kept> {
    let mut rng = Rng::new(seed);
    let mut stage = Stage::new(&[read(limit)]);
    let (mut kept, mut now): (Vec<Kept>, u64) = (Vec::new(), rng.below(10 * how.gap));
    for _ in 0..how.steps {
        // Requests bunch: most come together, some after a while.
        now += if rng.below(3) == 0 { rng.below(6 * how.gap) } else { 0 };
        stage.at(now);
        if rng.below(6) == 0 {
            let ahead: Vec<_> = (0..kept.len()).filter(|index| kept[*index].slot > now).collect();
            if !ahead.is_empty() {
                let index = ahead[usize::try_from(rng.below(ahead.len() as u64)).unwrap()];
                assert!(stage.release(kept.remove(index).permit), "a slot that lies ahead can be given back");
            }
        }
        let cost = 1 + rng.below(how.cost_max);
        let mut terms = Terms::default();
        match rng.below(5) {
            0 => terms.lead = Span(rng.below(how.lead_max)),
            1 | 2 => terms.max_wait = Some(Span(rng.below(how.wait_max))),
            3 => terms.free_now_only = true,
            _ => {}
        }
        match stage.outcome(cost, terms) {
            Outcome::Granted(grant) => {
                assert!(grant.slot.0 >= now + terms.lead.0, "not before the lead");
                assert!(terms.max_wait.is_none_or(|longest| grant.slot.0 - now <= longest.0), "not after the wait");
                assert!(!terms.free_now_only || grant.slot.0 == now, "free now");
                kept.push(Kept { permit: grant.first.number, slot: grant.slot.0, cost });
            }
            Outcome::Denied { denial, .. } => {
                let retry_after = denial.retry_after.0;
                denied(&Refused { now, cost, terms, retry_after, kept: &kept, stage: &stage });
            }
            // A lead beyond all reservations.
            Outcome::Never { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(kept.len() > how.steps / 20, "hardly anything was granted: {} of {}", kept.len(), how.steps);
    kept.sort_by_key(|one| (one.slot, one.permit));
    kept
}

/// "`retry_after_ms`: the same request would be granted then if nobody else came, and not a moment earlier."
fn retry_is_exact(refused: &Refused<'_>) {
    assert!(refused.retry_after > 0, "denied, and would be granted now");
    // Another cluster is made for it, which takes a while.
    if !refused.kept.len().is_multiple_of(7) {
        return;
    }
    for (after, granted) in [(refused.retry_after, true), (refused.retry_after - 1, false)] {
        let outcome = refused.stage.fork().at(refused.now + after).outcome(refused.cost, refused.terms);
        let is = matches!(outcome, Outcome::Granted(_));
        assert_eq!(is, granted, "{after} ns after the denial of {} {:?}: {outcome:?}", refused.cost, refused.terms);
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..8
}

/// What lies in the slots from `from` up to and with `to`.
fn held(kept: &[Kept], from: u64, to: u64) -> u64 {
    kept.iter().filter(|one| (from..=to).contains(&one.slot)).map(|one| one.cost).sum()
}

/// "Two slots are never closer than the interval and the start window together, times the cost of the earlier one."
#[test]
fn spacing_keeps_its_distance() {
    let how = Use { steps: 400, gap: ms(300), cost_max: 3, lead_max: ms(900), wait_max: sec(3) };
    for (limit, unit) in [
        (json!("5/s"), ms(200)),
        (json!({"rate": "5/s", "max_reserved": 0}), ms(200)),
        (json!({"rate": "5/s", "max_reserved": 40, "start_window": "50ms"}), ms(250)),
    ] {
        for seed in seeds() {
            let kept = play(&limit, seed, how, retry_is_exact);
            for pair in kept.windows(2) {
                assert!(pair[1].slot >= pair[0].slot + pair[0].cost * unit, "{limit} {seed}: {pair:?}");
            }
        }
    }
}

/// "In any stretch of time `t`: at most `burst + rate * t`."
#[test]
fn a_bucket_never_gives_more_than_burst_and_rate() {
    let how = Use { steps: 400, gap: ms(150), cost_max: 4, lead_max: ms(500), wait_max: sec(2) };
    for (limit, burst, interval) in [
        (json!({"kind": "bucket", "rate": "10/s", "burst": 5}), 5, ms(100)),
        (json!({"kind": "bucket", "rate": "10/s", "burst": 7, "max_reserved": 12}), 7, ms(100)),
        (json!({"kind": "bucket", "rate": "3/s", "burst": 4, "max_reserved": 3}), 4, 333_333_334),
    ] {
        for seed in seeds() {
            let kept = play(&limit, seed, how, retry_is_exact);
            for (index, first) in kept.iter().enumerate() {
                let mut costs = 0;
                for last in &kept[index..] {
                    costs += last.cost;
                    let most = burst + (last.slot - first.slot) / interval;
                    assert!(costs <= most, "{limit} {seed}: {costs} from {first:?} to {last:?}, not {most}");
                }
            }
        }
    }
}

/// "With a start window `W` the starts of a bucket may bunch: at most `burst + rate * (t + W)` in any `t`."
#[test]
fn starts_of_a_bucket_bunch_by_the_window() {
    let limit = json!({"kind": "bucket", "rate": "10/s", "burst": 3, "max_reserved": 20, "start_window": "250ms"});
    let (burst, interval, window) = (3, ms(100), ms(250));
    let how = Use { steps: 400, gap: ms(150), cost_max: 1, lead_max: ms(500), wait_max: sec(2) };
    let mut bunched = false;
    for seed in seeds() {
        let mut rng = Rng::new(seed);
        let late = |one: &Kept| one.slot + if rng.below(2) == 0 { 0 } else { window };
        let mut starts: Vec<_> = play(&limit, seed, how, retry_is_exact).iter().map(late).collect();
        starts.sort_unstable();
        for (index, first) in starts.iter().enumerate() {
            for (count, last) in starts[index..].iter().enumerate().map(|(place, last)| (place as u64 + 1, last)) {
                assert!(count <= burst + (last - first + window) / interval);
                bunched |= count > burst + (last - first) / interval;
            }
        }
    }
    assert!(bunched, "and they do");
}

/// "Never more than N in any `T - resolution`; in any `T` never more than N and what the oldest cell held; refused only if
/// the last `T + resolution` held more than N with it."
#[test]
fn a_sliding_window_errs_by_one_cell() {
    let how = Use { steps: 500, gap: ms(400), cost_max: 3, lead_max: sec(2), wait_max: sec(12) };
    for (limit, most, per, cell) in [
        (json!({"kind": "window", "rate": "12/10s"}), 12, sec(10), sec(1)),
        (json!({"kind": "window", "rate": "9/10s", "resolution": "5s"}), 9, sec(10), sec(5)),
        (json!({"kind": "window", "rate": "20/10s", "resolution": "100ms"}), 20, sec(10), ms(100)),
    ] {
        for seed in seeds() {
            let kept = play(&limit, seed, how, |refused| {
                retry_is_exact(refused);
                // Only those who ask for now, and leave it to the window: the others may be refused for their patience.
                if refused.terms == Terms::default() {
                    let counted = held(refused.kept, (refused.now + 1).saturating_sub(per + cell), u64::MAX);
                    assert!(counted + refused.cost > most, "{limit} {seed}: refused at {}", refused.now);
                }
            });
            for Kept { slot, .. } in &kept {
                assert!(held(&kept, (slot + 1).saturating_sub(per - cell), *slot) <= most, "{limit} {seed} at {slot}");
                let oldest = (slot / cell)
                    .checked_sub(per / cell)
                    .map_or(0, |index| held(&kept, index * cell, (index + 1) * cell - 1));
                assert!(
                    held(&kept, (slot + 1).saturating_sub(per), *slot) <= most + oldest,
                    "{limit} {seed} at {slot}"
                );
            }
        }
    }
}

/// "Nearly `2N - 1` in one `T`, at worst"; "a period that is one cell longer makes it N for sure".
#[test]
fn the_worst_that_a_sliding_window_lets_through() {
    let mut stage = Stage::new(&[read(&json!({"kind": "window", "rate": "10/10s", "resolution": "5s"}))]);
    assert_eq!(stage.at(ms(4_999)).at_once(20), 10, "at the very end of a cell");
    assert_eq!(stage.at(ms(9_999)).at_once(20), 0);
    assert_eq!(stage.at(ms(14_998)).at_once(20), 9, "all but one, less than ten seconds later");
    let mut stage = Stage::new(&[read(&json!({"kind": "window", "rate": "10/15s", "resolution": "5s"}))]);
    assert_eq!(stage.at(ms(4_999)).at_once(20), 10);
    assert_eq!(stage.at(ms(14_998)).at_once(20), 0);
    assert_eq!(stage.at(ms(15_500)).at_once(20), 1, "one after more than ten seconds");
}

/// "If permits come evenly, the count is exact but for its rounding up, by one at most."
#[test]
fn a_sliding_window_is_exact_for_an_even_stream() {
    let mut stage = Stage::new(&[read(&json!({"kind": "window", "rate": "1000/10s"}))]);
    for step in 0..600 {
        let now = ms(100 * step + 50);
        let left = stage.at(now).grant(1, Terms::default()).unwrap().first.remaining;
        let exact = (step + 1).min(100);
        assert!((1_000 - exact - 1..=1_000 - exact).contains(&left), "{left} are left at {now}, not {}", 1_000 - exact);
    }
}

/// "Never more than N in a cell, up to `2N` around its edge."
#[test]
fn an_aligned_window_counts_by_the_cell() {
    let how = Use { steps: 500, gap: ms(400), cost_max: 3, lead_max: sec(2), wait_max: sec(12) };
    let limit = json!({"kind": "window", "rate": "12/10s", "aligned": true});
    for seed in seeds() {
        let kept = play(&limit, seed, how, retry_is_exact);
        for Kept { slot, .. } in &kept {
            let begin = slot / sec(10) * sec(10);
            assert!(held(&kept, begin, begin + sec(10) - 1) <= 12, "{seed}");
        }
    }
    let mut stage = Stage::new(&[read(&limit)]);
    assert_eq!((stage.at(sec(20) - 1).at_once(30), stage.at(sec(20)).at_once(30)), (12, 12));
}

/// "A window reserves only for those who say how long they wait."
#[test]
fn a_window_reserves_for_those_who_say_how_long_they_wait() {
    let mut stage = Stage::new(&[read(&json!({"kind": "window", "rate": "2/10s", "aligned": true}))]);
    assert_eq!(stage.at(sec(4)).slots(2), [sec(4), sec(4)]);
    assert_eq!(stage.ask(), Err((Reason::WindowFull, sec(6))));
    assert_eq!(stage.within(sec(6)), Ok(sec(10)));
    assert!(stage.release(3), "and what lies ahead can be given back");
    assert_eq!(stage.within(sec(6)), Ok(sec(10)));
    assert!(!stage.release(1), "what has been cannot");
}

/// "The costs of all leases that run are never more than `max`."
#[test]
fn no_more_than_max_are_in_flight() {
    let limit = json!({"kind": "concurrency", "max": 7, "lease": "2s"});
    for seed in seeds() {
        let (mut rng, mut now) = (Rng::new(seed), 0);
        let mut stage = Stage::new(&[read(&limit)]);
        let mut running: Vec<(u64, u64, u64)> = Vec::new();
        for _ in 0..1_000 {
            now += rng.below(ms(400));
            stage.at(now);
            running.retain(|(_, ends, _)| *ends > now);
            match (rng.below(4), running.len() as u64) {
                (0, count) if count > 0 => {
                    let (permit, ..) = running.swap_remove(usize::try_from(rng.below(count)).unwrap());
                    assert!(stage.release(permit));
                }
                (1, count) if count > 0 => {
                    let (permit, ends, _) = &mut running[usize::try_from(rng.below(count)).unwrap()];
                    assert_eq!(stage.renew(*permit), Some(sec(2)));
                    *ends = now + sec(2);
                }
                _ => {
                    let (cost, flying) = (1 + rng.below(3), running.iter().map(|(.., cost)| cost).sum::<u64>());
                    match stage.asks(cost, Terms::default()) {
                        Ok(slot) => running.push((stage.permit(), slot + sec(2), cost)),
                        Err((reason, retry_after)) => {
                            assert_eq!(reason, Reason::InFlightFull);
                            assert!(flying + cost > 7, "refused with {flying} in flight");
                            if !stage.permit().is_multiple_of(7) {
                                continue;
                            }
                            let mut later = stage.fork();
                            assert!(later.at(now + retry_after - 1).asks(cost, Terms::default()).is_err());
                            assert!(later.at(now + retry_after).asks(cost, Terms::default()).is_ok());
                        }
                    }
                }
            }
            assert!(running.iter().map(|(.., cost)| cost).sum::<u64>() <= 7, "{seed}");
        }
    }
}

/// "The rate grows linearly from `from` to `rate` over `over`, beginning with the first permit."
#[test]
fn a_ramp_grows_linearly() {
    let mut stage =
        Stage::new(&[read(&json!({"rate": "20/s", "max_reserved": 1000, "ramp": {"from": "2/s", "over": "10s"}}))]);
    let slots = stage.at(sec(7)).slots(200);
    for pair in slots.windows(2) {
        // One over 2/s and the part of 18/s that it has grown by.
        let elapsed = u128::from((pair[0] - sec(7)).min(sec(10)));
        let interval = u128::from(sec(1)) * u128::from(sec(10)) / (2 * u128::from(sec(10)) + 18 * elapsed);
        let gap = u128::from(pair[1] - pair[0]);
        let near = interval..=interval + interval / 5_000 + 1;
        assert!(near.contains(&gap), "{gap} for {interval}: never faster than the line");
    }
    assert_eq!(slots[199] - slots[198], ms(50), "and stays there");
}

/// "A key that rests for `over` after its last permit begins anew"; one that rests less goes on where it is.
#[test]
fn a_ramp_begins_anew_after_a_rest() {
    let limit = json!({"rate": "20/s", "ramp": {"from": "2/s", "over": "10s"}});
    for (rest, gap) in [(sec(10) - 1, ms(50)), (sec(10), ms(500))] {
        let mut stage = Stage::new(&[read(&limit)]);
        assert_eq!(stage.at(0).ask(), Ok(0));
        assert_eq!(stage.at(sec(9)).ask(), Ok(sec(9)), "it is the time that counts, not the permits");
        // The permit takes its interval; the rest begins where it ends.
        let end = stage.fork().ask().unwrap();
        assert!((end - sec(9)).abs_diff(54_945_055) < 10_000, "18.2/s after nine tenths: {}", end - sec(9));
        let slots = stage.at(end + rest).slots(2);
        assert_eq!(slots[1] - slots[0], gap, "after {rest} ns");
    }
}

/// "While the rate is low there is hardly a burst either: it is `burst * from / rate` at the beginning."
#[test]
fn the_burst_of_a_bucket_grows_with_the_ramp() {
    let limit = json!({"kind": "bucket", "rate": "100/s", "burst": 50, "ramp": {"from": "10/s", "over": "10s"}});
    let mut stage = Stage::new(&[read(&limit)]);
    assert_eq!(stage.at(0).at_once(100), 5);
    assert!((5..=10).all(|second| stage.at(sec(second)).now_only().is_ok()), "in use all the time");
    assert_eq!(stage.at(sec(15)).at_once(100), 50);
}

/// "Several limits get one common slot, all or nothing."
#[test]
fn all_of_is_one_slot_or_nothing() {
    let limits: Vec<Limit> = [
        json!("2/s"),
        json!({"kind": "bucket", "rate": "1/s", "burst": 4, "max_reserved": 10}),
        json!({"kind": "concurrency", "max": 5, "lease": "60s"}),
    ]
    .iter()
    .map(read)
    .collect();
    let mut stage = Stage::new(&limits);
    stage.at(sec(1));
    assert_eq!(stage.slots(5), [sec(1), ms(1_500), sec(2), ms(2_500), ms(3_000)], "the later of both, each time");
    assert_eq!(stage.ask(), Err((Reason::InFlightFull, sec(60))), "five are in flight");
    let permits = stage.permit();
    assert_eq!(permits, 15, "three numbers each");
    assert!(stage.asks(1, within(sec(50))).is_err());
    assert_eq!(stage.permit(), permits, "a denial consumed nothing");
}
