//! Listening, and saying where: the same for every command that answers others.

use super::exit::Failure;
use super::output;
use tokio::net::TcpListener;

/// Listens on `place`, or says why not.
pub(super) async fn bind(place: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(place).await.map_err(|error| Failure::error(format!("cannot listen on {place}: {error}")))
}

/// Says where a listener is, because with port 0 only it knows: `what` before its URL and `path` behind.
pub(super) fn announce(what: &str, listener: &TcpListener, path: &str) -> Result<(), Failure> {
    let address = listener.local_addr();
    let address = address.map_err(|error| Failure::error(format!("a listener without an address: {error}")))?;
    output::line(&format!("{what} http://{address}{path}"))
}
