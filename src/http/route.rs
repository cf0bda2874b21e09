//! The table of routes. The router, the labels of the metrics, the index and the test of `/openapi.json` all go by it.

use super::app::App;
use super::{
    acquire, audit, batch, cluster, digest, history, index, keys, members, metrics, openapi, policies, probes, release,
    respond,
};
use crate::api::{Code, Problem};
use axum::Router;
use axum::routing::{MethodRouter, delete, get, post, put};
use http::{Method, Uri};
use std::sync::Arc;

/// Every route there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Acquire,
    Batch,
    Release,
    Renew,
    Key,
    ResetKey,
    Policies,
    Policy,
    PutPolicy,
    DeletePolicy,
    KeyHistory,
    History,
    Audit,
    Cluster,
    Digest,
    AddNode,
    RemoveNode,
    Transfer,
    Livez,
    Readyz,
    Healthz,
    Metrics,
    Openapi,
    Index,
}

impl Route {
    /// In the order of the enum, which is their number.
    pub(super) const ALL: [Self; 24] = [
        Self::Acquire,
        Self::Batch,
        Self::Release,
        Self::Renew,
        Self::Key,
        Self::ResetKey,
        Self::Policies,
        Self::Policy,
        Self::PutPolicy,
        Self::DeletePolicy,
        Self::KeyHistory,
        Self::History,
        Self::Audit,
        Self::Cluster,
        Self::Digest,
        Self::AddNode,
        Self::RemoveNode,
        Self::Transfer,
        Self::Livez,
        Self::Readyz,
        Self::Healthz,
        Self::Metrics,
        Self::Openapi,
        Self::Index,
    ];

    /// Method, path and what it is for.
    fn row(self) -> (Method, &'static str, &'static str) {
        match self {
            Self::Acquire => (Method::POST, "/acquire", "ask for a permit"),
            Self::Batch => (Method::POST, "/acquire/batch", "ask for many"),
            Self::Release => (Method::POST, "/release", "give a permit back"),
            Self::Renew => (Method::POST, "/renew", "extend the lease of a permit"),
            Self::Key => (Method::GET, "/keys/{key}", "look at a key without consuming anything"),
            Self::ResetKey => (Method::DELETE, "/keys/{key}", "forget a key"),
            Self::Policies => (Method::GET, "/policies", "all stored policies"),
            Self::Policy => (Method::GET, "/policies/{name}", "one stored policy"),
            Self::PutPolicy => (Method::PUT, "/policies/{name}", "store a policy"),
            Self::DeletePolicy => (Method::DELETE, "/policies/{name}", "remove a policy"),
            Self::KeyHistory => (Method::GET, "/keys/{key}/history", "what this node remembers of a key"),
            Self::History => (Method::GET, "/history", "usage over the last hour, by policy and by key"),
            Self::Audit => (Method::GET, "/audit", "changes of policies, members and leaders"),
            Self::Cluster => (Method::GET, "/cluster", "who leads, who is there"),
            Self::Digest => (Method::GET, "/cluster/digest", "a digest of this node's state, to compare nodes by"),
            Self::AddNode => (Method::POST, "/cluster/nodes", "add a node"),
            Self::RemoveNode => (Method::DELETE, "/cluster/nodes/{id}", "remove a node"),
            Self::Transfer => (Method::POST, "/cluster/transfer", "hand leadership over"),
            Self::Livez => (Method::GET, "/livez", "whether the process answers"),
            Self::Readyz => (Method::GET, "/readyz", "whether this node should get traffic; ?verbose says why"),
            Self::Healthz => (Method::GET, "/healthz", "the same as /readyz"),
            Self::Metrics => (Method::GET, "/metrics", "metrics for Prometheus"),
            Self::Openapi => (Method::GET, "/openapi.json", "all of this as OpenAPI 3.1"),
            Self::Index => (Method::GET, "/", "this text"),
        }
    }

    /// The path, with `{}` around what varies.
    pub(super) fn path(self) -> &'static str {
        self.row().1
    }

    /// The method.
    pub(super) fn method(self) -> Method {
        self.row().0
    }

    /// One line for people.
    pub(super) fn purpose(self) -> &'static str {
        self.row().2
    }

    /// The route of a request, for counting. The router finds the handler by itself; the test below holds them together.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        if path == "/acquire" && method == Method::POST {
            return Some(Self::Acquire);
        }
        Self::at(path).find(|route| route.method() == *method)
    }

    /// All routes of a path.
    fn at(path: &str) -> impl Iterator<Item = Self> {
        let pattern = pattern(path);
        Self::ALL.into_iter().filter(move |route| route.path() == pattern)
    }

    fn handler(self) -> MethodRouter<Arc<App>> {
        match self {
            Self::Acquire => post(acquire::acquire),
            Self::Batch => post(batch::batch),
            Self::Release => post(release::release),
            Self::Renew => post(release::renew),
            Self::Key => get(keys::key),
            Self::ResetKey => delete(keys::reset),
            Self::Policies => get(policies::list),
            Self::Policy => get(policies::get),
            Self::PutPolicy => put(policies::put),
            Self::DeletePolicy => delete(policies::delete),
            Self::KeyHistory => get(history::key),
            Self::History => get(history::usage),
            Self::Audit => get(audit::audit),
            Self::Cluster => get(cluster::cluster),
            Self::Digest => get(digest::digest),
            Self::AddNode => post(members::add),
            Self::RemoveNode => delete(members::remove),
            Self::Transfer => post(members::transfer),
            Self::Livez => get(probes::livez),
            Self::Readyz => get(probes::readyz),
            Self::Healthz => get(probes::healthz),
            Self::Metrics => get(metrics::metrics),
            Self::Openapi => get(openapi::openapi),
            Self::Index => get(index::index),
        }
    }
}

/// The path of the table that a path of a request belongs to.
fn pattern(path: &str) -> &str {
    let varies = |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'));
    if varies("/keys/") {
        return "/keys/{key}";
    }
    // The router takes an empty segment in the middle of a path, and its handler says what is wrong.
    let within = path.strip_prefix("/keys/").and_then(|rest| rest.strip_suffix("/history"));
    if within.is_some_and(|key| !key.contains('/')) {
        return "/keys/{key}/history";
    }
    if varies("/cluster/nodes/") {
        return "/cluster/nodes/{id}";
    }
    if varies("/policies/") {
        return "/policies/{name}";
    }
    path
}

/// All routes, and a problem for everything else.
pub(super) fn router(app: Arc<App>) -> Router {
    let routes =
        Route::ALL.into_iter().fold(Router::new(), |router, route| router.route(route.path(), route.handler()));
    routes.fallback(not_found).method_not_allowed_fallback(method_not_allowed).with_state(app)
}

async fn not_found(uri: Uri) -> axum::response::Response {
    let detail = format!("there is nothing at {}; GET / lists what there is", respond::shortened(uri.path()));
    respond::problem(&Problem::new(Code::NotFound, detail))
}

/// The router adds the `Allow` header.
async fn method_not_allowed(method: Method, uri: Uri) -> axum::response::Response {
    let allowed: Vec<_> = Route::at(uri.path()).map(|route| route.method().to_string()).collect();
    let method = respond::shortened(method.as_str()).into_owned();
    let detail = format!("{} does not know {method}, only {}", respond::shortened(uri.path()), allowed.join(", "));
    respond::problem(&Problem::new(Code::MethodNotAllowed, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_path_finds_its_row() {
        for (number, route) in Route::ALL.into_iter().enumerate() {
            assert_eq!(route as usize, number, "{route:?}");
            assert_eq!(Route::of(&route.method(), route.path()), Some(route));
        }
        assert_eq!(Route::of(&Method::GET, "/keys/a%2Fb"), Some(Route::Key));
        assert_eq!(Route::of(&Method::DELETE, "/policies/a"), Some(Route::DeletePolicy));
        assert_eq!(Route::of(&Method::GET, "/keys/a%2Fb/history"), Some(Route::KeyHistory));
        assert_eq!(Route::of(&Method::GET, "/keys/history"), Some(Route::Key));
        for path in [
            "/keys/",
            "/keys",
            "/keys/a/b",
            "/keys/a/b/history",
            "/keys/a/history/",
            "/policies/",
            "/acquire/",
            "//",
            "",
        ] {
            assert_eq!(Route::of(&Method::GET, path), None, "{path}");
        }
        assert_eq!(Route::of(&Method::GET, "/acquire"), None);
    }
}
