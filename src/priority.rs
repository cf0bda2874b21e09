//! How much a thread stands back for others.

/// As `nice` counts: what somebody waits for in the end, if not now.
const SOME: i32 = 10;
/// What nobody waits for.
const MOST: i32 = 19;

/// Lets the other threads of this machine go first, from here on: whoever waits for a permit does not wait for this thread.
pub(crate) fn stand_back() {
    stand_back_by(SOME);
}

/// The same for all there is: on a machine that is busy, this thread gets a hundredth of a core and what nobody else wants.
pub(crate) fn stand_back_most() {
    stand_back_by(MOST);
}

fn stand_back_by(nice: i32) {
    // Of this thread, not of the process.
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice) {
        tracing::debug!(%error, "a thread that should stand back does not");
    }
}
