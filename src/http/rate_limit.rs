//! `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10): the limit and what is left of it, for
//! clients that know the draft and not us.
//!
//! Both are lists of structured fields with one item, the name of the policy. The draft counts in whole seconds: a quota
//! over a part of a second is scaled up until its window is whole, which changes the numbers and not the rate.

use crate::limiter::{Limit, Span};
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

const SECOND_NS: u128 = 1_000_000_000;

/// The largest integer of a structured field (RFC 8941, section 3.3.1).
const INTEGER_MAX: u128 = 999_999_999_999_999;

/// Says what `limit` is, that `remaining` more can be had, and that in `reset` it will be as if none had been.
pub(super) fn insert(headers: &mut HeaderMap, limit: &Limit, remaining: u64, reset: Span) {
    let (name, quota, window_secs) = policy(limit);
    put(headers, POLICY, format!("\"{name}\";q={quota};w={window_secs}"));
    put(headers, STATE, format!("\"{name}\";r={remaining};t={}", reset.secs_up()));
}

/// How many more permits the limit would reserve.
pub(super) fn remaining(limit: &Limit, reserved: u64) -> u64 {
    match limit {
        Limit::Spacing(spacing) => u64::from(spacing.max_reserved()).saturating_sub(reserved),
    }
}

/// When the register is free again after a permit that lies `wait` ahead.
pub(super) fn reset_after_grant(limit: &Limit, wait: Span, cost: u64) -> Span {
    match limit {
        Limit::Spacing(spacing) => wait.plus(spacing.unit().times(cost).unwrap_or(Span(u64::MAX))),
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, text: String) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}

/// Name, quota and window in seconds.
fn policy(limit: &Limit) -> (&'static str, u128, u128) {
    match limit {
        Limit::Spacing(spacing) => {
            let count = u128::from(spacing.rate().count());
            // A start window lies between any two slots, so it lengthens the time that `count` permits take.
            let window_ns = u128::from(spacing.rate().per().0) + count * u128::from(spacing.start_window().0);
            let (quota, window_secs) = whole_seconds(count, window_ns);
            ("spacing", quota, window_secs)
        }
    }
}

/// The smallest multiple of `quota` per `window_ns` whose window is whole seconds.
fn whole_seconds(quota: u128, window_ns: u128) -> (u128, u128) {
    let factor = SECOND_NS / greatest_common_divisor(window_ns, SECOND_NS);
    ((quota * factor).min(INTEGER_MAX), (window_ns * factor / SECOND_NS).min(INTEGER_MAX))
}

const fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Spacing;

    fn spacing(rate: &str, start_window_ms: u64, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::from_millis(start_window_ms), max_reserved).unwrap())
    }

    #[test]
    fn a_window_is_whole_seconds_and_the_rate_stays_the_same() {
        for (rate, start_window_ms, expected) in [
            ("1/6s", 0, "\"spacing\";q=1;w=6"),
            ("10/s", 0, "\"spacing\";q=10;w=1"),
            ("100/1m", 0, "\"spacing\";q=100;w=60"),
            ("5/250ms", 0, "\"spacing\";q=20;w=1"),
            ("1/1500ms", 0, "\"spacing\";q=2;w=3"),
            ("1/6s", 250, "\"spacing\";q=4;w=25"),
            ("1/366d", 0, "\"spacing\";q=1;w=31622400"),
        ] {
            let mut headers = HeaderMap::new();
            insert(&mut headers, &spacing(rate, start_window_ms, 1), 1, Span(1));
            assert_eq!(headers[POLICY], expected, "{rate}");
        }
    }

    #[test]
    fn the_state_counts_down_to_zero_and_rounds_time_up() {
        let limit = spacing("1/6s", 0, 10);
        assert_eq!((remaining(&limit, 3), remaining(&limit, 10), remaining(&limit, 11)), (7, 0, 0));
        let mut headers = HeaderMap::new();
        let reset = reset_after_grant(&limit, Span::from_millis(1), 2);
        insert(&mut headers, &limit, 7, reset);
        assert_eq!(headers[STATE], "\"spacing\";r=7;t=13");
    }

    #[test]
    fn the_widest_limits_stay_within_what_the_field_can_say() {
        let widest = spacing("1000000000/366d", 366 * 86_400_000, 0);
        let (_, quota, window_secs) = policy(&widest);
        assert!(quota <= INTEGER_MAX && window_secs <= INTEGER_MAX);
    }
}
