//! Which peers answer, and what they say of themselves: for people and probes, never for decisions about permits. How far their
//! disks have got is passed on to those who check papers.

use super::forward::{Question, Reply, Report};
use crate::clock::Stopwatch;
use crate::raft::{self, Consensus};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Time between two questions to a peer, and how long an answer may take.
const EVERY: Duration = Duration::from_millis(500);
const WITHIN: Duration = Duration::from_secs(1);
/// A peer whose last answer is older than this counts as out of reach.
const FRESH: Duration = Duration::from_secs(2);

/// The last word of every peer.
#[derive(Debug, Default)]
pub(super) struct Reach {
    reports: Mutex<BTreeMap<u64, (Stopwatch, Report)>>,
}

impl Reach {
    /// Asks all peers again and again, until consensus is gone.
    pub(super) fn start(me: u64, consensus: &Arc<Consensus>) -> Arc<Self> {
        let reach = Arc::new(Self::default());
        tokio::spawn(Arc::clone(&reach).run(me, Arc::downgrade(consensus)));
        reach
    }

    /// What a peer last said, if that was lately.
    pub(super) fn report(&self, node: u64) -> Option<Report> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.get(&node).filter(|(since, _)| since.elapsed() < FRESH).map(|(_, report)| report.clone())
    }

    async fn run(self: Arc<Self>, me: u64, consensus: Weak<Consensus>) {
        loop {
            let Some(consensus) = consensus.upgrade() else { return };
            let peers = consensus.progress().members.into_keys().filter(|id| *id != me);
            let asked = peers.map(|peer| {
                let (reach, consensus) = (Arc::clone(&self), Arc::clone(&consensus));
                async move { reach.ask(&consensus, peer).await }
            });
            futures::future::join_all(asked).await;
            drop(consensus);
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn ask(&self, consensus: &Consensus, peer: u64) {
        let question = raft::encode(&Question::Report);
        let Ok(answer) = consensus.forward(peer, question.into(), WITHIN).await else { return };
        if let Ok(Reply::Report(report)) = raft::decode(&answer) {
            let settled = report.settled;
            {
                let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
                reports.insert(peer, (Stopwatch::start(), report));
            }
            consensus.heard(peer, settled).await;
        }
    }
}
