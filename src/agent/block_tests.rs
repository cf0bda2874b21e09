//! Properties of blocks: nobody starts too early or too late whatever the clocks do within their drift, nothing is handed out
//! twice, and what is reserved follows what is used.

use super::*;
use proptest::prelude::*;

const MS: Ns = 1_000_000;

/// A clock that reads real time at a rate within the drift: `real * (1 + ppm / 1e6)`.
#[derive(Debug, Clone, Copy)]
struct Clock {
    ppm: i64,
}

impl Clock {
    /// What passes on this clock in `real` nanoseconds, rounded down.
    fn elapsed(self, real: u64) -> u64 {
        u64::try_from(i128::from(real) * i128::from(1_000_000 + self.ppm) / 1_000_000).unwrap()
    }

    /// Real time by which at least `own` has passed on this clock, rounded up.
    fn real_for(self, own: u64) -> u64 {
        u64::try_from((i128::from(own) * 1_000_000).div_euclid(i128::from(1_000_000 + self.ppm)) + 1).unwrap()
    }
}

fn clock() -> impl Strategy<Value = Clock> {
    let drift = i64::try_from(DRIFT_PPM).unwrap();
    prop_oneof![Just(-drift), Just(drift), Just(0), -drift..=drift].prop_map(|ppm| Clock { ppm })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// P2: "two workers that obey start_after/start_before never start closer than the interval in real time". The proof for one
    /// clock allows real starts from `c_r + wait / (1 + r)` on and until `c_s + before / (1 - r)`: so do two clocks.
    #[test]
    fn a_worker_with_a_clock_of_its_own_stays_within_the_two_instants(
        agent in clock(),
        worker in clock(),
        sent in 0_u64..20_000,
        round_trip in 1_u64..3_000,
        wait in 0_u64..10_000,
        window in 1_u64..5_000,
        worker_sent in 0_u64..30_000,
        to_agent in 0_u64..500,
        held_for in 0_u64..10_000,
        to_worker in 0_u64..500,
    ) {
        // Real instants, in nanoseconds; the agent's clock began at real 0.
        let (sent, received) = (sent * MS, (sent + round_trip) * MS);
        let (wait, before) = (wait * MS, (wait + window) * MS);
        let slot = Slot::new((), (agent.elapsed(sent), agent.elapsed(received)), wait, Some(before));
        let worker_sent = worker_sent * MS;
        let seen = worker_sent + to_agent * MS;
        let answered = received.max(seen) + held_for * MS;
        let told = slot.told(agent.elapsed(seen), agent.elapsed(answered));
        let worker_received = answered + to_worker * MS;

        let earliest = worker_received + worker.real_for(told.wait);
        let latest = worker_sent + worker.real_for(told.before.unwrap());
        let r = i128::from(DRIFT_PPM);
        let allowed_from = i128::from(received) + i128::from(wait) * 1_000_000 / (1_000_000 + r);
        let allowed_until = i128::from(sent) + i128::from(before) * 1_000_000 / (1_000_000 - r);
        // A clock is read in whole nanoseconds: each reading may be off by one, and so may each division here.
        prop_assert!(i128::from(earliest) + 4 >= allowed_from, "{earliest} before {allowed_from}");
        // Nothing left is nothing to start with: a worker's check comes after its send.
        prop_assert!(told.before == Some(0) || i128::from(latest) <= allowed_until + 4, "{latest} after {allowed_until}");
    }

    /// "A retry under the same id gets the same slot": the deadline stays, the wait shrinks by what has passed.
    #[test]
    fn a_retry_moves_neither_instant(sent in 0_u64..100, took in 0_u64..100, wait in 0_u64..1_000, seen in 0_u64..300, later in 0_u64..2_000) {
        let slot = Slot::new((), (sent * MS, (sent + took) * MS), wait * MS, Some((wait + 50) * MS));
        let now = (sent + took).max(seen) * MS;
        let (first, again) = (slot.told(seen * MS, now), slot.told(seen * MS, now + later * MS));
        prop_assert_eq!(first.before, again.before);
        prop_assert_eq!((now + first.wait).max(now + later * MS), now + later * MS + again.wait);
    }

    /// Nothing is handed out twice, nothing early in place of a better one, nothing dead; what goes in comes out once.
    #[test]
    fn every_slot_goes_one_way(
        slots in prop::collection::vec((0_u64..2_000, prop::option::of(1_u64..400)), 0..60),
        steps in prop::collection::vec((0_u64..60, 0_u8..4, 0_u64..100, prop::option::of(0_u64..500)), 0..120),
    ) {
        let mut stock = Stock::default();
        for (number, (wait, window)) in slots.iter().enumerate() {
            stock.add(Slot::new(number, (0, 0), wait * MS, window.map(|window| (wait + window) * MS)));
        }
        let (mut now, mut gone, mut dead) = (0, Vec::new(), 0);
        for (passes, what, lead, max_wait) in steps {
            now += passes * MS;
            let held = stock.len();
            match what {
                0 => {
                    let lost = stock.drop_dead(now);
                    prop_assert_eq!(stock.len() + lost, held);
                    dead += lost;
                    prop_assert!(stock.iter().all(|slot| slot.good(now, now)));
                }
                1 => {
                    let back = stock.give_back(now, 3, 20 * MS);
                    prop_assert!(back.windows(2).all(|pair| pair[0].start >= pair[1].start), "newest first");
                    prop_assert!(back.iter().all(|slot| slot.start > now + 20 * MS));
                    prop_assert!(back.is_empty() || stock.len() >= 3);
                    gone.extend(back.into_iter().map(|slot| slot.grant));
                }
                _ => {
                    let terms = Terms { lead: lead * MS, max_wait: max_wait.map(|wait| wait * MS), now_only: what == 2 };
                    let first = stock.iter().find(|slot| slot.good(now, now + terms.lead)).cloned();
                    match stock.take(now, now, &terms) {
                        Taken::Slot(slot) => {
                            prop_assert_eq!(Some(&slot), first.as_ref());
                            let wait = slot.start.saturating_sub(now);
                            prop_assert!(!terms.now_only || wait == 0);
                            prop_assert!(terms.max_wait.is_none_or(|longest| wait <= longest));
                            if slot.until.is_none() {
                                prop_assert!(slot.start >= now, "without a window only what lies ahead");
                            }
                            gone.push(slot.grant);
                        }
                        Taken::NotFree(wait) => prop_assert_eq!(now + wait, first.unwrap().start),
                        Taken::TooFar(over) => prop_assert_eq!(now + over + terms.max_wait.unwrap(), first.unwrap().start),
                        Taken::Nothing => prop_assert!(first.is_none()),
                    }
                }
            }
        }
        let mut all: Vec<_> = gone.iter().copied().chain(stock.iter().map(|slot| slot.grant)).collect();
        prop_assert_eq!(all.len() + dead, slots.len());
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len() + dead, slots.len(), "no slot twice");
    }

    /// However it is used, no more is held than is of use, and what was lost is not lost again in the same measure.
    #[test]
    fn the_pace_is_bounded(rounds in prop::collection::vec((any::<bool>(), 0_u32..50, 0_usize..50, 0_u32..40), 0..200)) {
        let mut pace = Pace::default();
        for (soon, used, lost, most) in rounds {
            let before = pace.ahead();
            for _ in 0..used {
                pace.used();
            }
            pace.lost(lost);
            let ahead = pace.round(soon, most);
            prop_assert!(ahead <= most as usize && ahead <= (2 * before).max(1));
            if lost > used as usize {
                prop_assert!(ahead <= used as usize);
            }
        }
    }

    #[test]
    fn the_most_is_bounded_by_age_and_count(round_trip in 0_u64..10_000, distance in 0_u64..10_000, age in 0_u64..60_000, block in 0_u32..1_000) {
        let most = most_ahead(round_trip * MS, Some(distance * MS), age * MS, block);
        prop_assert!(most <= block);
        prop_assert!(u64::from(most) * distance <= age, "none comes later than that");
    }
}

/// Why a wait before the block was asked for does not count in full: measured by a fast clock and counted by a slow one, ten seconds
/// are ten milliseconds more than they were.
#[test]
fn time_before_the_block_counts_a_little_less() {
    let r = i64::try_from(DRIFT_PPM).unwrap();
    let (agent, worker) = (Clock { ppm: r }, Clock { ppm: -r });
    let (seen, sent, before) = (0, 10_000 * MS, 100 * MS);
    let slot = Slot::new((), (agent.elapsed(sent), agent.elapsed(sent)), 0, Some(before));
    let told = slot.told(seen, agent.elapsed(sent)).before.unwrap();
    let latest_allowed = sent + worker.real_for(before);
    assert!(worker.real_for(told) <= latest_allowed);
    let in_full = agent.elapsed(sent) + before;
    assert!(worker.real_for(in_full) > latest_allowed + 9 * MS, "in full it would be too late");
    assert!(told + 11 * MS > in_full, "and no more is taken off than that");
}

/// Somebody who works in a loop is given a block that grows until it covers the way to the cluster.
#[test]
fn a_busy_worker_is_soon_ahead_of_the_round_trip() {
    let most = most_ahead(80 * MS, Some(10 * MS), 2_000 * MS, 100);
    assert_eq!(most, 32);
    let mut pace = Pace::default();
    assert_eq!(pace.round(false, most), 0, "the first request says nothing about a second");
    assert_eq!(pace.round(true, most), 1);
    for ahead in [2, 4, 8, 16, 32, 32] {
        pace.used();
        assert!(pace.runs_low(0));
        assert_eq!(pace.round(false, most), ahead);
    }
    assert!(!pace.runs_low(16), "nobody has come since");
    pace.used();
    assert!(pace.runs_low(16) && !pace.runs_low(17));
}

/// "Size by recent use": a site that comes now and then loses one slot, then fewer and fewer.
#[test]
fn a_site_that_comes_now_and_then_loses_less_and_less() {
    let (mut pace, mut lost) = (Pace::default(), 0);
    for _ in 0..100 {
        let ahead = pace.round(true, 32);
        pace.lost(ahead);
        lost += ahead;
    }
    assert!(lost <= 8, "{lost} slots lost in a hundred blocks");
}

#[test]
fn slow_limits_are_not_held_ahead() {
    assert_eq!(most_ahead(80 * MS, Some(6_000 * MS), 2_000 * MS, 100), 0, "it would be older than two seconds");
    assert_eq!(most_ahead(80 * MS, Some(200 * MS), 2_000 * MS, 100), 2);
    assert_eq!(most_ahead(80 * MS, None, 2_000 * MS, 100), 2, "nothing is known yet");
}

#[test]
fn a_permit_that_would_die_on_the_way_is_not_handed_out() {
    let slot = Slot::new((), (0, 80 * MS), 0, Some(100 * MS));
    assert!(slot.good(98 * MS, 0) && !slot.good(98 * MS + 1, 0));
    assert!(slot.good(80 * MS, 98 * MS) && !slot.good(80 * MS, 99 * MS), "a lead counts");
    let never = Slot::new((), (0, 80 * MS), 0, Some(60 * MS));
    assert!(!never.good(80 * MS, 0), "a window shorter than the way is dead on arrival");
}

/// A lead counts from when the request came. From when its slot came it would never be kept: the way has been used up by then.
#[test]
fn the_slot_that_a_lead_asked_for_is_good_for_whoever_asked() {
    let terms = Terms { lead: 100 * MS, max_wait: Some(500 * MS), now_only: false };
    let mut stock = Stock::default();
    // Asked for at 1 ms, chosen by a clock that runs fast, received at 81 ms.
    stock.add(Slot::new(7, (MS, 81 * MS), 19 * MS + 960_000, None));
    assert_eq!(stock.clone().take(81 * MS, 81 * MS, &terms), Taken::Nothing, "of no use to who comes now");
    assert!(matches!(stock.take(81 * MS, 0, &terms), Taken::Slot(slot) if slot.grant == 7));
    stock.add(Slot::new(8, (MS, 81 * MS), 420 * MS, None));
    assert_eq!(stock.take(81 * MS, 0, &terms), Taken::TooFar(MS), "the longest wait counts from then as well");
}
