//! What surrounds every answer, whichever handler it comes from: panics end in a 500, followers name the leader, and it
//! is counted.

use super::acquire;
use super::answer::failure_problem;
use super::app::App;
use super::respond;
use super::route::Route;
use crate::api::{Code, Problem, QUORATE_LEADER};
use crate::edge::Hangup;
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use futures::FutureExt;
use http::header::HeaderName;
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use std::any::Any;
use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use tower::Service;

/// Answers one request.
pub(super) async fn answer(app: &App, router: &Router, request: Request<Incoming>, hangup: &Hangup) -> Response {
    let route = Route::of(request.method(), request.uri().path());
    if route == Some(Route::Acquire) {
        // Nearly every request is this one: past the router. Boxed, so that a connection without a request stays small.
        let handler = Box::pin(acquire::answer(app, request, Some(hangup))).map(Ok);
        return surround(app, route, handler).await;
    }
    let gone = async {
        // A client that only has no more to say wants its answer, which nearly always comes within this time.
        tokio::time::sleep(acquire::SOON).await;
        hangup.closed().await;
    };
    let handler = async {
        tokio::select! {
            biased;
            response = router.clone().call(request.map(Body::new)) => response,
            () = gone => Ok(respond::problem(&failure_problem(acquire::nobody_there()))),
        }
    };
    surround(app, route, handler).await
}

/// Answers with what the handler says, whatever becomes of it.
pub(super) async fn surround(
    app: &App,
    route: Option<Route>,
    handler: impl Future<Output = Result<Response, Infallible>>,
) -> Response {
    // A handler shares nothing that a panic could leave half done: the node behind the handle has tasks of its own.
    let mut response = match AssertUnwindSafe(handler).catch_unwind().await {
        Ok(Ok(response)) => response,
        Err(panic) => panicked(route, panic.as_ref()),
    };
    if let Some(leader) = leader_url(app) {
        name_leader(&mut response, leader);
    }
    app.meters.answered(route, response.status());
    response
}

fn panicked(route: Option<Route>, panic: &(dyn Any + Send)) -> Response {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(route = route.map(Route::path), panic = text, "a handler panicked");
    respond::problem(&Problem::new(Code::Internal, "the node failed while it worked on this; its log says more"))
}

/// Where the leader is, if it is another node.
pub(super) fn leader_url(app: &App) -> Option<String> {
    // What another node announced ends up in a header, so it must not be able to end the line.
    app.upstream.leader_elsewhere().filter(|address| !address.contains(char::is_control)).map(as_url)
}

/// A node may announce a whole URL as its address, for example behind a proxy.
fn as_url(address: String) -> String {
    if address.contains("://") { address } else { format!("http://{address}") }
}

fn name_leader(response: &mut Response, url: String) {
    if let Ok(value) = HeaderValue::try_from(url) {
        response.headers_mut().insert(HeaderName::from_static(QUORATE_LEADER), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::options::Options;
    use crate::http::upstream::Upstream;
    use http::StatusCode;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let app = App::new(Upstream::Script(Box::default()), Options::default());
        let response = surround(&app, Some(Route::Acquire), async { panic!("on purpose") }).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Problem = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(problem.code, Code::Internal);
        assert!(!problem.detail.contains("on purpose"), "what panicked is for the log, not for clients");
    }

    #[test]
    fn a_follower_names_the_leader() {
        let mut response = respond::text(StatusCode::OK, "");
        name_leader(&mut response, as_url("127.0.0.1:7001".to_owned()));
        assert_eq!(response.headers()["quorate-leader"], "http://127.0.0.1:7001");
        name_leader(&mut response, as_url("https://one.example".to_owned()));
        assert_eq!(response.headers()["quorate-leader"], "https://one.example");
    }
}
