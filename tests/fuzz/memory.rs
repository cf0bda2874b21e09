//! How much memory the process has ever had.

/// What a decoder may take for inputs of some kilobytes, all of them together: one that believes a length it reads takes gigabytes.
const GROWTH_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Runs `work` and checks that the peak of the whole process did not grow by much.
pub(crate) fn bounded<T>(work: impl FnOnce() -> T) -> T {
    let before = peak();
    let done = work();
    let grown = peak().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
    done
}

/// In bytes; zero where the system does not say.
pub(crate) fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1_024
}
