//! Stands in for `node::start` and `http::serve` until they are merged; then this file goes and `node.rs` uses those.

pub(super) mod node {
    use crate::node::Handle;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[expect(dead_code, reason = "nothing reads them yet")]
    pub(in crate::cli) struct Options {
        pub(in crate::cli) id: u64,
        pub(in crate::cli) data: PathBuf,
        pub(in crate::cli) members: BTreeMap<u64, String>,
        pub(in crate::cli) cluster: String,
        pub(in crate::cli) advertise: String,
        pub(in crate::cli) keys_max: u64,
        pub(in crate::cli) heartbeat_ms: u64,
        pub(in crate::cli) election_ms_min: u64,
        pub(in crate::cli) election_ms_max: u64,
        pub(in crate::cli) request_timeout_ms: u64,
        pub(in crate::cli) snapshot_every_entries: u64,
    }

    pub(in crate::cli) struct Node;

    #[expect(clippy::unused_async, reason = "as the real one")]
    pub(in crate::cli) async fn start(_: Options, _: TcpListener) -> Result<Node, std::io::Error> {
        Ok(Node)
    }

    #[expect(clippy::unused_self, clippy::unused_async, reason = "as the real one")]
    impl Node {
        pub(in crate::cli) fn handle(&self) -> Handle {
            Handle {}
        }
        pub(in crate::cli) async fn failed(&self) -> String {
            std::future::pending().await
        }
        pub(in crate::cli) fn begin_shutdown(&self) {}
        pub(in crate::cli) async fn shutdown(self, _: Duration) {}
    }
}

pub(super) mod http {
    use crate::node::Handle;
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[expect(dead_code, reason = "nothing reads them yet")]
    pub(in crate::cli) struct Options {
        pub(in crate::cli) connections_max: usize,
        pub(in crate::cli) header_timeout: Duration,
        pub(in crate::cli) body_timeout: Duration,
        pub(in crate::cli) drain: Duration,
    }

    pub(in crate::cli) async fn serve(
        _listener: TcpListener,
        _: Handle,
        _: Options,
        shutdown: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        shutdown.await;
        Ok(())
    }
}
