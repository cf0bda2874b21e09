//! `/cluster/nodes` and `/cluster/transfer`: who belongs to the cluster, and who leads it.

use super::app::App;
use super::{answer, ask, body, respond};
use crate::api::{
    AddNodeRequest, AddNodeResponse, Code, Problem, RemoveNodeResponse, TransferRequest, TransferResponse,
};
use crate::limits::{ADDRESS_BYTES_MAX, NODE_ID_MAX};
use crate::node::{Change, Changed, Obstacle};
use axum::extract::{Request, State};
use axum::response::Response;
use http::{StatusCode, Uri};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// Add a node, or give a node without a vote one.
///
/// The node runs already, started with `--join true`. It gets the log first and its vote when it has caught up: 202 says that this
/// takes longer, and asking again goes on with it.
#[utoipa::path(
    post,
    path = "/cluster/nodes",
    tag = "cluster",
    request_body = AddNodeRequest,
    responses(
        (status = 200, description = "It belongs to the cluster, as asked", body = AddNodeResponse),
        (status = 202, description = "It gets the log and has no vote yet: ask again", body = AddNodeResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 409,
            description = "`membership_conflict`: another address, no majority, or another change under way",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (
            status = 422,
            description = "`node_unreachable`: it does not answer, or not as this node of this cluster",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 503, description = "`no_quorum`, `no_leader`, `shutting_down`", body = Problem, content_type = "application/problem+json"),
        (status = 504, description = "`outcome_unknown`: do it again", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn add(State(app): State<Arc<App>>, request: Request) -> Response {
    let asked = match read::<AddNodeRequest>(&app, request, "an `id` and a `peer`").await {
        Ok(asked) => asked,
        Err(response) => return response,
    };
    if let Err(problem) = checked(&asked) {
        return respond::problem(&problem);
    }
    let AddNodeRequest { id, peer, voter } = asked;
    match change(&app, Change::Add { id, peer: peer.clone(), voter }).await {
        Ok(Changed::Member { voter: votes, already, behind }) => {
            let role = if votes { "voter" } else { "learner" }.to_owned();
            let answer = AddNodeResponse { id, peer, role, changed: !already, behind };
            let status = if behind.is_some() { StatusCode::ACCEPTED } else { StatusCode::OK };
            respond::json_as(status, &answer)
        }
        Ok(other) => refused(other),
        Err(response) => response,
    }
}

/// Remove a node.
///
/// One that leads hands leadership over first. Its id is not for another directory afterwards.
#[utoipa::path(
    delete,
    path = "/cluster/nodes/{id}",
    tag = "cluster",
    params(("id" = u64, Path, description = "The node")),
    responses(
        (status = 200, description = "It does not belong to the cluster", body = RemoveNodeResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (
            status = 409,
            description = "`membership_conflict`: those who stay would be no majority, or another change is under way",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 503, description = "`no_quorum`, `no_leader`, `shutting_down`", body = Problem, content_type = "application/problem+json"),
        (status = 504, description = "`outcome_unknown`: do it again", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn remove(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let text = uri.path().strip_prefix("/cluster/nodes/").unwrap_or_default();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(id) = text.parse().ok().filter(|id| digits && (1..=NODE_ID_MAX).contains(id)) else {
        return respond::problem(&ask::bad_request(format!(
            "{} is no id of a node: 1 to {NODE_ID_MAX}",
            respond::shortened(text)
        )));
    };
    match change(&app, Change::Remove { id }).await {
        Ok(Changed::Removed { was_member }) => respond::json(&RemoveNodeResponse { id, removed: was_member }),
        Ok(other) => refused(other),
        Err(response) => response,
    }
}

/// Hand leadership over.
///
/// To a node, or to the one that is farthest. Requests wait for the moment that takes.
#[utoipa::path(
    post,
    path = "/cluster/transfer",
    tag = "cluster",
    request_body = TransferRequest,
    responses(
        (status = 200, description = "Who leads now", body = TransferResponse),
        (status = 400, description = "`bad_request`", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "`no_node`: no voter has this id", body = Problem, content_type = "application/problem+json"),
        (
            status = 409,
            description = "`membership_conflict`: nobody took over in time",
            body = Problem,
            content_type = "application/problem+json"
        ),
        (status = 422, description = "`node_unreachable`", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "`no_quorum`, `no_leader`, `shutting_down`", body = Problem, content_type = "application/problem+json"),
        (status = 504, description = "`outcome_unknown`: look who leads", body = Problem, content_type = "application/problem+json")
    )
)]
pub(super) async fn transfer(State(app): State<Arc<App>>, request: Request) -> Response {
    let asked = match read::<TransferRequest>(&app, request, "an object, with or without `to`").await {
        Ok(asked) => asked,
        Err(response) => return response,
    };
    match change(&app, Change::Transfer { to: asked.to }).await {
        Ok(Changed::Leads { leader, term }) => respond::json(&TransferResponse { leader, term }),
        Ok(other) => refused(other),
        Err(response) => response,
    }
}

async fn read<T: DeserializeOwned>(app: &App, request: Request, wanted: &str) -> Result<T, Response> {
    let (parts, body) = request.into_parts();
    let bytes = body::read(&parts, body, &app.options).await.map_err(|error| error.response(&app.options))?;
    ask::parse(&bytes, wanted).map_err(|problem| respond::problem(&problem))
}

fn checked(asked: &AddNodeRequest) -> Result<(), Box<Problem>> {
    if !(1..=NODE_ID_MAX).contains(&asked.id) {
        return Err(ask::bad_request(format!("id: has to lie between 1 and {NODE_ID_MAX}, this one is {}", asked.id)));
    }
    let port = asked.peer.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    if asked.peer.len() > ADDRESS_BYTES_MAX || !matches!(port, Some(Ok(1..))) {
        let shown = respond::shortened(&asked.peer);
        return Err(ask::bad_request(format!("peer: has to be host:port, as the other nodes reach it, not {shown}")));
    }
    Ok(())
}

async fn change(app: &App, change: Change) -> Result<Changed, Response> {
    app.upstream.change(&change).await.map_err(|failure| respond::problem(&answer::failure_problem(failure)))
}

fn refused(changed: Changed) -> Response {
    let problem = match changed {
        Changed::Refused(Obstacle::NoNode, detail) => Problem::new(Code::NoNode, detail),
        Changed::Refused(Obstacle::Conflict, detail) => Problem::new(Code::MembershipConflict, detail),
        Changed::Refused(Obstacle::Unreachable, detail) => Problem::new(Code::NodeUnreachable, detail),
        other => {
            tracing::error!(?other, "a change of members was answered as something else");
            Problem::new(Code::Internal, "the leader did something else; the node's log says more")
        }
    };
    respond::problem(&problem)
}
