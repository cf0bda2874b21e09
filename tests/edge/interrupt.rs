//! `quorate acquire` that is interrupted before its slot has come.

use super::cluster::{Cluster, QUORATE, patience};
use super::proxy::until_reserved;
use std::process::{Command, Stdio};

/// "A wait that is cancelled (… Ctrl-C) gives its permit back."
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_gives_the_slot_back() {
    let cluster = Cluster::start(1).await;
    let acquire = || {
        let mut command = Command::new(QUORATE);
        command.args(["acquire", "k", "--limit", "1/10m", "--nodes", &cluster.urls().join(","), "--", "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
    };
    assert!(acquire().wait().expect("wait").success(), "the first one starts at once");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut waiting = acquire();
        until_reserved(&cluster, "k", 1).await;
        let pid = waiting.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &pid]).status().expect("kill").success());
        let mut tries = patience();
        let status = loop {
            if let Some(status) = waiting.try_wait().expect("wait") {
                break status;
            }
            assert!(tries.next().await, "it does not end");
        };
        assert_eq!(status.code(), Some(code), "SIG{signal}");
        until_reserved(&cluster, "k", 0).await;
    }
}
