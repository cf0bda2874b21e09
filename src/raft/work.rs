//! Work that would hold up others: files, and hashing a whole state.

use std::io;

/// Runs it on a thread for such work, so that the threads of the runtime stay free. A runtime with one thread only, as in the
/// simulation, does it on the spot: there, what happens when must not depend on other threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    use tokio::runtime::{Handle, RuntimeFlavor};
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
