//! How much a thread stands back for others.

use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

/// As `nice` counts: for what somebody waits for in the end, if not now.
const NICE: i32 = 10;

/// Lets the other threads of this machine go first, from here on: whoever waits for a permit does not wait for this thread.
pub(crate) fn stand_back() {
    // Of this thread, not of the process.
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
        tracing::debug!(%error, "a thread that should stand back does not");
    }
}

/// The same for what nobody waits for: from here on this thread, and all that it starts, has a core when nobody else wants it, and where
/// everything is busy a few thousandths of one. Whoever wakes up takes the core at once. A thread that only is `nice` keeps it for
/// milliseconds, in which an entry could have been written and committed several times.
pub(crate) fn stand_back_most() {
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    if let Err(error) = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle) {
        tracing::debug!(%error, "a thread that should stand back does not");
        stand_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn what_nobody_waits_for_is_idle_for_the_system_and_so_is_what_it_starts() {
        let policies = thread::spawn(|| {
            stand_back_most();
            let policy = || thread_priority::thread_schedule_policy().unwrap();
            [policy(), thread::spawn(policy).join().unwrap()]
        });
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        assert_eq!(policies.join().unwrap(), [idle; 2]);
    }
}
