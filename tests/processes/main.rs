//! Real processes: three nodes as an operator starts them, workers on all of them, and everything that can be done to a
//! process from outside.
//!
//! Every test owns its cluster, its ports and its directory, and waits for conditions, not for time.

mod clocks;
mod cluster;
mod damage;
mod disk;
mod flood;
mod full;
mod hostile;
mod install;
mod kills;
mod members;
mod policies;
mod quorum;
mod soak;
mod stops;
mod storage;
mod waiting;
mod workers;
