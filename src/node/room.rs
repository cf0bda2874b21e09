//! A leader whose disk is full makes way for a node that has room.

use super::handle::Shared;
use std::sync::Weak;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(100);
/// For the next leader to take over.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// When nobody took over, the next attempt waits: requests wait while one goes on.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Hands leadership over for as long as this node leads without room, until the node is gone.
pub(super) async fn make_way(node: Weak<Shared>) {
    loop {
        let Some(node) = node.upgrade() else { return };
        let leads = node.consensus.status().borrow().leading.is_some();
        let stays = leads && node.consensus.is_full() && node.somebody_has_room() && {
            tracing::warn!("the disk is full: another node should lead");
            !node.hand_over(None, TAKE_OVER).await
        };
        drop(node);
        tokio::time::sleep(if stays { AGAIN_AFTER } else { EVERY }).await;
    }
}

impl Shared {
    /// Whether another voter answers and has room.
    fn somebody_has_room(&self) -> bool {
        let voters = self.consensus.membership().voters;
        voters.into_iter().any(|id| id != self.me && self.reach.report(id).is_some_and(|report| !report.full))
    }
}
