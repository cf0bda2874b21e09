//! Windows, judged on the slots that workers were told: however cells are put in a row, they never hold more than the limit says.
//!
//! A sliding window counts the current cell and those before it in full, so that many cells in a row never hold more than `N`;
//! an aligned one counts a single cell. That is stricter than any sentence about instants, and needs no clock but the cluster's.

use super::judge::Finding;
use super::load::{Key, Promise};
use super::operations::Operations;
use std::collections::BTreeMap;

/// Whether no window was ever too full; shown by so many slots at least.
pub(super) fn finding(operations: &Operations, keys: &[Key], least: usize) -> Finding {
    // Slots by key and cell. What was given back, or may have been, does not count; what nobody was told of cannot.
    let mut cells: BTreeMap<u16, BTreeMap<u64, u64>> = BTreeMap::new();
    let mut judged = 0_usize;
    for granted in operations.granted.iter().filter(|granted| !operations.given_back.contains(&granted.grant.permit)) {
        let Promise::Window { cell_us, .. } = keys[usize::from(granted.key)].promise else { continue };
        let slot_us = granted.grant.slot_us;
        // Answers round slots up. One that came at once may have lain just before the edge that it is told to be on; one that
        // lies ahead is put there on purpose.
        if slot_us.is_multiple_of(cell_us) && granted.grant.wait_us == 0 {
            continue;
        }
        judged += 1;
        *cells.entry(granted.key).or_default().entry(slot_us / cell_us).or_default() += 1;
    }
    let (mut wrong, mut full) = (Vec::new(), 0_u64);
    for (key, held) in &cells {
        let key = &keys[usize::from(*key)];
        let Promise::Window { count, cells, .. } = key.promise else { continue };
        for first in held.keys() {
            let sum: u64 = held.range(*first..first + cells).map(|(_, held)| held).sum();
            full += u64::from(sum == count);
            if sum > count {
                wrong.push(format!("{} gave {sum} slots in {cells} cells from cell {first} on, not {count}", key.name));
            }
        }
    }
    let seen = format!("{full} times as many as may be");
    let finding = Finding::new('W', "windows never hold more than they may, in cluster time", &wrong, seen);
    finding.on_at_least(least, judged, "slots")
}

#[cfg(test)]
mod tests {
    use super::super::history::Grant;
    use super::super::load::keys;
    use super::super::operations::Granted;
    use super::*;

    fn operations(name: &str, slots_us: &[(u64, u64)]) -> Operations {
        let key = u16::try_from(keys().iter().position(|key| key.name == name).unwrap()).unwrap();
        let granted = |(permit, (slot_us, wait_us)): (u64, &(u64, u64))| Granted {
            key,
            request: (0, permit),
            grant: Grant {
                permit,
                slot_us: *slot_us,
                wait_us: *wait_us,
                before_us: None,
                replayed: false,
                held: false,
            },
            stamp_us: None,
            from_ns: 0,
            to_ns: 1,
        };
        Operations { granted: (1..).zip(slots_us).map(granted).collect(), ..Operations::default() }
    }

    fn held(operations: &Operations) -> bool {
        finding(operations, &keys(), 1).held == Some(true)
    }

    /// "The current cell and the `T/resolution − 1` before it count in full": two in a second, by quarters of it.
    #[test]
    fn a_sliding_window_that_is_too_full_is_found() {
        assert!(held(&operations("window-0", &[(100_000, 0), (900_000, 0), (1_000_001, 0), (1_800_000, 5)])));
        assert!(!held(&operations("window-0", &[(100_000, 0), (900_000, 0), (999_999, 0)])));
        assert!(!held(&operations("window-0", &[(300_000, 0), (900_000, 0), (1_000_001, 9)])), "across a second");
        let mut back = operations("window-0", &[(100_000, 0), (900_000, 0), (999_999, 3)]);
        back.given_back.insert(3);
        assert!(held(&back), "what was given back is free");
    }

    /// "Never more than `N` in a cell, up to `2N` around its edge."
    #[test]
    fn an_aligned_window_that_is_too_full_is_found() {
        assert!(held(&operations("window-1", &[(799_998, 0), (799_999, 0), (800_000, 9), (800_001, 0)])));
        assert!(!held(&operations("window-1", &[(800_000, 9), (800_001, 0), (1_599_999, 0)])));
        assert!(
            held(&operations("window-1", &[(800_000, 0), (800_001, 0), (1_599_999, 0)])),
            "the first may have been before the edge"
        );
    }
}
