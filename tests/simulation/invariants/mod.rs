//! What must hold, one file each. Some are looked at while a run goes on (`record.rs`), all others at its end.

pub(crate) mod digests;
pub(crate) mod gap;
pub(crate) mod heals;
pub(crate) mod linearizable;
pub(crate) mod load;
pub(crate) mod slots;
pub(crate) mod stamps;

use crate::record::Events;
use std::time::Duration;

/// Everything that is wrong with a run.
///
/// `sound` if nothing was found along the way.
pub(crate) fn check(events: &Events, sound: bool, healed: Option<Duration>, settled: Option<Duration>) -> Vec<String> {
    let mut violations = gap::check(events);
    violations.extend(slots::check(events));
    violations.extend(stamps::check(events));
    violations.extend(digests::check(settled));
    violations.extend(heals::check(healed));
    violations.extend(load::check(events));
    // Last: to search all orders of a history that is broken anyway may take for ever.
    if violations.is_empty() && sound {
        violations.extend(linearizable::check(events));
    }
    violations
}
