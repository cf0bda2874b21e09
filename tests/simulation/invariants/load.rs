//! **A**: there was load, during the faults: a run without it proves nothing.

use crate::record::Events;

/// At least so many grants, and starts, in a run of a minute; in proportion if it was shorter or longer.
const PER_MINUTE: u128 = 30;

pub(crate) fn check(events: &Events) -> Vec<String> {
    let granted = events.answers.iter().filter(|answer| answer.said.is_granted()).count() as u128;
    let starts = events.starts.len() as u128;
    let ran = events.answers.iter().filter_map(|answer| answer.answered).max().unwrap_or_default();
    let floor = PER_MINUTE * ran.as_millis() / 60_000;
    if ran.is_zero() || granted < floor || starts < floor / 2 {
        return vec![format!("A: {granted} grants and {starts} starts in {ran:?}: the load floor is {floor}")];
    }
    Vec::new()
}
