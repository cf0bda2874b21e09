//! `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10): the limit and what is left of it, for
//! clients that know the draft and not us.
//!
//! Both are lists of structured fields with one item, the name of the policy. The draft counts in whole seconds: a
//! quota over a part of a second is scaled up until its window is whole, which changes the numbers and not the rate.

use crate::limiter::{Limit, Span};
use crate::limits::POLICY_NAME_BYTES_MAX;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::fmt::Arguments;
use std::io::Write;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");

/// A policy's name, and some twenty digits twice.
const LINE_BYTES: usize = POLICY_NAME_BYTES_MAX + 64;

const SECOND_NS: u128 = 1_000_000_000;

/// The largest integer of a structured field (RFC 8941, section 3.3.1).
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Says what `limit` is, that `remaining` more can be had, and that in `reset` it will be as if none had been. The name is
/// the stored policy's, or else the kind of the limit.
pub(super) fn insert(headers: &mut HeaderMap, name: Option<&str>, limit: &Limit, remaining: u64, reset: Span) {
    let name = name.unwrap_or(limit.kind());
    let (quota, window_secs) = quota(limit);
    // A spacing limit reserves beyond its window, but no more than the quota comes in any of them.
    let remaining = remaining.min(quota);
    put(headers, POLICY, format_args!("\"{name}\";q={quota};w={window_secs}"));
    put(headers, STATE, format_args!("\"{name}\";r={remaining};t={}", reset.secs_up()));
}

/// Puts a header in its place. One that does not fit is left out: no name of a policy is as long.
fn put(headers: &mut HeaderMap, name: HeaderName, text: Arguments<'_>) {
    let mut line = [0; LINE_BYTES];
    let mut rest = &mut line[..];
    if rest.write_fmt(text).is_err() {
        return;
    }
    let length = LINE_BYTES - rest.len();
    if let Ok(value) = HeaderValue::from_bytes(&line[..length]) {
        headers.insert(name, value);
    }
}

/// Quota and window in seconds.
fn quota(limit: &Limit) -> (u64, u64) {
    match limit {
        Limit::Spacing(spacing) => {
            let count = u128::from(spacing.rate().count());
            // A start window lies between any two slots, so it lengthens the time that `count` permits take.
            let window_ns = u128::from(spacing.rate().per().0) + count * u128::from(spacing.start_window().0);
            whole_seconds(count, window_ns)
        }
        // What a full bucket gives, and the time in which an empty one is full again, rounded up.
        Limit::Bucket(bucket) => {
            let refill_ns = u128::from(bucket.rate().interval().0) * u128::from(bucket.burst());
            (bucket.burst(), said(refill_ns.div_ceil(SECOND_NS)).max(1))
        }
        Limit::Window(window) => whole_seconds(u128::from(window.count()), u128::from(window.rate().per().0)),
        // Nothing comes back by itself before a lease has ended.
        Limit::Concurrency(concurrency) => (concurrency.max(), concurrency.lease().secs_up().max(1)),
    }
}

/// The smallest multiple of `quota` per `window_ns` whose window is whole seconds.
fn whole_seconds(quota: u128, window_ns: u128) -> (u64, u64) {
    // Nearly every window is whole seconds already, or a part of one.
    let part_ns = u64::try_from(window_ns % SECOND_NS).unwrap_or(0);
    let factor = SECOND_NS / u128::from(greatest_common_divisor(1_000_000_000, part_ns));
    (said(quota * factor), said(window_ns * factor / SECOND_NS))
}

/// As far as the field can say it.
fn said(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX).min(INTEGER_MAX)
}

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Bucket, Concurrency, Spacing, Window};

    fn spacing(rate: &str, start_window_ms: u64, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::from_millis(start_window_ms), max_reserved).unwrap())
    }

    #[test]
    fn a_window_is_whole_seconds_and_the_rate_stays_the_same() {
        let bucket =
            |rate: &str, burst| Limit::Bucket(Bucket::new(rate.parse().unwrap(), burst, Span::ZERO, 0).unwrap());
        let window = |rate: &str| Limit::Window(Window::sliding(rate.parse().unwrap(), None).unwrap());
        for (limit, expected) in [
            (spacing("1/6s", 0, 1), "\"spacing\";q=1;w=6"),
            (spacing("10/s", 0, 1), "\"spacing\";q=10;w=1"),
            (spacing("100/1m", 0, 1), "\"spacing\";q=100;w=60"),
            (spacing("5/250ms", 0, 1), "\"spacing\";q=20;w=1"),
            (spacing("1/1500ms", 0, 1), "\"spacing\";q=2;w=3"),
            (spacing("1/6s", 250, 1), "\"spacing\";q=4;w=25"),
            (spacing("1/366d", 0, 1), "\"spacing\";q=1;w=31622400"),
            (bucket("100/s", 50), "\"bucket\";q=50;w=1"),
            (bucket("1/6s", 5), "\"bucket\";q=5;w=30"),
            (window("100/60s"), "\"window\";q=100;w=60"),
            (window("1/500ms"), "\"window\";q=2;w=1"),
            (Limit::Concurrency(Concurrency::new(5, Span::from_millis(1_500)).unwrap()), "\"concurrency\";q=5;w=2"),
        ] {
            let mut headers = HeaderMap::new();
            insert(&mut headers, None, &limit, 1, Span(1));
            assert_eq!(headers[POLICY], expected, "{limit:?}");
        }
    }

    #[test]
    fn a_stored_policy_gives_its_name_and_time_rounds_up() {
        let mut headers = HeaderMap::new();
        insert(&mut headers, Some("github"), &spacing("1/6s", 0, 10), 7, Span::from_millis(12_001));
        assert_eq!(
            (&headers[POLICY], &headers[STATE]),
            (&HeaderValue::from_static("\"github\";q=1;w=6"), &HeaderValue::from_static("\"github\";r=1;t=13"))
        );
    }

    #[test]
    fn the_widest_limits_stay_within_what_the_field_can_say() {
        let (quota, window_secs) = quota(&spacing("1000000000/366d", 366 * 86_400_000, 0));
        assert!(quota <= INTEGER_MAX && window_secs <= INTEGER_MAX);
    }
}
