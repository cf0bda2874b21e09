//! How much a thread stands back for others.

/// As `nice` counts.
const NICE: i32 = 10;

/// Lets the other threads of this machine go first, from here on: whoever waits for a permit does not wait for this thread.
pub(crate) fn stand_back() {
    // Of this thread, not of the process.
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
        tracing::debug!(%error, "a thread that should stand back does not");
    }
}
