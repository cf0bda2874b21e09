//! The wall clock, for people and for the age of what only people read: history. No decision may use it, because it jumps.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 as this machine believes; 0 if it believes in an earlier time.
#[expect(clippy::disallowed_methods, reason = "the one reader of the wall clock, for what is not decided by it")]
pub fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_later_than_this_file() {
        assert!(super::wall_millis() > 1_700_000_000_000);
    }
}
