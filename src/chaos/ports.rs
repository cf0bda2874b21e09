//! Ports for nodes that are killed and come back: below the range that outgoing connections draw from, and nobody else's.
//!
//! A node that is down leaves its ports free, and a node of another run that took them would be spoken to in its place. So ports
//! come in blocks: whoever listens on the first port of a block, as this process does to its end, has the others.

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

const FIRST: u16 = 12_000;
const BLOCK: u16 = 32;
const BLOCKS: u16 = 500;

/// The blocks of this process, held by their first ports, and what of the newest is left.
struct Held {
    guards: Vec<TcpListener>,
    left: std::ops::Range<u16>,
}

static HELD: Mutex<Held> = Mutex::new(Held { guards: Vec::new(), left: 0..0 });

/// A port on loopback that no other process gets from here, and that nobody listens on now.
pub fn free_port() -> u16 {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Held { guards, left } = &mut *held;
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if let Some(port) = left.by_ref().find(free) {
            return port;
        }
        // Not all begin to look at the same place.
        let start = u16::try_from(std::process::id() % u32::from(BLOCKS)).unwrap_or(0);
        let mut firsts = (0..BLOCKS).map(|block| FIRST + (start + block) % BLOCKS * BLOCK);
        let claimed = firsts.find_map(|first| Some((first, TcpListener::bind(("127.0.0.1", first)).ok()?)));
        let (first, guard) = claimed.expect("a block of ports that is nobody's");
        guards.push(guard);
        *left = first + 1..first + BLOCK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ports_are_given_once_and_their_block_is_held() {
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 100);
        for port in ports {
            let first = FIRST + (port - FIRST) / BLOCK * BLOCK;
            assert!(TcpListener::bind(("127.0.0.1", first)).is_err(), "another process could have {port} as well");
            assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "a node could not have {port}");
        }
    }
}
