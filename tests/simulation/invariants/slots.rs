//! **U**: no slot is given twice, and none is lost after it was answered.
//!
//! What was answered stands in the log as it was answered; permit numbers and the slots of a key only grow along the log; a
//! request id has one permit. What requests in line got may be given back: its slot may be taken again, and its id is forgotten.

use crate::record::{Events, Said};
use crate::workers::{INTERVAL, WINDOW};
use quorate::limiter::Time;
use quorate::state::Outcome;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn check(events: &Events) -> Vec<String> {
    let mut violations = Vec::new();
    let unit = u64::try_from((INTERVAL + WINDOW).as_nanos()).expect("a short span");
    let mut by_number: BTreeMap<u64, (u128, Time)> = BTreeMap::new();
    let mut by_id: BTreeMap<u128, u64> = BTreeMap::new();
    let mut next: BTreeMap<&str, Time> = BTreeMap::new();
    let given_back: BTreeSet<u64> = events.entries.values().flat_map(|entry| &entry.withdrawn).copied().collect();
    let mut last_number = 0;
    for (index, entry) in &events.entries {
        for (acquire, outcome) in &entry.decided {
            let Outcome::Granted(grant) = outcome else { continue };
            let (Some(identity), number) = (acquire.identity, grant.first.number) else { continue };
            if grant.replayed {
                if by_id.get(&identity.id).is_some_and(|known| *known != number) {
                    violations.push(format!("U: entry {index} replays {number} for the id of another permit"));
                }
                continue;
            }
            if number <= last_number {
                violations.push(format!("U: entry {index} gives permit {number} after {last_number}"));
            }
            last_number = number;
            by_number.insert(number, (identity.id, grant.slot));
            let before = by_id.insert(identity.id, number).filter(|before| !given_back.contains(before));
            if let Some(before) = before {
                violations.push(format!("U: entry {index} gives permit {number} to a request that has {before}"));
            }
            let key = acquire.first.key.as_str();
            if acquire.claim == 0 {
                let free = next.entry(key).or_insert(Time::ZERO);
                if grant.slot < *free {
                    violations.push(format!("U: entry {index} gives {key} the slot {}, free from {free}", grant.slot));
                }
                *free = Time(grant.slot.0 + unit);
            }
        }
    }
    for answer in &events.answers {
        let Said::Granted { id, number, slot, .. } = answer.said else { continue };
        if by_number.get(&number) != Some(&(id, slot)) {
            let found = by_number.get(&number);
            violations.push(format!(
                "U: worker {} was given permit {number} of {} at {slot}, and the log has {found:?} for it",
                answer.worker, answer.key
            ));
        }
    }
    violations
}
