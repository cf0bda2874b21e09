//! Work that would hold up others: files, and hashing a whole state.

use super::engine_runtime;
use crate::priority;
use std::io;
use std::thread;
use tokio::sync::oneshot;

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

/// Like [`blocking`], for what nobody waits for: on a thread of its own that stands back for the others.
pub(super) async fn aside<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if engine_runtime::is_simulated() {
        return work();
    }
    let (done, result) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        priority::stand_back();
        // Whoever asked may have gone.
        let _ = done.send(work());
    })?;
    result.await.map_err(io::Error::other)?
}
