//! Work that would hold up others: files, and hashing a whole state.

use super::engine_runtime;
use std::io;

/// Runs it on a thread for such work, so that the threads of the runtime stay free. In a simulation it happens on the spot:
/// there, what happens when must not depend on other threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if engine_runtime::is_simulated() {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
