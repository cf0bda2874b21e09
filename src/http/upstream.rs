//! What answers behind the handlers: the node; in a benchmark a stand-in, and in tests a script in its place.
//!
//! An enum and not a trait, so that nothing is boxed or dispatched on the hot path.

use super::ceiling::{Ceiling, no_node};
use crate::limiter::{Key, Time};
use crate::node::{Change, Changed, ClusterView, DigestView, Failure, Handle, Look, Readiness, Rules, Verdict};
use crate::state::{Acquire, Command};

/// The node, or its stand-in.
#[derive(Debug)]
pub(super) enum Upstream {
    Node(Handle),
    Ceiling(Ceiling),
    #[cfg(test)]
    Script(Box<scripted::Script>),
}

impl Upstream {
    pub(super) async fn decide(&self, command: Command) -> Result<Verdict, Failure> {
        match self {
            Self::Node(handle) => handle.decide(command).await,
            Self::Ceiling(ceiling) => ceiling.decide(&command),
            #[cfg(test)]
            Self::Script(script) => (script.decide)(command).await,
        }
    }

    /// Answers when the slot has come; dropped before that, gives back what it has.
    pub(super) async fn acquire_held(&self, acquire: Acquire) -> Result<Verdict, Failure> {
        match self {
            Self::Node(handle) => handle.acquire_held(acquire).await,
            Self::Ceiling(ceiling) => ceiling.decide(&Command::Acquire(acquire)),
            #[cfg(test)]
            Self::Script(script) => (script.decide)(Command::Acquire(acquire)).await,
        }
    }

    pub(super) async fn look(&self, key: Key, waiter: Option<u128>) -> Result<Look, Failure> {
        match self {
            Self::Node(handle) => handle.look(key, waiter).await,
            Self::Ceiling(_) => Err(no_node()),
            #[cfg(test)]
            Self::Script(script) => (script.look)(key).await,
        }
    }

    pub(super) async fn rules(&self, name: Option<&str>) -> Result<Rules, Failure> {
        match self {
            Self::Node(handle) => handle.rules(name).await,
            Self::Ceiling(_) => Err(no_node()),
            #[cfg(test)]
            Self::Script(script) => (script.rules)(name.map(str::to_owned)).await,
        }
    }

    pub(super) async fn change(&self, change: &Change) -> Result<Changed, Failure> {
        match self {
            Self::Node(handle) => handle.change(change).await,
            Self::Ceiling(_) => Err(no_node()),
            #[cfg(test)]
            Self::Script(script) => (script.change)(change.clone()).await,
        }
    }

    pub(super) fn cluster(&self) -> ClusterView {
        match self {
            Self::Node(handle) => handle.cluster(),
            Self::Ceiling(_) => ClusterView {
                me: 0,
                leader: None,
                term: 0,
                clock: Time::ZERO,
                cluster_id: String::new(),
                nodes: Vec::new(),
            },
            #[cfg(test)]
            Self::Script(script) => script.cluster.clone(),
        }
    }

    pub(super) async fn digest(&self) -> DigestView {
        match self {
            Self::Node(handle) => handle.digest().await,
            Self::Ceiling(_) => DigestView { applied: 0, digest: String::new(), keys: 0 },
            #[cfg(test)]
            Self::Script(script) => (script.digest)().await,
        }
    }

    pub(super) fn leader_elsewhere(&self) -> Option<String> {
        match self {
            Self::Node(handle) => handle.leader_elsewhere(),
            Self::Ceiling(_) => None,
            #[cfg(test)]
            Self::Script(script) => script.leader_elsewhere.clone(),
        }
    }

    pub(super) fn readiness(&self) -> Readiness {
        match self {
            Self::Node(handle) => handle.readiness(),
            Self::Ceiling(_) => Readiness { checks: Vec::new() },
            #[cfg(test)]
            Self::Script(script) => script.readiness.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod scripted {
    //! A node that says what a test wants it to.

    use super::{Change, Changed, ClusterView, Command, DigestView, Failure, Key, Look, Readiness, Rules, Verdict};
    use crate::limiter::{Span, Time};
    use crate::state::{Grant, Outcome, Permit};
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending, ready};
    use std::fmt;

    type Answering<Question, Answer> = Box<dyn Fn(Question) -> BoxFuture<'static, Answer> + Send + Sync>;

    /// By default every acquire is granted at once, and whatever needs a majority never answers.
    pub(in crate::http) struct Script {
        pub(in crate::http) decide: Answering<Command, Result<Verdict, Failure>>,
        pub(in crate::http) rules: Answering<Option<String>, Result<Rules, Failure>>,
        pub(in crate::http) change: Answering<Change, Result<Changed, Failure>>,
        pub(in crate::http) look: Answering<Key, Result<Look, Failure>>,
        pub(in crate::http) digest: Box<dyn Fn() -> BoxFuture<'static, DigestView> + Send + Sync>,
        pub(in crate::http) cluster: ClusterView,
        pub(in crate::http) leader_elsewhere: Option<String>,
        pub(in crate::http) readiness: Readiness,
    }

    /// A permit that is free now.
    pub(in crate::http) fn granted() -> Verdict {
        let first = Permit { number: 7, reserved: 0, remaining: 10, reset_after: Span::from_secs(6), rule: None };
        let grant = Grant {
            slot: Time(1_000_000),
            stamp: Time(1_000_000),
            first,
            more: Vec::new(),
            start_before: None,
            expires_at: None,
            replayed: false,
        };
        Verdict { outcome: Outcome::Granted(grant), at: Time(1_000_000) }
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
                decide: Box::new(|_| ready(Ok(granted())).boxed()),
                rules: Box::new(|_| pending().boxed()),
                change: Box::new(|_| pending().boxed()),
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
