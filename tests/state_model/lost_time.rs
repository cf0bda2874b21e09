//! What a start window promises in real time while cluster time loses some: in failovers, on slow clocks, in restarts.
//!
//! A worker counts from its answer on a clock of its own, so a permit that was granted before a loss starts before one that was
//! granted after it by that much more than their slots say. Losses may only move starts apart.

use crate::config;
use crate::past::Figures;
use crate::play::{Play, moves};
use crate::script::{bucket, spacing};
use proptest::collection::vec;
use proptest::prelude::*;
use quorate::limiter::Limit;
use std::collections::BTreeMap;

fn windowed() -> impl Strategy<Value = Limit> {
    let limits = prop_oneof![1 => spacing(), 2 => bucket()];
    limits.prop_filter("a start window", |limit| Figures::of(limit).is_some_and(|figures| figures.start_window > 0))
}

proptest! {
    #![proptest_config(config(2_000))]

    /// "Two starts are never closer than the interval, in real time"; "starts may bunch by the window: at most
    /// `burst + rate * (t + W)` in any `t`". The earliest starts are the slots, each later by all that was lost before its
    /// grant; they keep the promise of slots, and a window is all by which a start may be later than its earliest one.
    #[test]
    fn lost_time_moves_starts_apart(
        (limit, moves) in (windowed(), moves(4, 40)),
        losses in vec(prop_oneof![3 => Just(0), 1 => 1..3_000_u64, 1 => 1..60_000_u64], 40),
    ) {
        let mut play = Play::new(limit);
        let (mut lost, mut lost_before) = (0, BTreeMap::new());
        for (one, loss_ms) in moves.iter().zip(losses) {
            lost += loss_ms * 1_000_000;
            play.make(one);
            lost_before.entry(play.permits).or_insert(lost);
            let mut starts = play.clone();
            for live in &mut starts.live {
                live.slot += lost_before[&live.permit];
            }
            let kept = starts.keeps_its_promise();
            prop_assert!(kept.is_ok(), "{one:?}: {}\n{starts:#?}", kept.unwrap_err());
        }
    }
}
