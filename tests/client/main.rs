//! The Rust client as a worker uses it: against nodes that say what a test tells them to, and against a real cluster.
//!
//! Every test owns its nodes, its ports and its directory, and waits for conditions, not for time.

mod cancelled;
mod degraded;
mod doubt;
mod leaders;
mod leases;
mod outages;
mod patience;
mod retries;
mod scraper;
mod scripted;
mod surface;

#[allow(dead_code, reason = "shared with the tests of whole clusters, which need more of it")]
#[path = "../processes/cluster.rs"]
mod cluster;
#[allow(dead_code, reason = "shared with the tests of the command line, which need more of it")]
#[path = "../cli/fake.rs"]
mod fake;

use std::time::Duration;

/// Only a hang is as slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut tries = cluster::patience_of(PATIENCE);
    while !is_so().await {
        assert!(tries.next().await, "it never came to this: {what}");
    }
}
