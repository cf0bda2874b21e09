//! What workers of the site see: the same calls as at a node.

use super::ask::{self, Asked, Lease};
use super::block::Ns;
use super::cluster::{Answer, Failed};
use super::desk::{Reply, Step};
use super::options::Options;
use super::reserve::Agent;
use crate::api::{AcquireRequest, AcquireResponse, Code, Millis, Problem, ReleaseRequest, Wait};
use crate::clock::Stopwatch;
use crate::edge::{self, Body, Bounds, Deadlines, Incoming, Peer};
use crate::limits::{BATCH_BODY_BYTES_MAX, BODY_BYTES_MAX, BODY_TIMEOUT_MS};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use std::future::Future;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long a worker may take for its headers, between two requests, and until it takes a part of its answer: as at a node.
const DEADLINES: Deadlines =
    Deadlines { header: Duration::from_secs(10), idle: Duration::from_secs(120), write: Duration::from_secs(10) };
/// Longest time that a request with `wait: "server"` is held, where it does not say.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(600);

impl Agent {
    /// Runs until `shutdown` completes, then answers who is there and gives back what it holds.
    pub async fn run(
        self,
        listener: TcpListener,
        recorder: Option<PrometheusHandle>,
        shutdown: impl Future<Output = ()>,
    ) {
        let Options { connections_max, grace, .. } = *self.options();
        let bounds = Bounds { connections_max, deadlines: DEADLINES, grace };
        let (answering, shown, closing) = (self.clone(), recorder.clone(), self.clone());
        let handler = move |request, peer| {
            let (agent, recorder) = (answering.clone(), shown.clone());
            async move { answer(&agent, recorder.as_ref(), request, peer).await }
        };
        // Slots are given back first, while there is time; then workers that wait for their answers get them.
        let stop = async move {
            shutdown.await;
            closing.close(grace).await;
        };
        let upkeep = async {
            match &recorder {
                Some(recorder) => edge::upkeep(recorder).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = edge::serve(listener, bounds, handler, stop) => {}
            () = self.keep() => {}
            () = upkeep => {}
        }
        // A block that came while the last workers were answered.
        self.close(grace).await;
    }
}

async fn answer(
    agent: &Agent,
    recorder: Option<&PrometheusHandle>,
    request: Request<Incoming>,
    peer: Peer,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let read = |most| edge::read_up_to(most, Duration::from_millis(BODY_TIMEOUT_MS), body);
    match (&parts.method, path) {
        (&Method::GET, "/livez") => edge::text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") if agent.is_reachable() => edge::text(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => {
            edge::text(StatusCode::SERVICE_UNAVAILABLE, "the cluster did not answer the last time it was asked\n")
        }
        (&Method::GET, "/metrics") => match recorder {
            Some(recorder) => edge::metrics(recorder),
            None => edge::problem(&Problem::new(Code::NotFound, "this agent was started without metrics")),
        },
        (&Method::POST, "/acquire") => match read(BODY_BYTES_MAX).await {
            // Gone is gone: what the request had is given back by dropping it.
            Ok(bytes) => tokio::select! {
                response = acquire(agent, &bytes, &parts.headers) => response,
                () = peer.hangup.closed() => edge::text(StatusCode::SERVICE_UNAVAILABLE, ""),
            },
            Err(error) => edge::problem(&error.problem()),
        },
        (&Method::POST, "/release") => match read(BODY_BYTES_MAX).await {
            Ok(bytes) => release(agent, bytes).await,
            Err(error) => edge::problem(&error.problem()),
        },
        (&Method::POST, "/renew") => match read(BODY_BYTES_MAX).await {
            Ok(bytes) => passed(agent, Method::POST, "/renew", bytes).await,
            Err(error) => edge::problem(&error.problem()),
        },
        (&Method::POST, "/acquire/batch") => match read(BATCH_BODY_BYTES_MAX).await {
            Ok(bytes) => passed(agent, Method::POST, "/acquire/batch", bytes).await,
            Err(error) => edge::problem(&error.problem()),
        },
        (&Method::GET, path) if is_key(path) => passed(agent, Method::GET, path, Bytes::new()).await,
        _ => {
            let routes = "POST /acquire, /acquire/batch, /release, /renew, GET /keys/KEY, /livez, /readyz, /metrics";
            edge::problem(&Problem::new(Code::NotFound, format!("an agent has no such route; it has {routes}")))
        }
    }
}

/// Whether a path is that of one key: one segment that stays where it is.
fn is_key(path: &str) -> bool {
    let Some(key) = path.strip_prefix("/keys/") else { return false };
    let decoded = percent_encoding::percent_decode_str(key).collect::<Vec<_>>();
    // Dots are taken for steps through the path on the way to the node, also behind percent signs.
    !key.is_empty() && !key.contains('/') && !matches!(&decoded[..], b"." | b"..")
}

async fn acquire(agent: &Agent, body: &[u8], headers: &HeaderMap) -> Response<Body> {
    let watch = Stopwatch::start();
    let (outcome, response) = match ask::read(body, headers, || agent.fresh_id()) {
        Ok(Asked::Lease(lease)) => match leased(agent, &lease).await {
            Reply::Granted(slot, first, replayed) => {
                let told = slot.told(first, agent.now());
                let response = AcquireResponse {
                    wait_ms: Millis::up_from_ns(told.wait),
                    start_before_ms: told.before.map(Millis::down_from_ns),
                    replayed,
                    ..(*slot.grant).clone()
                };
                (if replayed { "replayed" } else { "granted" }, edge::json(&response))
            }
            Reply::Problem(problem) => (counted(problem.status), edge::problem(&problem)),
            Reply::Pass => pass(agent, request_of(&lease, || agent.fresh_id())).await,
        },
        Ok(Asked::Pass(request)) => pass(agent, *request).await,
        Err(problem) => ("error", edge::problem(&problem)),
    };
    agent.meters().answered(outcome, watch.elapsed());
    response
}

const fn counted(status: u16) -> &'static str {
    match status {
        429 => "denied",
        503 => "unavailable",
        _ => "error",
    }
}

/// The reply of the desk, waited for if need be.
async fn leased(agent: &Agent, lease: &Lease) -> Reply {
    let (step, block) = agent.desk().acquire(lease, agent.now());
    agent.reserve(block);
    match step {
        Step::Now(reply) => reply,
        Step::Wait(receiver) => {
            let mut waiting = Waiting { agent, lease, receiver: Some(receiver) };
            waiting.reply().await
        }
    }
}

/// A worker that waits. If it goes away with a slot that nobody can ask for again, somebody else may have it.
struct Waiting<'a> {
    agent: &'a Agent,
    lease: &'a Lease,
    receiver: Option<oneshot::Receiver<Reply>>,
}

impl Waiting<'_> {
    async fn reply(&mut self) -> Reply {
        let Some(receiver) = &mut self.receiver else { return nobody() };
        let reply = receiver.await;
        self.receiver = None;
        reply.unwrap_or_else(|_| nobody())
    }
}

fn nobody() -> Reply {
    Reply::Problem(Box::new(Problem::new(Code::Internal, "nobody answers this request any more")))
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(mut receiver) = self.receiver.take() else { return };
        receiver.close();
        if let Ok(Reply::Granted(slot, ..)) = receiver.try_recv()
            && self.lease.id.is_none()
        {
            let back = self.agent.desk().take_back(&self.lease.which, slot);
            self.agent.give_back(back.into_iter().collect());
        }
    }
}

/// A request that a block could have served, as the cluster understands it.
fn request_of(lease: &Lease, fresh_id: impl FnOnce() -> String) -> AcquireRequest {
    let Lease { which, limit, terms, id, worker } = lease;
    let some = |ns: Ns| Millis::up_from_ns(ns);
    AcquireRequest {
        limit: limit.clone(),
        max_wait_ms: terms.max_wait.map(some),
        lead_ms: (terms.lead > 0).then(|| some(terms.lead)),
        wait: if terms.now_only { Wait::None } else { Wait::Client },
        request_id: Some(id.clone().unwrap_or_else(fresh_id)),
        worker: worker.clone(),
        ..AcquireRequest::new(&which.key)
    }
}

/// Puts an acquire to the cluster. Both instants stay right: the answer only gets later, and was asked for only later.
async fn pass(agent: &Agent, request: AcquireRequest) -> (&'static str, Response<Body>) {
    let Options { timeout, attempt_timeout, .. } = *agent.options();
    let patience = if request.wait == Wait::Server {
        let longest = request.max_wait_ms.map_or(SERVER_WAIT_MAX, Millis::duration).min(SERVER_WAIT_MAX);
        (longest + timeout, longest + timeout)
    } else {
        (attempt_timeout, timeout)
    };
    let Ok(body) = serde_json::to_vec(&request) else {
        return ("error", edge::problem(&Problem::new(Code::Internal, "no JSON comes of that")));
    };
    agent.meters().passed.increment(1);
    let answer = agent.put_within(Method::POST, "/acquire", body.into(), patience).await;
    let in_vain = match &answer {
        Ok(answer) => answer.status != 200,
        Err(failed) => matches!(failed, Failed::Unavailable(_)),
    };
    if let Some(id) = request.request_id.filter(|_| in_vain) {
        agent.desk().passed_in_vain(&id);
    }
    match answer {
        Ok(answer) => {
            let outcome = if answer.status == 200 { "granted" } else { counted(answer.status) };
            (outcome, said_by_a_node(answer))
        }
        Err(failed) => {
            let problem = failed.problem();
            (counted(problem.status), edge::problem(&problem))
        }
    }
}

async fn release(agent: &Agent, body: Bytes) -> Response<Body> {
    let request: ReleaseRequest = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            return edge::problem(&Problem::new(Code::BadRequest, format!("the body is no release: {error}")));
        }
    };
    if !agent.desk().release(&request.key, request.permit) {
        let detail = format!("permit {} of this key was not handed out", request.permit);
        return edge::problem(&Problem::new(Code::NoPermit, detail).about(request.key));
    }
    passed(agent, Method::POST, "/release", body).await
}

/// Puts a request to the cluster as it is.
async fn passed(agent: &Agent, method: Method, path: &str, body: Bytes) -> Response<Body> {
    agent.meters().passed.increment(1);
    match agent.put(method, path, body).await {
        Ok(answer) => said_by_a_node(answer),
        Err(failed) => edge::problem(&failed.problem()),
    }
}

fn said_by_a_node(answer: Answer) -> Response<Body> {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = edge::text(status, answer.body);
    for (name, value) in &answer.headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_key_is_looked_at() {
        for good in ["/keys/k", "/keys/a%2Fb", "/keys/...", "/keys/a..b", "/keys/%20"] {
            assert!(is_key(good), "{good}");
        }
        for bad in
            ["/keys", "/keys/", "/keys/..", "/keys/.", "/keys/%2e%2E", "/keys/.%2e", "/keys/../policies", "/keys/a/b"]
        {
            assert!(!is_key(bad), "{bad}");
        }
    }
}
