//! Who belongs to the cluster, changed as an operator changes it, while other faults go on.
//!
//! One step at a time, as the cluster stands: one that waits gets the log, one that has the log gets its vote, one voter too many
//! is removed (also the leader) and a fresh node with a new id moves into its place; or leadership is handed over.
//!
//! Invariants
//! - A node is thrown away only when most voters know that it is none of them any more.
//! - Only what was done is counted. What is refused for the moment (no majority, another change under way) is asked again.

use super::cluster::{Cluster, Node};
use super::rng::Rng;
use crate::api::{AddNodeRequest, AddNodeResponse, ClusterResponse, TransferRequest};
use crate::clock::Deadline;
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;
use tokio::time::sleep;

/// A change that is not done by then is left to the next one.
const DONE_WITHIN: Duration = Duration::from_secs(5);
/// One attempt.
const ATTEMPT: Duration = Duration::from_millis(2_500);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(80);
/// For most voters to say the same.
const AGREED_WITHIN: Duration = Duration::from_secs(2);

/// Whoever looks after the cluster.
#[derive(Debug)]
pub(super) struct Operator<'a> {
    cluster: &'a Cluster,
    /// Voters, when nothing is being changed.
    voters: usize,
    http: reqwest::Client,
}

/// Whom a change was about and what it was.
type Done = Option<(Vec<u64>, String)>;

impl<'a> Operator<'a> {
    pub(super) fn of(cluster: &'a Cluster, voters: usize) -> Option<Self> {
        let http = reqwest::Client::builder().timeout(ATTEMPT).build().ok()?;
        Some(Self { cluster, voters, http })
    }

    /// The next step; `None` if it was not done.
    pub(super) async fn step(&self, dice: &mut Rng) -> Done {
        let view = self.cluster.agreed(AGREED_WITHIN).await?;
        self.tidy_up(&view).await;
        let voters: Vec<u64> = view.nodes.iter().filter(|node| node.voter).map(|node| node.id).collect();
        let learner = view.nodes.iter().find(|node| !node.voter).map(|node| node.id);
        let nowhere = view.nodes.iter().map(|node| node.id).find(|id| self.cluster.node(*id).is_none());
        let waiting = self.cluster.nodes.iter().find(|node| !node.is_member());
        match (nowhere, learner, waiting) {
            (Some(id), ..) => self.remove(id, "that is nowhere").await,
            (_, Some(id), _) => self.add(self.cluster.node(id)?, true).await,
            _ if voters.len() > self.voters => {
                let leader = view.leader.filter(|_| dice.percent(40));
                self.replace(leader.unwrap_or(*dice.pick(&voters)), &view).await
            }
            (.., Some(node)) if voters.len() == 1 || dice.percent(65) => self.add(node, false).await,
            _ => {
                let others: Vec<u64> = voters.into_iter().filter(|id| Some(*id) != view.leader).collect();
                if others.is_empty() { None } else { self.transfer(*dice.pick(&others)).await }
            }
        }
    }

    /// Somebody else moves in where one lives that was removed: by a change that nobody was told the end of.
    async fn tidy_up(&self, view: &ClusterResponse) {
        for node in self.cluster.nodes.iter().filter(|node| node.has_belonged()) {
            if !view.nodes.iter().any(|member| member.id == node.id()) {
                let _ = self.cluster.moves_in(node).await;
            }
        }
    }

    async fn add(&self, node: &Node, voter: bool) -> Done {
        let id = node.id();
        let request = AddNodeRequest { id, peer: node.peer.clone(), voter };
        let answer = self.ask(Method::POST, "/cluster/nodes", Some(&request)).await?;
        let answer: AddNodeResponse = serde_json::from_value(answer).ok()?;
        let role = if voter { "voter" } else { "learner" };
        (answer.role == role).then(|| {
            node.belongs();
            let what = if voter { "votes" } else { "joins and gets the log" };
            (vec![id], format!("node {id} {what}"))
        })
    }

    async fn remove(&self, id: u64, which: &str) -> Done {
        self.ask(Method::DELETE, &format!("/cluster/nodes/{id}"), None::<&()>).await?;
        Some((vec![id], format!("node {id}, {which}, is removed")))
    }

    async fn replace(&self, id: u64, view: &ClusterResponse) -> Done {
        let which = if view.leader == Some(id) { "which led" } else { "which followed" };
        let (ids, what) = self.remove(id, which).await?;
        let agreed = self.cluster.agreed(AGREED_WITHIN).await?;
        if agreed.nodes.iter().any(|node| node.id == id) {
            // It was said to be gone and is there again, or those who know were not asked: the next step will see.
            return None;
        }
        let fresh = self.cluster.moves_in(self.cluster.node(id)?).await.ok()?;
        Some((ids, format!("{what}, and node {fresh} moves into its place")))
    }

    async fn transfer(&self, to: u64) -> Done {
        self.ask(Method::POST, "/cluster/transfer", Some(&TransferRequest { to: Some(to) })).await?;
        Some((vec![to], format!("leadership handed over to node {to}")))
    }

    /// Asks one member after the other until it is done; all of these may be asked for again.
    async fn ask(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Option<Value> {
        let until = Deadline::after(DONE_WITHIN);
        for turn in 0_usize.. {
            let members = self.cluster.members();
            let node = members.get(turn % members.len().max(1))?;
            let mut request = self.http.request(method.clone(), format!("{}{path}", node.url));
            if let Some(body) = body {
                request = request.json(body);
            }
            if let Ok(answer) = request.send().await
                && answer.status() == StatusCode::OK
                && let Ok(answer) = answer.json().await
            {
                return Some(answer);
            }
            if until.passed() {
                break;
            }
            sleep(ASK_AGAIN_AFTER).await;
        }
        None
    }
}
