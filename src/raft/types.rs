//! The type configuration of the consensus engine, and the bridge between its ids and ours.

use crate::state::{Applied, Batch, LeaderId};
use std::sync::Arc;

openraft::declare_raft_types!(
    /// What the engine is built from. Payloads are shared, because replication reads each one several times.
    pub TypeConfig:
        D = Arc<Batch>,
        R = Applied,
        NodeId = u64,
        Node = openraft::BasicNode,
        AsyncRuntime = super::engine_runtime::EngineRuntime,
);

pub(super) type EngineLeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
pub(super) type LogId = openraft::LogId<EngineLeaderId>;
pub(super) type Vote = openraft::impls::Vote<EngineLeaderId>;
pub(super) type Entry = openraft::alias::EntryOf<TypeConfig>;
pub(super) type Payload = openraft::EntryPayload<Arc<Batch>, u64, openraft::BasicNode>;
pub(super) type Membership = openraft::Membership<u64, openraft::BasicNode>;
pub(super) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;

/// The engine's leader id in our words.
pub(super) const fn leader_id(id: &EngineLeaderId) -> LeaderId {
    LeaderId { term: id.term, node: id.node_id }
}

/// Our leader id in the engine's words.
pub(super) const fn engine_leader_id(id: LeaderId) -> EngineLeaderId {
    EngineLeaderId { term: id.term, node_id: id.node }
}
