//! How much a thread stands back for others.
#![expect(unsafe_code, reason = "sched_setscheduler has no safe counterpart")]

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
    // SAFETY: these are numbers, and zero is one; some systems have more of them than others.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: it only reads the parameters, which are there; zero is this thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } != 0 {
        tracing::debug!(error = %std::io::Error::last_os_error(), "a thread that should stand back does not");
        stand_back();
    }
}
