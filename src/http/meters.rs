//! The metrics of this module, taken in hand once: to look them up by name would cost more than the counting.

use super::answer::Tally;
use super::route::Route;
use crate::metric_names::{
    ACQUIRE_DURATION_SECONDS, ACQUIRES_TOTAL, HTTP_CONNECTIONS, HTTP_CONNECTIONS_REJECTED_TOTAL, HTTP_REQUESTS_TOTAL,
};
use http::StatusCode;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use std::sync::OnceLock;
use std::time::Duration;

/// Everything counted here. Created after the recorder was installed, or it counts into nothing.
pub(super) struct Meters {
    granted: Counter,
    denied: Counter,
    replayed: Counter,
    pub(super) error: Counter,
    acquire_duration: Histogram,
    pub(super) connections: Gauge,
    pub(super) connections_rejected: Counter,
    /// By route and status; each created when first needed, so that `/metrics` shows what happened and not what could.
    requests: [[OnceLock<Counter>; STATUSES.len() + 1]; Route::ALL.len() + 1],
}

/// The statuses we answer with; any other one is counted as `other`.
const STATUSES: [u16; 13] = [200, 400, 404, 405, 409, 412, 413, 422, 429, 500, 503, 504, 431];

/// How a path outside the contract is counted: its text is the client's and would be a label without bound.
const OTHER: &str = "other";

impl Meters {
    pub(super) fn new() -> Self {
        Self {
            granted: counter!(ACQUIRES_TOTAL, "outcome" => "granted"),
            denied: counter!(ACQUIRES_TOTAL, "outcome" => "denied"),
            replayed: counter!(ACQUIRES_TOTAL, "outcome" => "replayed"),
            error: counter!(ACQUIRES_TOTAL, "outcome" => "error"),
            acquire_duration: histogram!(ACQUIRE_DURATION_SECONDS),
            connections: gauge!(HTTP_CONNECTIONS),
            connections_rejected: counter!(HTTP_CONNECTIONS_REJECTED_TOTAL),
            requests: Default::default(),
        }
    }

    /// Counts one acquire that was read in full.
    pub(super) fn acquired(&self, tally: Tally, took: Duration) {
        let counter = match tally {
            Tally::Granted => &self.granted,
            Tally::Denied => &self.denied,
            Tally::Replayed => &self.replayed,
            Tally::Error => &self.error,
        };
        counter.increment(1);
        self.acquire_duration.record(took);
    }

    /// Counts one answer.
    pub(super) fn answered(&self, route: Option<Route>, status: StatusCode) {
        let row = route.map_or(Route::ALL.len(), |route| route as usize);
        let column = STATUSES.iter().position(|known| *known == status.as_u16()).unwrap_or(STATUSES.len());
        let counter = self.requests[row][column].get_or_init(|| {
            let path = route.map_or(OTHER, Route::path);
            let status = STATUSES.get(column).map_or_else(|| OTHER.to_owned(), u16::to_string);
            counter!(HTTP_REQUESTS_TOTAL, "route" => path, "status" => status)
        });
        counter.increment(1);
    }
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meters").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_route_and_status() {
        let recorder = crate::metric_names::builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let meters = Meters::new();
            meters.answered(Some(Route::Acquire), StatusCode::OK);
            meters.answered(Some(Route::Acquire), StatusCode::OK);
            meters.answered(Some(Route::Key), StatusCode::IM_A_TEAPOT);
            meters.answered(None, StatusCode::NOT_FOUND);
            meters.acquired(Tally::Denied, Duration::from_micros(60));
        });
        let text = handle.render();
        for line in [
            "quorate_http_requests_total{route=\"/acquire\",status=\"200\"} 2",
            "quorate_http_requests_total{route=\"/keys/{key}\",status=\"other\"} 1",
            "quorate_http_requests_total{route=\"other\",status=\"404\"} 1",
            "quorate_acquires_total{outcome=\"replayed\"} 0",
            "quorate_acquires_total{outcome=\"denied\"} 1",
            "quorate_acquire_duration_seconds_bucket{le=\"0.0001\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("status=\"504\""), "{text}");
    }
}
