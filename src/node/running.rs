//! Starting and stopping a node.

use super::forward::{Question, Reply};
use super::forwarder::Forwarder;
use super::handle::{Handle, Shared};
use super::options::Options;
use super::proposer::Proposer;
use super::reach::Reach;
use super::room;
use super::waitroom::Waitroom;
use crate::clock::SystemClocks;
use crate::metric_names;
use crate::raft::{self, Consensus, Disk, Forwarded, Observer, StartError, Status, Surroundings, Tcp};
use crate::watch;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::net::TcpListener;

/// The follower that was asked first may have died in the same moment; when all nodes stop, nobody takes over.
const HAND_OVER_ATTEMPTS: usize = 2;

/// For one of them.
const TAKE_OVER: Duration = Duration::from_secs(1);

/// How often the leader metrics are brought up to date when nothing changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// A running node. Dropping it stops it without ceremony.
pub struct Node {
    shared: Arc<Shared>,
}

/// Starts a node that talks to its peers on `peer_listener`.
pub async fn start(
    options: &Options,
    peer_listener: TcpListener,
    observer: Option<Arc<dyn Observer>>,
) -> Result<Node, StartError> {
    let clocks =
        SystemClocks::new().map_err(|error| StartError::Settings(format!("cannot read the clocks: {error}")))?;
    let transport = Arc::new(Tcp(peer_listener));
    start_in(options, Surroundings { clocks: Arc::new(clocks), disk: Disk::system(), transport, observer }).await
}

/// The same in other surroundings: for tests.
pub async fn start_in(options: &Options, surroundings: Surroundings) -> Result<Node, StartError> {
    let desk = Arc::new(Desk::default());
    let forwarded = Arc::clone(&desk) as Arc<dyn Forwarded>;
    let consensus = Arc::new(Consensus::start(&options.consensus(), &surroundings, forwarded).await?);
    let Surroundings { clocks, observer, .. } = surroundings;
    let watched = (clocks, observer.clone());
    let proposer = Arc::new(Proposer::start(Arc::clone(&consensus), watched, options.keys_max));
    let shared = Arc::new(Shared {
        me: options.id,
        waitroom: Waitroom::new(Arc::clone(&proposer)),
        proposer,
        forwarder: Forwarder::start(&consensus),
        reach: Reach::start(options.id, &consensus),
        request_timeout: options.request_timeout(),
        changing: tokio::sync::Mutex::new(()),
        draining: watch::Sender::new(false),
        closed: AtomicBool::new(false),
        consensus,
    });
    // Questions that arrived before this were answered "not leading", which was true.
    let _ = desk.shared.set(Arc::downgrade(&shared));
    tokio::spawn(room::make_way(Arc::downgrade(&shared)));
    tokio::spawn(follow_leader(Arc::downgrade(&shared), shared.consensus.status(), observer));
    Ok(Node { shared })
}

impl Node {
    /// What the rest of the program holds of this node.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.shared))
    }

    /// Resolves with the reason when this node cannot go on.
    pub async fn failed(&self) -> String {
        let mut status = self.shared.consensus.status();
        tokio::select! {
            biased;
            reason = self.shared.consensus.disowned() => reason,
            changed = status.wait_for(|status| status.fatal.is_some()) => match changed {
                Ok(status) => status.fatal.unwrap_or_default(),
                Err(_) => "consensus has stopped".to_owned(),
            },
        }
    }

    /// Tells probes that this node should not get new traffic. It goes on serving.
    pub fn begin_shutdown(&self) {
        self.shared.draining.send_replace(true);
    }

    /// Hands leadership over if this node leads, then stops and syncs. `within` bounds the hand-over.
    pub async fn shutdown(self, within: Duration) {
        self.begin_shutdown();
        let handing_over = async {
            for _ in 0..HAND_OVER_ATTEMPTS {
                if self.shared.hand_over(None, TAKE_OVER).await {
                    return true;
                }
            }
            false
        };
        if !tokio::time::timeout(within, handing_over).await.unwrap_or(false) {
            tracing::warn!("nobody took over within {within:?}; the others will elect a leader");
        }
        self.shared.closed.store(true, Ordering::Release);
        self.shared.consensus.shutdown().await;
    }
}

/// Answers what peers forward.
#[derive(Default)]
struct Desk {
    shared: OnceLock<Weak<Shared>>,
}

impl Forwarded for Desk {
    fn serve(&self, request: Bytes) -> BoxFuture<'static, Bytes> {
        let shared = self.shared.get().and_then(Weak::upgrade);
        Box::pin(async move {
            let reply = match (shared, raft::decode::<Question>(&request)) {
                (Some(shared), Ok(question)) => shared.answer(question).await,
                (None, _) => Reply::NotLeading,
                (_, Err(error)) => {
                    tracing::warn!(%error, "a peer asked what this version does not understand");
                    Reply::NotLeading
                }
            };
            raft::encode(&reply).into()
        })
    }
}

/// Keeps the leader metrics and says in the log when the leader changes.
async fn follow_leader(node: Weak<Shared>, mut status: watch::Receiver<Status>, observer: Option<Arc<dyn Observer>>) {
    let mut known: Option<(u64, u64)> = None;
    // Shown from the start, so that a rate over it is never missing.
    metrics::counter!(metric_names::LEADER_CHANGES_TOTAL).increment(0);
    loop {
        let Some(node) = node.upgrade() else { return };
        let (leader, term) = {
            let status = status.borrow_and_update();
            (status.leader, status.term)
        };
        let live = node.live_leader();
        metrics::gauge!(metric_names::HAS_LEADER).set(if live.is_some() { 1.0 } else { 0.0 });
        metrics::gauge!(metric_names::IS_LEADER).set(if live == Some(node.me) { 1.0 } else { 0.0 });
        drop(node);
        if let Some(leader) = leader
            && known != Some((term, leader))
        {
            if known.replace((term, leader)).is_some() {
                metrics::counter!(metric_names::LEADER_CHANGES_TOTAL).increment(1);
            }
            if let Some(observer) = &observer {
                observer.leader(leader, term);
            }
            tracing::info!(leader, term, "a leader is known");
        }
        // A leader that died does not change the status: look again now and then.
        if let Ok(Err(_)) = tokio::time::timeout(LOOK_EVERY, status.changed()).await {
            return;
        }
    }
}
