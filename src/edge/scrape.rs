//! `GET /metrics`: everything counted in this process, in the text format of Prometheus.

use super::reply::{Body, whole};
use http::{Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often the recorder tidies up: histograms keep every sample until then.
const UPKEEP: Duration = Duration::from_secs(5);

/// All metrics as they are now.
pub fn metrics(recorder: &PrometheusHandle) -> Response<Body> {
    // Memory, descriptors and the like are read when somebody looks.
    metrics_process::Collector::default().collect();
    whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", recorder.render().into())
}

/// Keeps the recorder small for as long as it is polled.
pub async fn upkeep(recorder: &PrometheusHandle) {
    let mut ticks = interval(UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        recorder.run_upkeep();
    }
}
