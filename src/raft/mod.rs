//! Consensus and storage: the adapters between the engine (`openraft`), the disk and the network.
//!
//! Invariants
//! - Nothing outside this module sees the engine or the log.
//! - Everything that leaves the process starts with a format byte of our own.
//! - What was acknowledged is on disk; a disk that errs stops the node.
//!
//! Not here: batching, stamping and answering (`node/`), deciding (`state/`).

mod codec;
mod consensus;
mod decoders;
mod disk;
mod engine_runtime;
mod footing;
mod frame;
mod identity;
mod journal;
mod link;
mod log_store;
mod marker;
mod membership;
mod memory_disk;
mod network;
mod overheard;
mod pace;
mod room;
mod server;
mod snapshot_file;
mod state_store;
mod synced;
mod transport;
mod types;
mod wal;
mod work;

pub(crate) use codec::{decode, encode};
pub use consensus::{Consensus, Progress, Proposed, ReadRefused, Settings, StartError, Status, Surroundings};
pub use decoders::Decoder;
pub use disk::Disk;
pub use engine_runtime::{EngineRuntime, seed_engines};
pub use footing::Footing;
pub use link::CallError;
pub use log_store::LogStore;
pub use marker::MarkerError;
pub use membership::{ChangeError, Membership};
pub use memory_disk::MemoryDisk;
pub use overheard::caller_of;
pub use server::Forwarded;
pub use snapshot_file::SnapshotFile;
pub use state_store::{Observer, StateStore};
pub use transport::{Connection, Tcp, Transport};
pub use types::TypeConfig;
