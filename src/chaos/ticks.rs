//! The one clock of a run: the machine's monotonic clock, the same for all processes on it.

use crate::clock::{Clocks, SystemClocks};
use std::sync::OnceLock;
use std::time::Duration;

/// Nanoseconds on the machine's monotonic clock.
pub(super) fn now_ns() -> u64 {
    static CLOCKS: OnceLock<SystemClocks> = OnceLock::new();
    CLOCKS.get_or_init(|| SystemClocks::new().expect("a machine has a monotonic clock")).read().mono_ns
}

pub(super) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until the clock shows `at_ns`, never shorter.
pub(super) async fn sleep_until_ns(at_ns: u64) {
    loop {
        let now = now_ns();
        if now >= at_ns {
            return;
        }
        tokio::time::sleep(Duration::from_nanos(at_ns - now)).await;
    }
}
