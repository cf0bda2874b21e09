//! `GET /openapi.json`: the contract as `OpenAPI` 3.1, generated from the types and handlers themselves.

use super::app::App;
use super::respond;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderValue, StatusCode};
use std::sync::Arc;
use utoipa::OpenApi;

/// All that the handlers say about themselves.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Quorate",
        description = "A rate limiter that does not forget and does not lie: permits from a Raft cluster."
    ),
    paths(
        super::acquire::acquire,
        super::batch::batch,
        super::release::release,
        super::release::renew,
        super::keys::key,
        super::keys::reset,
        super::policies::list,
        super::policies::get,
        super::policies::put,
        super::policies::delete,
        super::history::key,
        super::history::usage,
        super::audit::audit,
        super::cluster::cluster,
        super::digest::digest,
        super::members::add,
        super::members::remove,
        super::members::transfer,
        super::probes::livez,
        super::probes::readyz,
        super::probes::healthz,
        super::metrics::metrics,
        openapi,
        super::index::index
    )
)]
struct Document;

/// The document as JSON.
pub fn document() -> Vec<u8> {
    let document = Document::openapi();
    serde_json::to_vec_pretty(&document).unwrap_or_else(|error| {
        tracing::error!(%error, "the OpenAPI document could not be written");
        b"{}".to_vec()
    })
}

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "about",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json"))
)]
pub(super) async fn openapi(State(app): State<Arc<App>>) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    respond::with_body(StatusCode::OK, content_type, Body::from(app.openapi.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::route::Route;
    use crate::limits::{ALL_OF_MAX, COST_MAX, KEY_BYTES_MAX, REQUEST_ID_BYTES_MAX, WORKER_BYTES_MAX};
    use serde_json::{Value, json};

    fn parsed() -> Value {
        serde_json::from_slice(&document()).unwrap()
    }

    #[test]
    fn every_route_is_in_the_document_and_nothing_else() {
        let document = parsed();
        assert_eq!(document["openapi"], "3.1.0");
        let paths = document["paths"].as_object().unwrap();
        for route in Route::ALL {
            let method = route.method().as_str().to_lowercase();
            assert!(paths[route.path()].get(&method).is_some(), "{method} {}", route.path());
        }
        let operations: usize = paths.values().filter_map(Value::as_object).map(serde_json::Map::len).sum();
        assert_eq!(operations, Route::ALL.len(), "{:?}", paths.keys());
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = parsed();
        let text = String::from_utf8(super::document()).unwrap();
        let references: Vec<&str> =
            text.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 10, "{references:?}");
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    #[test]
    fn the_document_and_the_bounds_agree() {
        let schemas = &parsed()["components"]["schemas"];
        let request = &schemas["AcquireRequest"];
        assert_eq!(request.get("required"), None, "`key`, or `all_of` in its place: {request}");
        assert_eq!(request["properties"]["all_of"]["maxItems"], json!(ALL_OF_MAX));
        assert_eq!(request["additionalProperties"], json!(false));
        assert_eq!(schemas["LimitMembers"]["additionalProperties"], json!(false));
        let members = &request["properties"];
        assert_eq!(members["key"]["maxLength"], json!(KEY_BYTES_MAX));
        assert_eq!(members["cost"]["maximum"], json!(COST_MAX));
        assert_eq!(members["request_id"]["maxLength"], json!(REQUEST_ID_BYTES_MAX));
        assert_eq!(members["worker"]["maxLength"], json!(WORKER_BYTES_MAX));
        assert_eq!(schemas["Millis"]["type"], "number");
        assert!(!schemas.to_string().contains("unrecognized"), "what is only read is not promised");
    }
}
