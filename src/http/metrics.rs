//! `GET /metrics`: everything counted, in the text format of Prometheus.

use super::app::App;
use super::respond;
use crate::api::{Code, Problem};
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;

/// Metrics for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "All metrics of this node", body = String, content_type = "text/plain"),
        (
            status = 404,
            description = "`not_found`: this node was started without metrics",
            body = Problem,
            content_type = "application/problem+json"
        )
    )
)]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let Some(recorder) = &app.options.metrics else {
        return respond::problem(&Problem::new(Code::NotFound, "this node was started without metrics"));
    };
    // Memory, descriptors and the like are read when somebody looks.
    metrics_process::Collector::default().collect();
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    respond::with_body(StatusCode::OK, content_type, Body::from(recorder.render()))
}
