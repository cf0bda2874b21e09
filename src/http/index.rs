//! `GET /`: what there is, for somebody who found the port first.

use super::respond;
use super::route::Route;
use axum::response::Response;
use http::StatusCode;
use std::fmt::Write;

/// A list of the routes.
#[utoipa::path(
    get,
    path = "/",
    tag = "about",
    responses((status = 200, description = "A short text", body = String, content_type = "text/plain"))
)]
pub(super) async fn index() -> Response {
    respond::text(StatusCode::OK, text())
}

fn text() -> String {
    let mut text = format!("Quorate {}\n\n", env!("CARGO_PKG_VERSION"));
    for route in Route::ALL {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{:<6} {:<20} {}", route.method().as_str(), route.path(), route.purpose());
    }
    text.push_str("\nTry: POST /acquire with {\"key\": \"demo\", \"limit\": \"1/6s\"}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_its_line() {
        let text = text();
        assert!(text.contains("POST   /acquire             ask for a permit\n"), "{text}");
        assert!(Route::ALL.iter().all(|route| text.contains(route.path())), "{text}");
    }
}
