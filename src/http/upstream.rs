//! What answers behind the handlers: the node, and in tests a script in its place.
//!
//! An enum and not a trait: in the program there is exactly one variant, so nothing is boxed or dispatched on the hot path.

use crate::limiter::Key;
use crate::node::{ClusterView, DigestView, Failure, Handle, Look, Readiness, Verdict};
use crate::state::Acquire;

/// The node, or its stand-in.
#[derive(Debug)]
pub(super) enum Upstream {
    Node(Handle),
    #[cfg(test)]
    Script(scripted::Script),
}

impl Upstream {
    pub(super) async fn acquire(&self, acquire: Acquire) -> Result<Verdict, Failure> {
        match self {
            Self::Node(handle) => handle.acquire(acquire).await,
            #[cfg(test)]
            Self::Script(script) => (script.acquire)(acquire).await,
        }
    }

    pub(super) async fn look(&self, key: Key) -> Result<Look, Failure> {
        match self {
            Self::Node(handle) => handle.look(key).await,
            #[cfg(test)]
            Self::Script(script) => (script.look)(key).await,
        }
    }

    pub(super) fn cluster(&self) -> ClusterView {
        match self {
            Self::Node(handle) => handle.cluster(),
            #[cfg(test)]
            Self::Script(script) => script.cluster.clone(),
        }
    }

    pub(super) async fn digest(&self) -> DigestView {
        match self {
            Self::Node(handle) => handle.digest().await,
            #[cfg(test)]
            Self::Script(script) => (script.digest)().await,
        }
    }

    pub(super) fn leader_elsewhere(&self) -> Option<String> {
        match self {
            Self::Node(handle) => handle.leader_elsewhere(),
            #[cfg(test)]
            Self::Script(script) => script.leader_elsewhere.clone(),
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        match self {
            Self::Node(handle) => handle.readiness(),
            #[cfg(test)]
            Self::Script(script) => script.readiness.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod scripted {
    //! A node that says what a test wants it to.

    use super::{Acquire, ClusterView, DigestView, Failure, Key, Look, Readiness, Verdict};
    use crate::limiter::{Span, Time};
    use crate::state::{Grant, Outcome};
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending, ready};
    use std::fmt;

    type Answering<Question, Answer> = Box<dyn Fn(Question) -> BoxFuture<'static, Answer> + Send + Sync>;

    /// By default every acquire is granted at once, and whatever needs a majority never answers.
    pub(in crate::http) struct Script {
        pub(in crate::http) acquire: Answering<Acquire, Result<Verdict, Failure>>,
        pub(in crate::http) look: Answering<Key, Result<Look, Failure>>,
        pub(in crate::http) digest: Box<dyn Fn() -> BoxFuture<'static, DigestView> + Send + Sync>,
        pub(in crate::http) cluster: ClusterView,
        pub(in crate::http) leader_elsewhere: Option<String>,
        pub(in crate::http) readiness: Readiness,
    }

    /// A permit that is free now.
    pub(in crate::http) fn granted() -> Verdict {
        let grant = Grant {
            permit: 7,
            slot: Time(1_000_000),
            stamp: Time(1_000_000),
            reserved: 0,
            start_before: None,
            expires_at: None,
            replayed: false,
        };
        Verdict { outcome: Outcome::Granted(grant), wait: Span::ZERO, expired: false }
    }

    impl Default for Script {
        fn default() -> Self {
            let cluster = ClusterView {
                me: 1,
                leader: Some(1),
                term: 1,
                clock: Time::ZERO,
                cluster_id: String::new(),
                nodes: Vec::new(),
            };
            Self {
                acquire: Box::new(|_| ready(Ok(granted())).boxed()),
                look: Box::new(|_| pending().boxed()),
                digest: Box::new(|| pending().boxed()),
                cluster,
                leader_elsewhere: None,
                readiness: Readiness { checks: Vec::new() },
            }
        }
    }

    impl fmt::Debug for Script {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Script").finish_non_exhaustive()
        }
    }
}
