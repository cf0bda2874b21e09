//! Consensus as the rest of the program sees it: propose, read, look who leads. The engine stays behind it.

use super::disk::Disk;
use super::footing::Footing;
use super::identity::Identity;
use super::link::CallError;
use super::log_store::LogStore;
use super::marker::{Marker, MarkerError};
use super::membership::finish_changes;
use super::network::Network;
use super::room::Room;
use super::server::{Forwarded, Server};
use super::state_store::{Observer, StateStore};
use super::transport::Transport;
use super::types::{Membership, TypeConfig, engine_leader_id, leader_id};
use super::work::blocking;
use crate::clock::{Clocks, Reading};
use crate::limiter::{Key, Time};
use crate::planted::{self, Bug};
use crate::state::{Applied, Batch, Command, KeyView, LeaderId, Machine, Outcome, Stamp, Stored};
use crate::watch;
use bytes::Bytes;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::RaftError;
use openraft::errors::{
    ClientWriteError, Fatal, ForwardReason, ForwardToLeader, InitializeError, LinearizableReadError,
};
use openraft::impls::ProgressResponder;
use openraft::{BasicNode, Config, Raft, ReadPolicy, ServerState, SnapshotPolicy};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::task::JoinHandle;

/// Entries in one message to a follower.
const APPEND_ENTRIES_MAX: u64 = 128;
/// As many nodes as a small cluster has write their snapshots in turn.
const SNAPSHOT_TURNS: u64 = 3;
/// How often the need for a snapshot is looked at.
const SNAPSHOT_CHECK: Duration = Duration::from_secs(1);

/// What consensus is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This node.
    pub id: u64,
    /// Its directory.
    pub data: PathBuf,
    /// Peer address of every member at the first start; ignored once there is data.
    pub members: BTreeMap<u64, String>,
    /// Belongs to whichever cluster adds it, if the directory is empty.
    pub join: bool,
    /// Name of the cluster: part of its id, so that two clusters never mix.
    pub cluster: String,
    /// Where this node's clients connect.
    pub advertise: String,
    /// Time between two heartbeats.
    pub heartbeat_ms: u64,
    /// Shortest time without a leader before an election.
    pub election_ms_min: u64,
    /// Longest such time; also how long a leader's lease lasts.
    pub election_ms_max: u64,
    /// Entries between two snapshots.
    pub snapshot_every_entries: u64,
    /// Entries kept behind a snapshot, and how far a follower may be behind before it gets a snapshot instead of entries:
    /// some ten seconds of peak load, so that a follower that paused catches up from the log.
    pub log_keep_entries: u64,
    /// Disk space below which nothing more is taken; zero to try until a write fails.
    pub disk_reserve_bytes: u64,
}

/// What a node is surrounded by: all that is not itself.
#[derive(Clone)]
pub struct Surroundings {
    /// The clocks it reads.
    pub clocks: Arc<dyn Clocks>,
    /// The disk its directory is on.
    pub disk: Disk,
    /// The network its peers are in.
    pub transport: Arc<dyn Transport>,
    /// Who sees what it applies.
    pub observer: Option<Arc<dyn Observer>>,
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The directory is not this node's.
    #[error(transparent)]
    Marker(#[from] MarkerError),
    /// The disk says no.
    #[error("cannot open the {what} in {dir}: {error}")]
    Disk {
        /// Which part.
        what: &'static str,
        /// Where.
        dir: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Settings that cannot work.
    #[error("{0}")]
    Settings(String),
    /// The engine refused.
    #[error("cannot start consensus: {0}")]
    Engine(String),
}

/// Who leads, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// The current term.
    pub term: u64,
    /// The leader, if one is known.
    pub leader: Option<u64>,
    /// Set while this node leads: its term of office.
    pub leading: Option<LeaderId>,
    /// `leader`, `follower`, `candidate` or `learner`.
    pub role: &'static str,
    /// Set when consensus has stopped for good.
    pub fatal: Option<String>,
}

/// Log positions of the members, as far as this node knows.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// This node's own last entry.
    pub last_log: Option<u64>,
    /// The last entry this node has applied.
    pub applied: Option<u64>,
    /// On a leader: the last entry known to be on each member.
    pub matched: BTreeMap<u64, Option<u64>>,
    /// All members and their peer addresses.
    pub members: BTreeMap<u64, String>,
}

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposed {
    /// Committed and applied.
    Applied(Applied),
    /// Certainly not in the log: this node does not lead, or not any more.
    NotLeading,
    /// Certainly not in the log: no majority has confirmed this leader of late.
    NoQuorum,
    /// May or may not get committed.
    Unknown(String),
}

/// Why a linearizable read is not possible here and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadRefused {
    /// This node does not lead.
    NotLeading,
    /// It leads, but no majority confirms it.
    NoQuorum,
}

/// A running consensus engine.
pub struct Consensus {
    raft: Raft<TypeConfig, StateStore>,
    log: LogStore,
    state: StateStore,
    network: Network,
    identity: Arc<Identity>,
    room: Room,
    status: watch::Receiver<Status>,
    tasks: Vec<JoinHandle<()>>,
}

impl Consensus {
    /// Opens the directory, joins the cluster or forms it with the other members.
    pub async fn start(
        settings: &Settings,
        surroundings: &Surroundings,
        forwarded: Arc<dyn Forwarded>,
    ) -> Result<Self, StartError> {
        let Surroundings { clocks, disk, transport, observer } = surroundings;
        let cluster = match (settings.join, settings.members.is_empty()) {
            (true, true) => Some(Marker::NO_CLUSTER_YET.to_owned()),
            (false, true) => None,
            (false, false) => Some(cluster_id(&settings.cluster, &settings.members)),
            (true, false) => {
                let why = "a node that joins an existing cluster gets its members from it: leave `members` out";
                return Err(StartError::Settings(why.to_owned()));
            }
        };
        let marker = Marker::open(disk, &settings.data, settings.id, cluster.as_deref())?;
        let on_disk = |what, dir: &Path| {
            let dir = dir.to_owned();
            move |error| StartError::Disk { what, dir, error }
        };
        let identity = Identity::open(disk, &settings.data, marker, settings.advertise.clone())
            .map_err(on_disk("memory of peers", &settings.data))?;
        let identity = Arc::new(identity);
        let (log_dir, snapshot_dir) = (settings.data.join("log"), settings.data.join("snapshots"));
        let log = LogStore::on(disk, &log_dir, Arc::clone(clocks)).map_err(on_disk("log", &log_dir))?;
        identity.check_log(log.is_empty())?;
        let state = StateStore::on(disk, &snapshot_dir, log.clone(), observer.clone())
            .map_err(on_disk("snapshot", &snapshot_dir))?;
        let standing = (log.clone(), state.clone());
        identity.stands_on(move || standing.0.footing(standing.1.applied()));
        let network = Network::new(Arc::clone(transport), Arc::clone(&identity), log.synced());

        let config = Arc::new(engine_config(settings)?);
        let raft = Raft::new(settings.id, config, network.clone(), log.clone(), state.clone())
            .await
            .map_err(|fatal| StartError::Engine(fatal.to_string()))?;
        let room = Room::new(disk, &settings.data, settings.disk_reserve_bytes);
        let server = Server {
            identity: Arc::clone(&identity),
            raft: raft.clone(),
            state: state.clone(),
            room: room.clone(),
            forwarded,
        };
        let (sender, status) = watch::channel(Status::default());
        let tasks = vec![
            tokio::spawn(Arc::new(server).run(Arc::clone(transport))),
            tokio::spawn(follow_status(raft.clone(), sender, network.clone())),
            tokio::spawn(take_snapshots(
                raft.clone(),
                (state.clone(), room.clone()),
                (settings.id, settings.snapshot_every_entries),
            )),
            tokio::spawn(room.clone().watch(state.clone())),
            tokio::spawn(finish_changes(raft.clone())),
        ];
        let mut consensus = Self { raft, log, state, network, identity: Arc::clone(&identity), room, status, tasks };
        consensus.form(settings).await?;
        if consensus.log.is_empty() {
            // One that joins later gets its log from the leader.
            consensus.tasks.push(tokio::spawn(remember_formed(consensus.raft.clone(), identity)));
        } else {
            consensus.log.sync().await.map_err(on_disk("log", &log_dir))?;
            identity.set_formed().map_err(on_disk("marker", &settings.data))?;
        }
        Ok(consensus)
    }

    /// On an empty log: writes the list of members, the same on every node, so that any start order forms one cluster.
    async fn form(&self, settings: &Settings) -> Result<(), StartError> {
        let initialized = self.raft.is_initialized().await.map_err(|fatal| StartError::Engine(fatal.to_string()))?;
        if initialized || settings.members.is_empty() {
            return Ok(());
        }
        let members: BTreeMap<u64, BasicNode> =
            settings.members.iter().map(|(id, address)| (*id, BasicNode::new(address))).collect();
        match self.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(StartError::Engine(error.to_string())),
        }
    }

    pub(super) const fn raft(&self) -> &Raft<TypeConfig, StateStore> {
        &self.raft
    }

    pub(super) const fn network(&self) -> &Network {
        &self.network
    }

    /// Who leads; changes wake those who wait on it.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Log positions.
    pub fn progress(&self) -> Progress {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.iter().flatten().map(|(id, log_id)| (*id, log_id.map(|id| id.index)));
        Progress {
            last_log: metrics.last_log_index,
            applied: metrics.last_applied.map(|id| id.index),
            matched: matched.collect(),
            members: metrics.membership_config.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
        }
    }

    /// The id of the cluster.
    pub fn cluster_id(&self) -> String {
        self.identity.cluster()
    }

    /// Client address of a node, once it is known.
    pub fn client_of(&self, node: u64) -> Option<String> {
        self.identity.client_of(node)
    }

    /// Whether this node's disk has no room for more entries.
    pub fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// Where this node stands for good: what of its vote and its log can never go away.
    pub fn settled(&self) -> Footing {
        self.log.settled(self.state.applied())
    }

    /// A peer has said where it stands for good.
    pub async fn heard(&self, node: u64, footing: Footing) {
        let identity = Arc::clone(&self.identity);
        // Only a runtime that shuts down refuses.
        let _ = blocking(move || {
            identity.heard(node, footing);
            Ok(())
        })
        .await;
    }

    /// Resolves when a peer refuses this node because its directory was wiped or is an old copy.
    pub async fn disowned(&self) -> String {
        self.identity.disowned().await
    }

    /// The stamp that a new leader continues from, with this node's reading that belongs to it.
    pub fn last_stamp(&self) -> Option<(Time, Reading)> {
        self.log.last_stamp()
    }

    /// Puts an entry into the log if `leader` still leads, in the order of the calls. The answer comes when it is applied.
    pub async fn propose(&self, leader: LeaderId, batch: Arc<Batch>) -> impl Future<Output = Proposed> + use<> {
        let (responder, receiver) = ProgressResponder::complete_only();
        let write = self.raft.write(batch).responder(responder);
        let fenced = !planted::is(Bug::NoLeaderIdCheck);
        let sent = if fenced { write.with_leader(engine_leader_id(leader)).await } else { write.await };
        async move {
            if sent.is_err() {
                return Proposed::NotLeading;
            }
            match receiver.await {
                Ok(Ok(response)) => Proposed::Applied(response.data),
                Ok(Err(ClientWriteError::ForwardToLeader(forward))) => not_leading(&forward),
                Ok(Err(error)) => Proposed::Unknown(error.to_string()),
                Err(_) => Proposed::Unknown("consensus stopped before the entry was applied".to_owned()),
            }
        }
    }

    /// Decides from this node's own state and tells nobody: what no node may do, for a planted bug.
    pub(crate) fn decide_alone(&self, command: &Command) -> Option<(Outcome, Time)> {
        let now = self.log.own_time();
        let frozen = self.state.read().machine.freeze();
        let mut copy = Vec::new();
        frozen.write(&mut copy).ok()?;
        let mut machine = Machine::read(&mut copy.as_slice()).ok()?;
        let stamp = Stamp { leader: LeaderId::default(), time: now };
        let batch = Batch { stamp, keys_max: u64::MAX, commands: vec![command.clone()] };
        match machine.apply(stamp.leader, &batch) {
            Applied::Decided { outcomes, .. } => outcomes.into_iter().next().map(|outcome| (outcome, now)),
            _ => None,
        }
    }

    /// Waits until a majority has confirmed that this node leads and everything committed before is applied here.
    pub async fn read_index(&self) -> Result<(), ReadRefused> {
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(ReadRefused::NoQuorum),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                let lost = forward.reason == ForwardReason::LeaseExpired;
                Err(if lost { ReadRefused::NoQuorum } else { ReadRefused::NotLeading })
            }
            Err(RaftError::Fatal(_)) => Err(ReadRefused::NotLeading),
        }
    }

    /// A key in this node's own state. Linearizable only right after [`Self::read_index`].
    pub fn view(&self, key: &Key, now: Time) -> (Time, Option<KeyView>) {
        let replica = self.state.read();
        let now = now.max(replica.machine.now());
        (now, replica.machine.view(key, now))
    }

    /// Stored rules in this node's own state, or one of them, and the revision of the last change of any.
    pub fn policies(&self, name: Option<&str>) -> (Vec<Stored>, u64) {
        let replica = self.state.read();
        let (all, revision) = match name {
            Some(name) => {
                (replica.machine.policy(name).cloned().into_iter().collect(), replica.machine.policy_revision())
            }
            None => replica.machine.policies(),
        };
        (all, revision)
    }

    /// Whether there is more to forget than the last entry took along.
    pub fn has_backlog(&self) -> bool {
        self.state.read().machine.has_backlog()
    }

    /// Cluster time as far as this node has applied.
    pub fn applied_time(&self) -> Time {
        self.state.read().machine.now()
    }

    /// The last applied index, the digest of the state there, and the number of keys.
    pub async fn digest(&self) -> (u64, [u8; 32], usize) {
        let (applied, frozen) = {
            let replica = self.state.read();
            (replica.applied.map_or(0, |id| id.index), replica.machine.freeze())
        };
        let keys = frozen.keys();
        // A panic while hashing would be a defect; an empty digest shows it without taking the node down.
        let digest = blocking(move || Ok(frozen.digest())).await.unwrap_or_default();
        (applied, digest, keys)
    }

    /// Sends a request to another node, outside the log.
    pub async fn forward(&self, target: u64, request: Bytes, within: Duration) -> Result<Bytes, CallError> {
        let Some(address) = self.progress().members.get(&target).cloned() else {
            return Err(CallError::NotSent(format!("node {target} is no member")));
        };
        self.network.peer(target, &address).forward.call(super::frame::Kind::Forward, request, within).await
    }

    /// Asks `to` to take over. It happens in the background, or not.
    pub async fn transfer_leader(&self, to: u64) {
        // A stopped engine has nothing to hand over.
        let _ = self.raft.trigger().transfer_leader(to).await;
    }

    /// Stops and syncs what was written.
    pub async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::error!(%error, "consensus did not stop cleanly");
        }
        for task in &self.tasks {
            task.abort();
        }
        if let Err(error) = self.log.sync().await {
            tracing::error!(%error, "the log could not be synced at the end");
        }
    }
}

impl Drop for Consensus {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

pub(super) fn not_leading(forward: &ForwardToLeader<TypeConfig>) -> Proposed {
    if forward.reason == ForwardReason::LeaseExpired { Proposed::NoQuorum } else { Proposed::NotLeading }
}

/// The same for the same name and members, whatever their order.
fn cluster_id(name: &str, members: &BTreeMap<u64, String>) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    for (id, address) in members {
        hasher.update(format!("\n{id}={address}").as_bytes());
    }
    hasher.finalize().to_hex().chars().take(16).collect()
}

fn engine_config(settings: &Settings) -> Result<Config, StartError> {
    let config = Config {
        cluster_name: settings.cluster.clone(),
        heartbeat_interval: settings.heartbeat_ms,
        election_timeout_min: settings.election_ms_min,
        election_timeout_max: settings.election_ms_max,
        // In a partial partition a leader without a majority falls silent for a while, so that others can elect one.
        quorum_loss_probe_interval: Some(4 * settings.election_ms_max),
        enable_pre_vote: Some(true),
        enable_leader_restore: Some(false),
        // Snapshots are triggered from outside: the engine's own policy purges while it applies.
        snapshot_policy: SnapshotPolicy::Never,
        replication_lag_threshold: settings.log_keep_entries,
        max_in_snapshot_log_to_keep: settings.log_keep_entries,
        purge_batch_size: 64,
        max_payload_entries: APPEND_ENTRIES_MAX,
        install_snapshot_timeout: 600_000,
        ..Config::default()
    };
    config.validate().map_err(|error| StartError::Settings(error.to_string()))
}

/// Publishes who leads whenever that changes, and tells the network who votes.
async fn follow_status(raft: Raft<TypeConfig, StateStore>, sender: watch::Sender<Status>, network: Network) {
    let mut metrics = raft.metrics();
    let mut membership = None;
    loop {
        let status = {
            let metrics = metrics.borrow_watched();
            if membership != Some(*metrics.membership_config.log_id()) {
                membership = Some(*metrics.membership_config.log_id());
                network.set_others(others(metrics.id, metrics.membership_config.membership()));
            }
            let leading = (metrics.state == ServerState::Leader && metrics.vote.committed)
                .then(|| leader_id(&metrics.vote.leader_id));
            Status {
                term: metrics.current_term,
                leader: metrics.current_leader,
                leading,
                role: role(metrics.state),
                fatal: metrics.running_state.as_ref().err().map(fatal_reason),
            }
        };
        sender.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
        if metrics.changed().await.is_err() {
            sender.send_modify(|status| {
                status.fatal.get_or_insert_with(|| "consensus has stopped".to_owned());
            });
            return;
        }
    }
}

/// Who votes besides this node; nobody while it does not vote itself, or while the members change.
fn others(id: u64, membership: &Membership) -> BTreeSet<u64> {
    let mut voters: BTreeSet<_> = membership.voter_ids().collect();
    if membership.get_joint_config().len() > 1 || !voters.remove(&id) {
        voters.clear();
    }
    voters
}

fn fatal_reason(fatal: &Fatal<TypeConfig>) -> String {
    match fatal {
        Fatal::StorageError(error) => format!("the disk cannot be trusted any more: {error}"),
        Fatal::Panicked => "the consensus engine panicked".to_owned(),
        Fatal::Stopped => "consensus was stopped".to_owned(),
    }
}

const fn role(state: ServerState) -> &'static str {
    match state {
        ServerState::Leader => "leader",
        ServerState::Follower => "follower",
        ServerState::Candidate => "candidate",
        ServerState::Learner | ServerState::Shutdown => "learner",
    }
}

/// Waits until the log holds something, and remembers that: from then on an empty log is a lost one.
async fn remember_formed(raft: Raft<TypeConfig, StateStore>, identity: Arc<Identity>) {
    let mut metrics = raft.metrics();
    while metrics.borrow_watched().last_log_index.is_none() {
        if metrics.changed().await.is_err() {
            return;
        }
    }
    if let Err(error) = identity.set_formed() {
        tracing::error!(%error, "the marker of the data directory cannot be written");
    }
}

/// Whether there is room for a snapshot. Where an estimate leaves no doubt that is cheap to tell.
async fn fits(state: &StateStore, room: &Room) -> bool {
    const HEAD_BYTES: u64 = 64 * 1024;
    let about = state.snapshot_bytes().saturating_add(1 << 20);
    room.fits(about.saturating_mul(64))
        || state.snapshot_bytes_exactly().await.is_ok_and(|exactly| room.fits(exactly.saturating_add(HEAD_BYTES)))
}

/// Triggers a snapshot whenever enough has been applied since the last one and there is room for it. Nodes write theirs at
/// different times, so that a majority is never busy with it.
async fn take_snapshots(
    raft: Raft<TypeConfig, StateStore>,
    (state, room): (StateStore, Room),
    (id, every_entries): (u64, u64),
) {
    let turn = id % SNAPSHOT_TURNS;
    let ahead = every_entries / SNAPSHOT_TURNS * turn;
    let round = |index: u64| index.saturating_add(ahead) / every_entries;
    let mut triggered_at = 0;
    loop {
        tokio::time::sleep(SNAPSHOT_CHECK).await;
        let (applied, snapshot) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_applied.map_or(0, |id| id.index), metrics.snapshot.map_or(0, |id| id.index))
        };
        let last = snapshot.max(triggered_at);
        let is_due = round(applied) > round(last) || state.is_due((SNAPSHOT_TURNS + turn, SNAPSHOT_TURNS));
        if applied > last && is_due && fits(&state, &room).await {
            triggered_at = applied;
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
    }
}
