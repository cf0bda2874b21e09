//! **V**: once faults are over, every node serves within ten seconds.

use std::time::Duration;

pub(crate) const WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn check(healed: Option<Duration>) -> Vec<String> {
    if healed.is_some_and(|after| after <= WITHIN) {
        return Vec::new();
    }
    vec![format!("V: not every node served within {WITHIN:?} of the last fault: {healed:?}")]
}
