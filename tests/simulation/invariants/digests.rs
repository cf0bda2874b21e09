//! **E**: equal state at equal applied index. Every entry and what came of it, and the digests that nodes gave along the
//! way, are compared when they are recorded; at the end all three nodes have to come to rest in the same state.

use super::heals::WITHIN;
use std::time::Duration;

pub(crate) fn check(settled: Option<Duration>) -> Vec<String> {
    if settled.is_some_and(|after| after <= WITHIN) {
        return Vec::new();
    }
    vec![format!("E: the nodes did not come to the same state within {WITHIN:?}: {settled:?}")]
}
