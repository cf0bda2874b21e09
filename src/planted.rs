//! What tests plant into a node to see that they would notice: bugs, and delays at places where a thread may lose the
//! processor for long.
//!
//! Both are planted for one thread: a simulated cluster has one to itself, and nobody else is touched.
//!
//! Invariant: without debug assertions, so in every release build, nothing here does anything, whatever features are on.

use std::time::Duration;

/// A bug that a test can plant. Each is one that was made somewhere, or nearly made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An append is acknowledged before it is durable.
    AckBeforeDurable,
    /// A node that does not lead decides from its own state.
    FollowerDecides,
    /// A new leader continues from the latest time that it knows, not from the last entry in log order.
    MaximumObservation,
    /// A retry is decided like a new request.
    NoDedup,
    /// An entry takes effect at the time of whoever applies it, not at its stamp.
    StampAtApply,
    /// A stamp counts whoever leads when its entry gets into the log.
    NoLeaderIdCheck,
    /// A worker counts its deadline from the last send, not from the first.
    RetryRestartsDeadline,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AckBeforeDurable,
        Self::FollowerDecides,
        Self::MaximumObservation,
        Self::NoDedup,
        Self::StampAtApply,
        Self::NoLeaderIdCheck,
        Self::RetryRestartsDeadline,
    ];
}

/// A place where a node can be made to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The time for an entry is read, and the entry not proposed yet.
    Stamped,
    /// An entry is applied, and those who asked are not answered yet.
    Applied,
}

#[cfg(all(feature = "planted-bugs", debug_assertions))]
mod live {
    use super::{Bug, Place};
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::time::Duration;

    thread_local! {
        static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
        static STALLS: RefCell<BTreeMap<(Place, u64), Duration>> = const { RefCell::new(BTreeMap::new()) };
    }

    pub(super) fn plant(bug: Option<Bug>) -> bool {
        BUG.set(bug);
        true
    }

    pub(super) fn is(bug: Bug) -> bool {
        BUG.get() == Some(bug)
    }

    pub(super) fn set_stall(place: Place, node: u64, stall: Option<Duration>) {
        STALLS.with_borrow_mut(|stalls| match stall {
            Some(stall) => stalls.insert((place, node), stall),
            None => stalls.remove(&(place, node)),
        });
    }

    pub(super) fn stall_of(place: Place, node: u64) -> Option<Duration> {
        STALLS.with_borrow(|stalls| stalls.get(&(place, node)).copied())
    }
}

#[cfg(not(all(feature = "planted-bugs", debug_assertions)))]
mod live {
    use super::{Bug, Place};
    use std::time::Duration;

    pub(super) const fn plant(_: Option<Bug>) -> bool {
        false
    }

    pub(super) const fn is(_: Bug) -> bool {
        false
    }

    pub(super) const fn set_stall(_: Place, _: u64, _: Option<Duration>) {}

    pub(super) const fn stall_of(_: Place, _: u64) -> Option<Duration> {
        None
    }
}

/// Plants a bug on this thread, or removes it; `false` where this build cannot have one.
pub fn plant(bug: Option<Bug>) -> bool {
    live::plant(bug)
}

/// Whether this bug is planted here.
#[inline]
pub fn is(bug: Bug) -> bool {
    live::is(bug)
}

/// From now on a node on this thread waits that long at a place, or does not.
pub fn set_stall(place: Place, node: u64, stall: Option<Duration>) {
    live::set_stall(place, node, stall);
}

/// Waits if a test wants this node to wait here.
#[inline]
pub(crate) async fn stall(place: Place, node: u64) {
    if let Some(stall) = live::stall_of(place, node) {
        tokio::time::sleep(stall).await;
    }
}
