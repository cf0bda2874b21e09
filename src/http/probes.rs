//! `GET /livez`, `/readyz`, `/healthz`: for those who restart nodes and those who send them traffic.
//!
//! Alive is whoever answers: a node without a leader must not be restarted for it. Ready is who should get traffic. Text for
//! people and load balancers (`?verbose` adds a line per check, as failures always do), JSON for who accepts it.

use super::app::App;
use super::respond;
use crate::api::{Check, Health};
use crate::node::Readiness;
use axum::extract::State;
use axum::response::Response;
use http::header::ACCEPT;
use http::{HeaderMap, StatusCode, Uri};
use std::fmt::Write;
use std::sync::Arc;

/// Whether the process answers.
#[utoipa::path(
    get,
    path = "/livez",
    params(("verbose" = Option<String>, Query, description = "Say what was checked")),
    responses((status = 200, description = "It does", body = String, content_type = "text/plain"))
)]
pub(super) async fn livez(uri: Uri, headers: HeaderMap) -> Response {
    let alive = Readiness { checks: vec![("ping", Ok(()))] };
    probe("livez", &alive, &uri, &headers)
}

/// Whether this node should get traffic.
#[utoipa::path(
    get,
    path = "/readyz",
    params(("verbose" = Option<String>, Query, description = "Say what was checked")),
    responses(
        (status = 200, description = "It should", content(
            (String = "text/plain"),
            (Health = "application/json")
        )),
        (status = 503, description = "It should not; says why", content(
            (String = "text/plain"),
            (Health = "application/json")
        ))
    )
)]
pub(super) async fn readyz(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    probe("readyz", &app.upstream.readiness(), &uri, &headers)
}

/// The same as `/readyz`, under the name that most tools try first.
#[utoipa::path(
    get,
    path = "/healthz",
    params(("verbose" = Option<String>, Query, description = "Say what was checked")),
    responses(
        (status = 200, description = "It should", content(
            (String = "text/plain"),
            (Health = "application/json")
        )),
        (status = 503, description = "It should not; says why", content(
            (String = "text/plain"),
            (Health = "application/json")
        ))
    )
)]
pub(super) async fn healthz(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    probe("healthz", &app.upstream.readiness(), &uri, &headers)
}

fn probe(name: &str, readiness: &Readiness, uri: &Uri, headers: &HeaderMap) -> Response {
    let status = if readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    if accepts_json(headers) {
        let mut response = respond::json(&health(readiness));
        *response.status_mut() = status;
        return response;
    }
    let text = if readiness.is_ready() && !verbose(uri) { "ok\n".to_owned() } else { lines(name, readiness) };
    respond::text(status, text)
}

/// One line per check and one for all, in the form known from Kubernetes.
fn lines(name: &str, readiness: &Readiness) -> String {
    let mut text = String::new();
    for (check, result) in &readiness.checks {
        // Writing into a string does not fail.
        let _ = match result {
            Ok(()) => writeln!(text, "[+]{check} ok"),
            Err(why) => writeln!(text, "[-]{check} failed: {why}"),
        };
    }
    let _ = writeln!(text, "{name} check {}", if readiness.is_ready() { "passed" } else { "failed" });
    text
}

fn health(readiness: &Readiness) -> Health {
    let check = |(name, result): &(&'static str, Result<(), String>)| Check {
        name: (*name).to_owned(),
        ok: result.is_ok(),
        detail: result.as_ref().err().cloned(),
    };
    Health { ok: readiness.is_ready(), checks: readiness.checks.iter().map(check).collect() }
}

fn verbose(uri: &Uri) -> bool {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .any(|(name, value)| name == "verbose" && value != "false")
}

fn accepts_json(headers: &HeaderMap) -> bool {
    headers.get(ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http_body_util::BodyExt;

    fn readiness(quorum: Result<(), String>) -> Readiness {
        Readiness { checks: vec![("leader", Ok(())), ("quorum", quorum)] }
    }

    async fn text(readiness: &Readiness, path: &'static str, headers: &HeaderMap) -> (u16, String) {
        let response = probe("readyz", readiness, &Uri::from_static(path), headers);
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn probes_answer_in_lines() {
        let (good, bad) = (readiness(Ok(())), readiness(Err("1 of 3 answers".to_owned())));
        let none = HeaderMap::new();
        assert_eq!(text(&good, "/readyz", &none).await, (200, "ok\n".to_owned()));
        let all = "[+]leader ok\n[+]quorum ok\nreadyz check passed\n";
        assert_eq!(text(&good, "/readyz?verbose", &none).await, (200, all.to_owned()));
        assert_eq!(text(&good, "/readyz?a=b&verbose=true", &none).await, (200, all.to_owned()));
        assert_eq!(text(&good, "/readyz?verbose=false", &none).await, (200, "ok\n".to_owned()));
        let failed = "[+]leader ok\n[-]quorum failed: 1 of 3 answers\nreadyz check failed\n";
        assert_eq!(text(&bad, "/readyz", &none).await, (503, failed.to_owned()));
    }

    #[tokio::test]
    async fn programs_get_json() {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        let (status, body) = text(&readiness(Err("alone".to_owned())), "/readyz", &headers).await;
        let expected =
            r#"{"ok":false,"checks":[{"name":"leader","ok":true},{"name":"quorum","ok":false,"detail":"alone"}]}"#;
        assert_eq!((status, body.as_str()), (503, expected));
    }
}
