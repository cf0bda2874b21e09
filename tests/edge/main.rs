//! The two servers at the edge, `quorate proxy` and `quorate agent`, as real processes in front of a real cluster.
//!
//! Every test owns its cluster, its ports and its directory, and waits for conditions, not for time. Latencies and rates are
//! printed; what is judged is what is promised.

mod agent;
#[expect(dead_code, reason = "the harness does more than these tests need")]
#[path = "../processes/cluster.rs"]
mod cluster;
mod interrupt;
mod kinds;
mod passing;
mod program;
mod proxy;
mod sites;
mod slow;
mod target;
mod worker;
