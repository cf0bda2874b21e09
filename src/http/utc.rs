//! A wall clock reading as people and programs read it: RFC 3339 in UTC, with milliseconds; and as HTTP has it.

/// `2026-11-16T04:59:37.123Z`.
pub(super) fn rfc3339(wall_ms: u64) -> String {
    let (secs, ms) = (wall_ms / 1_000, wall_ms % 1_000);
    let (year, month, day) = date(secs / 86_400);
    let (hour, minute, second) = (secs / 3_600 % 24, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// `Mon, 16 Nov 2026 04:59:37 GMT`.
pub(super) fn http_date(wall_secs: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let days = wall_secs / 86_400;
    let (year, month, day) = date(days);
    let (hour, minute, second) = (wall_secs / 3_600 % 24, wall_secs / 60 % 60, wall_secs % 60);
    let name = |names: &[&'static str], number: u64| names[usize::try_from(number).unwrap_or(0) % names.len()];
    let (weekday, month) = (name(&DAYS, days % 7), name(&MONTHS, month - 1));
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// The Gregorian date of a day counted from 1970-01-01. Years are counted from March, so that the leap day comes last, in
/// cycles of 400 years with 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (cycle * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (wall_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_794_805_177_123, "2026-11-16T04:59:37.123Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(wall_ms), text);
        }
        for (wall_secs, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_794_805_177, "Mon, 16 Nov 2026 04:59:37 GMT"),
        ] {
            assert_eq!(http_date(wall_secs), text);
        }
        assert!(rfc3339(u64::MAX).ends_with('Z'));
    }
}
