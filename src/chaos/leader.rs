//! Who leads, as the nodes themselves say, and when that changed.

use super::cluster::Cluster;
use super::ticks::now_ns;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often every node is asked.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// A change of leaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct Change {
    /// When it was seen.
    pub at_ns: u64,
    /// The term.
    pub term: u64,
    /// Who leads in it.
    pub leader: u64,
}

/// A leader that has not been heard of for so long may be none any more.
const FRESH_NS: u64 = 400_000_000;

/// What is known of leaders. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Leaders(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    changes: Vec<Change>,
    heard_ns: u64,
}

impl Leaders {
    /// Starts looking, for as long as the runtime lives.
    pub(super) fn watch(cluster: &Cluster) -> Self {
        let leaders = Self::default();
        for at in 0..cluster.nodes.len() {
            let (cluster, leaders) = (cluster.clone(), leaders.clone());
            tokio::spawn(async move {
                loop {
                    let node = &cluster.nodes[at];
                    // Only a leader's own word counts: others may not have heard of its end.
                    if let Some(view) = cluster.view(node).await
                        && view.leader == Some(view.me)
                    {
                        leaders.saw(view.term, view.me);
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            });
        }
        leaders
    }

    /// The leader of the latest term.
    pub(super) fn current(&self) -> Option<u64> {
        self.lock().changes.last().map(|change| change.leader)
    }

    /// Whether somebody has just said that it leads.
    pub(super) fn somebody_leads(&self) -> bool {
        self.lock().heard_ns + FRESH_NS > now_ns()
    }

    pub(super) fn changes(&self) -> Vec<Change> {
        self.lock().changes.clone()
    }

    fn saw(&self, term: u64, leader: u64) {
        let mut known = self.lock();
        known.heard_ns = now_ns();
        let changes = &mut known.changes;
        if changes.last().is_none_or(|last| (last.term, last.leader) != (term, leader) && last.term <= term) {
            changes.push(Change { at_ns: now_ns(), term, leader });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
