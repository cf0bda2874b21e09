//! A running node and its [`Handle`].

mod handle;

pub use handle::{ClusterView, DigestView, Failure, Handle, Look, MemberView, Readiness, Refusal, Verdict};
