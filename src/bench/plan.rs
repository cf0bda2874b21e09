//! What one measurement is of.

use super::dialect::Dialect;
use std::net::SocketAddr;
use std::time::Duration;

/// A load on some addresses.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whom to ask; connections take turns.
    pub addresses: Vec<SocketAddr>,
    /// How to ask.
    pub dialect: Dialect,
    /// Connections, each with one request at a time.
    pub connections: usize,
    /// Threads that drive them.
    pub threads: usize,
    /// Requests a second over all connections; `None` asks as fast as answers come.
    pub rate: Option<f64>,
    /// Different keys.
    pub keys: u64,
    /// How many of a hundred requests go to one of them.
    pub hot_percent: u64,
    /// What clusters of this program are asked for as `limit`, in JSON.
    pub limit: String,
    /// Not counted, at the beginning.
    pub warm_up: Duration,
    /// Counted.
    pub duration: Duration,
}

impl Plan {
    /// The key of the next request: a draw from a sequence that is the same in every run.
    pub(super) fn key(&self, random: &mut u64) -> u64 {
        // xorshift64*: good enough to spread keys, and costs nothing.
        *random ^= *random >> 12;
        *random ^= *random << 25;
        *random ^= *random >> 27;
        let draw = random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16;
        if self.hot_percent > 0 && draw % 100 < self.hot_percent { 0 } else { (draw / 100) % self.keys }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_and_the_hot_one_gets_its_share() {
        let plan = |keys, hot_percent| Plan {
            addresses: Vec::new(),
            dialect: Dialect::Throttle,
            connections: 1,
            threads: 1,
            rate: None,
            keys,
            hot_percent,
            limit: String::new(),
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
        };
        let draws = |plan: &Plan| {
            let mut random = 7;
            (0..10_000).map(|_| plan.key(&mut random)).collect::<Vec<_>>()
        };
        let even = draws(&plan(10, 0));
        for key in 0..10 {
            let times = even.iter().filter(|drawn| **drawn == key).count();
            assert!((800..1_200).contains(&times), "key {key}: {times}");
        }
        let hot = draws(&plan(1_000, 90)).into_iter().filter(|key| *key == 0).count();
        assert!((8_800..9_300).contains(&hot), "{hot}");
        assert!(draws(&plan(1, 0)).into_iter().all(|key| key == 0));
        assert!(draws(&plan(1_000, 100)).into_iter().all(|key| key == 0));
    }
}
