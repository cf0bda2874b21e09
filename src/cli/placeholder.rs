//! Stands in for `http::serve` until it is merged; then this file goes and `node.rs` uses that.

pub(super) mod http {
    use crate::node::Handle;
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[expect(dead_code, reason = "nothing reads them yet")]
    pub(in crate::cli) struct Options {
        pub(in crate::cli) connections_max: usize,
        pub(in crate::cli) header_timeout: Duration,
        pub(in crate::cli) body_timeout: Duration,
        pub(in crate::cli) request_timeout: Duration,
        pub(in crate::cli) shutdown_grace: Duration,
    }

    pub(in crate::cli) async fn serve(
        _listener: TcpListener,
        _: Handle,
        _: Options,
        shutdown: impl Future<Output = ()>,
    ) {
        shutdown.await;
    }
}
