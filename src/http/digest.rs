//! `GET /cluster/digest`: this node's own state in one line. Two nodes at equal `applied` have equal digests, or something
//! is very wrong.

use super::app::App;
use super::respond;
use crate::api::{Code, DigestResponse, Problem};
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;
use tokio::time::timeout;

/// A digest of this node's state.
///
/// Not linearizable: for comparing nodes at equal `applied`.
#[utoipa::path(
    get,
    path = "/cluster/digest",
    responses(
        (status = 200, description = "The digest", body = DigestResponse),
        (status = 503, description = "`overloaded`", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn digest(State(app): State<Arc<App>>) -> Response {
    match timeout(app.options.request_timeout, app.upstream.digest()).await {
        Ok(view) => respond::json(&DigestResponse { applied: view.applied, digest: view.digest, keys: view.keys }),
        Err(_) => respond::problem(&Problem::new(Code::Overloaded, "the digest was not ready in time")),
    }
}
