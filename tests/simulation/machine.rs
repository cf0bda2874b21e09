//! One simulated machine: the real node on simulated clocks, disk and network, and a door for workers.

use crate::clocks::MachineClocks;
use crate::network::{DOOR_PORT, Gates, PEER_PORT, Peers, host_name};
use crate::record::{Eyes, Record};
use crate::workers::Phase;
use quorate::limiter::Key;
use quorate::limits::DISK_RESERVE_BYTES_DEFAULT;
use quorate::node::{Failure, Handle, Look, Options, Surroundings, Verdict, start_in};
use quorate::raft::{Connection, Disk, MemoryDisk};
use quorate::state::{Acquire, Command};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use turmoil::net::TcpListener;

/// Time between two looks at a node's own state.
const DIGEST_EVERY: Duration = Duration::from_millis(1_500);

/// What a worker asks at the door.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Question {
    Acquire(Acquire),
    /// The answer is held until the slot has come.
    Held(Acquire),
    Look(Key),
}

/// What it hears.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Reply {
    Verdict(Verdict),
    Look(Look),
    Failure(Failure),
}

/// What outlives the processes of a machine.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) id: u64,
    pub(crate) clocks: MachineClocks,
    pub(crate) disk: MemoryDisk,
    pub(crate) gates: Gates,
    pub(crate) record: Record,
    pub(crate) phase: Phase,
}

impl Machine {
    fn options(&self) -> Options {
        let members = (1..=3).map(|id| (id, format!("{}:{PEER_PORT}", host_name(id))));
        Options {
            id: self.id,
            data: PathBuf::from("/data"),
            members: members.collect(),
            join: false,
            cluster: "simulation".to_owned(),
            advertise: format!("http://{}", host_name(self.id)),
            keys_max: 1_000,
            heartbeat_ms: 100,
            election_ms_min: 300,
            election_ms_max: 600,
            request_timeout_ms: 2_000,
            snapshot_every_entries: 25,
            log_keep_entries: 5,
            disk_reserve_bytes: DISK_RESERVE_BYTES_DEFAULT,
        }
    }

    /// One life of its node.
    pub(crate) async fn run(self) -> turmoil::Result {
        let listener = TcpListener::bind(("0.0.0.0", PEER_PORT)).await?;
        let door = TcpListener::bind(("0.0.0.0", DOOR_PORT)).await?;
        let surroundings = Surroundings {
            clocks: Arc::new(self.clocks.clone()),
            disk: Disk::memory(&self.disk),
            transport: Arc::new(Peers { me: self.id, gates: self.gates.clone(), listener }),
            observer: Some(Arc::new(Eyes { node: self.id, record: self.record.clone() })),
        };
        let node = match start_in(&self.options(), surroundings).await {
            Ok(node) => node,
            Err(error) => {
                self.record.violation(format!("node {} does not start: {error}", self.id));
                return Ok(());
            }
        };
        tokio::spawn(look_again_and_again(node.handle(), self.clone()));
        tokio::spawn(self.clone().serve(door, node.handle()));
        let why = node.failed().await;
        self.record.violation(format!("node {} stopped: {why}", self.id));
        Ok(())
    }

    async fn serve(self, door: TcpListener, handle: Handle) {
        loop {
            let Ok(connection) = self.gates.accept(self.id, &door).await else { continue };
            tokio::spawn(serve_one(connection, handle.clone()));
        }
    }
}

async fn look_again_and_again(handle: Handle, machine: Machine) {
    loop {
        let quiet = machine.phase.get() == Phase::QUIET;
        tokio::time::sleep(if quiet { DIGEST_EVERY / 10 } else { DIGEST_EVERY }).await;
        let view = handle.digest().await;
        machine.record.events().digest(machine.id, view.applied, view.digest);
    }
}

/// Answers the questions of one connection, one after the other. A worker that hangs up leaves the line.
async fn serve_one(connection: Connection, handle: Handle) -> io::Result<()> {
    let Connection { mut input, mut output } = connection;
    loop {
        let question: Question = receive(&mut input).await?;
        let reply = tokio::select! {
            biased;
            reply = answer(&handle, question) => reply,
            hung_up = input.read_u8() => return hung_up.map(drop),
        };
        send(&mut output, &reply).await?;
    }
}

async fn answer(handle: &Handle, question: Question) -> Reply {
    let decided = match question {
        Question::Acquire(acquire) => handle.decide(Command::Acquire(acquire)).await,
        Question::Held(acquire) => handle.acquire_held(acquire).await,
        Question::Look(key) => return handle.look(key, None).await.map_or_else(Reply::Failure, Reply::Look),
    };
    decided.map_or_else(Reply::Failure, Reply::Verdict)
}

/// Sends one message behind its length.
pub(crate) async fn send(output: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut bytes = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes().to_vec();
    bytes.extend(body);
    output.write_all(&bytes).await
}

/// Reads one message.
pub(crate) async fn receive<T: for<'de> Deserialize<'de>>(input: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = input.read_u32_le().await?;
    let mut body = vec![0; length as usize];
    input.read_exact(&mut body).await?;
    postcard::from_bytes(&body).map_err(io::Error::other)
}
