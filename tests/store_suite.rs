//! The engine's own storage suite on the real stores: real files, real syncs.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use quorate::clock::SystemClocks;
use quorate::raft::{LogStore, StateStore, TypeConfig};
use std::sync::Arc;
use tempfile::TempDir;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateStore, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateStore), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let clocks = Arc::new(SystemClocks::new().expect("clocks"));
        let log = LogStore::open(&dir.path().join("log"), clocks).expect("a log");
        let state = StateStore::open(&dir.path().join("snapshots"), log.clone(), None).expect("a state");
        Ok((dir, log, state))
    }
}

#[tokio::test]
async fn the_engines_storage_suite_passes_on_the_real_stores() {
    Suite::test_all(Builder).await.expect("the suite");
}
