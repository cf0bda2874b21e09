//! What workers of the site see: the same calls as at a node.

use super::ask::{self, Asked, Lease};
use super::block::Ns;
use super::cluster::{Answer, Nodes};
use super::desk::{Reply, Step};
use super::options::Options;
use super::reserve::Agent;
use crate::api::{AcquireRequest, AcquireResponse, Code, Millis, Problem, ReleaseRequest, Wait};
use crate::clock::Stopwatch;
use crate::edge::{self, Body, Bounds, Incoming, Peer};
use crate::limits::{BATCH_BODY_BYTES_MAX, BODY_BYTES_MAX, BODY_TIMEOUT_MS};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use std::future::Future;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Time for the headers of a request, and for a rest between two.
const HEADER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest time that a request with `wait: "server"` is held, where it does not say.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(600);

/// Runs until `shutdown` completes, then answers who is there and gives back what it holds. Fails only if it cannot begin.
pub async fn run(
    listener: TcpListener,
    options: Options,
    recorder: Option<PrometheusHandle>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String> {
    let nodes = Nodes::new(&options.nodes, options.attempt_timeout)?;
    let bounds =
        Bounds { connections_max: options.connections_max, header_timeout: HEADER_TIMEOUT, grace: options.grace };
    let grace = options.grace;
    let agent = Agent::new(options, Box::new(nodes))?;
    let (answering, shown, closing) = (agent.clone(), recorder.clone(), agent.clone());
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
        () = agent.keep() => {}
        () = upkeep => {}
    }
    // A block that came while the last workers were answered.
    agent.close(grace).await;
    Ok(())
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
        (&Method::GET, path) if path.starts_with("/keys/") => passed(agent, Method::GET, path, Bytes::new()).await,
        _ => {
            let routes = "POST /acquire, /acquire/batch, /release, /renew, GET /keys/KEY, /livez, /readyz, /metrics";
            edge::problem(&Problem::new(Code::NotFound, format!("an agent has no such route; it has {routes}")))
        }
    }
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
            self.agent.desk().take_back(&self.lease.which, slot);
        }
    }
}

/// A request that a block could have served, as the cluster understands it.
fn request_of(lease: &Lease, fresh_id: impl FnOnce() -> String) -> AcquireRequest {
    let Lease { which, limit, terms, id } = lease;
    let some = |ns: Ns| Millis::up_from_ns(ns);
    AcquireRequest {
        limit: limit.clone(),
        max_wait_ms: terms.max_wait.map(some),
        lead_ms: (terms.lead > 0).then(|| some(terms.lead)),
        wait: if terms.now_only { Wait::None } else { Wait::Client },
        request_id: Some(id.clone().unwrap_or_else(fresh_id)),
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
    match agent.put_within(Method::POST, "/acquire", body.into(), patience).await {
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
