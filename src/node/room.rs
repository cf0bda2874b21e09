//! A leader whose disk is full makes way for a node that has room, and one whose followers' disks are full takes nothing more.

use super::handle::Shared;
use std::sync::Weak;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// For the next leader to take over.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// When nobody took over, the next attempt waits: requests wait while one goes on.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Looks again and again, until the node is gone; hands leadership over for as long as this node leads without room.
pub(super) async fn make_way(node: Weak<Shared>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let leads = node.consensus.status().borrow().leading.is_some();
        node.proposer.set_full(leads && !node.majority_has_room());
        let stays = leads && node.consensus.is_full() && node.somebody_has_room() && {
            tracing::warn!("the disk is full: another node should lead");
            !node.hand_over(None, TAKE_OVER).await
        };
        drop(node);
        tokio::time::sleep(if stays { AGAIN_AFTER } else { EVERY }).await;
    }
}

impl Shared {
    /// Whether enough voters have room, as far as is known: those who do not answer are another matter.
    fn majority_has_room(&self) -> bool {
        let voters = self.consensus.membership().voters;
        let is_full = |id: &u64| {
            if *id == self.me {
                self.consensus.is_full()
            } else {
                self.reach.report(*id).is_some_and(|report| report.full)
            }
        };
        let full = voters.iter().filter(|id| is_full(id)).count();
        voters.is_empty() || full * 2 < voters.len()
    }

    /// Whether another voter answers and has room.
    fn somebody_has_room(&self) -> bool {
        let voters = self.consensus.membership().voters;
        voters.into_iter().any(|id| id != self.me && self.reach.report(id).is_some_and(|report| !report.full))
    }
}
