//! How nodes reach one another: connections as pairs of streams, over TCP or over a simulated network.

use super::frame;
use futures::future::BoxFuture;
use std::io;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// A connection between two nodes.
pub struct Connection {
    /// What the other side sends.
    pub input: Box<dyn AsyncRead + Send + Unpin>,
    /// What it gets.
    pub output: Box<dyn AsyncWrite + Send + Unpin>,
}

/// A network, and the place in it where this node is found.
pub trait Transport: Send + Sync + 'static {
    /// Connects to another node's place.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>>;
    /// The next connection that another node makes to this one.
    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>>;
}

/// TCP, with the listener that peers connect to.
#[derive(Debug)]
pub struct Tcp(pub TcpListener);

impl Transport for Tcp {
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, io::Result<Connection>> {
        Box::pin(async move { connection(TcpStream::connect(address).await?) })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move { connection(self.0.accept().await?.0) })
    }
}

fn connection(stream: TcpStream) -> io::Result<Connection> {
    frame::prepare(&stream)?;
    let (input, output) = stream.into_split();
    Ok(Connection { input: Box::new(input), output: Box::new(output) })
}
