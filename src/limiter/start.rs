//! The start window: how long after its slot a permit may be used, when clocks drift.
//!
//! The worker discards its permit `(S - T_p) + W'` after it first sent the request, with `W' = W - 2r(D + W) - rI` for a
//! permit `D = S - T_p` ahead. `docs/GUARANTEES.md` has the proof. All of it rounds against the worker.

use super::time::Span;
use crate::limits::DRIFT_PPM;

/// `2r(D + W) + rI`, rounded **up**: what drifting clocks may eat of a window.
pub(super) fn drift(window: Span, interval: Span, ahead: Span) -> Span {
    let parts = |span: Span, ppm: u64| (u128::from(span.0) * u128::from(ppm)).div_ceil(1_000_000);
    let ns = parts(ahead.plus(window), 2 * DRIFT_PPM) + parts(interval, DRIFT_PPM);
    Span(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// `W'`, if anything is left of the window.
pub(super) fn left(window: Span, interval: Span, ahead: Span) -> Option<Span> {
    let left = window.minus(drift(window, interval, ahead));
    (left > Span::ZERO).then_some(left)
}

/// How long after the **first send** of the request a worker may start at the latest; nothing if no window is left.
pub(super) fn before(window: Span, interval: Span, ahead: Span) -> Span {
    left(window, interval, ahead).map_or(Span::ZERO, |left| ahead.plus(left))
}
