//! **G**: two workers never start closer than the interval, in true time, whoever the leader was.

use crate::record::Events;
use crate::workers::INTERVAL;
use std::collections::BTreeMap;

pub(crate) fn check(events: &Events) -> Vec<String> {
    let mut by_key: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for start in &events.starts {
        by_key.entry(&start.key).or_default().push((start.at, start.number));
    }
    let mut violations = Vec::new();
    for (key, mut starts) in by_key {
        starts.sort_unstable();
        for pair in starts.windows(2) {
            let gap = pair[1].0.saturating_sub(pair[0].0);
            if gap < INTERVAL {
                violations.push(format!("G: two starts of {key} are {gap:?} apart: {pair:?}"));
            }
        }
    }
    violations
}
