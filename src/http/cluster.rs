//! `GET /cluster`: the cluster as the answering node sees it.

use super::app::App;
use super::respond;
use crate::api::{ClusterResponse, MemberResponse, Millis};
use crate::node::{ClusterView, MemberView};
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;

/// Who leads, who is there.
///
/// As this node sees it: no majority is asked.
#[utoipa::path(
    get,
    path = "/cluster",
    tag = "cluster",
    responses((status = 200, description = "The cluster as this node sees it", body = ClusterResponse))
)]
pub(super) async fn cluster(State(app): State<Arc<App>>) -> Response {
    respond::json(&rendered(app.upstream.cluster()))
}

fn rendered(view: ClusterView) -> ClusterResponse {
    ClusterResponse {
        leader: view.leader,
        term: view.term,
        clock_ms: Millis::down_from_ns(view.clock.0),
        me: view.me,
        cluster_id: view.cluster_id,
        nodes: view.nodes.into_iter().map(member).collect(),
    }
}

fn member(view: MemberView) -> MemberResponse {
    let MemberView { id, client, peer, role, voter, last_log, applied, reachable } = view;
    MemberResponse { id, client, peer, role, voter, last_log, applied, reachable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Time;
    use serde_json::json;

    #[test]
    fn the_documented_members_are_there() {
        let node = MemberView {
            id: 1,
            client: Some("http://127.0.0.1:7001".to_owned()),
            peer: "127.0.0.1:7101".to_owned(),
            role: "leader".to_owned(),
            voter: true,
            last_log: Some(12),
            applied: None,
            reachable: true,
        };
        let view = ClusterView {
            me: 2,
            leader: Some(1),
            term: 3,
            clock: Time(1_500_999),
            cluster_id: "c0ffee".to_owned(),
            nodes: vec![node],
        };
        assert_eq!(
            serde_json::to_value(rendered(view)).unwrap(),
            json!({"leader": 1, "term": 3, "clock_ms": 1.5, "me": 2, "cluster_id": "c0ffee", "nodes": [
                {"id": 1, "client": "http://127.0.0.1:7001", "peer": "127.0.0.1:7101", "role": "leader", "voter": true, "last_log": 12,
                 "applied": null, "reachable": true}]})
        );
    }
}
