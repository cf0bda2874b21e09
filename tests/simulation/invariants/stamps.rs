//! **M**: stamps never go back along the log, and the lemma of the clock rule holds for every pair of entries.
//!
//! For entries i before j, stamped `C` at true times s: `C_j - C_i <= (1 + r)(s_j - s_i)`. That is to say: `C - (1 + r) s`
//! never rises along the log, so one pass with its lowest value is enough for all pairs.

use crate::record::{Events, nanos};
use quorate::limits::DRIFT_PPM;

pub(crate) fn check(events: &Events) -> Vec<String> {
    let mut violations = Vec::new();
    // In millionths of nanoseconds, so that nothing is rounded.
    let mut lowest: Option<(i128, u64)> = None;
    let mut last = None;
    for (index, entry) in &events.entries {
        let stamp = entry.stamp;
        if last.is_some_and(|last| stamp.time < last) {
            violations.push(format!("M: entry {index} is stamped {}, after {last:?}", stamp.time));
        }
        last = last.max(Some(stamp.time));
        let Some((first_read, last_read)) = events.stamped.get(&(stamp.leader, stamp.time)) else {
            violations.push(format!("M: nobody read the stamp of entry {index}"));
            continue;
        };
        let lead =
            |at| i128::from(stamp.time.0) * 1_000_000 - i128::from(nanos(at)) * i128::from(1_000_000 + DRIFT_PPM);
        if let Some((low, at)) = lowest
            && lead(*last_read) > low
        {
            let ms = (lead(*last_read) - low) / 1_000_000_000_000;
            violations.push(format!("M: the stamp of entry {index} is {ms} ms ahead of what entry {at} allows"));
        }
        if lowest.is_none_or(|(low, _)| lead(*first_read) < low) {
            lowest = Some((lead(*first_read), *index));
        }
    }
    violations
}
