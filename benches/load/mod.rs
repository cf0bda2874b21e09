//! What benchmarks apply: batches of requests for permits over many keys.

#![allow(dead_code, reason = "each benchmark uses some of it")]

use quorate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
use quorate::state::{Acquire, Batch, Command, LeaderId, Machine, Stamp};

pub(crate) const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

/// Keys have names of twenty bytes.
pub(crate) fn key(number: u64) -> Key {
    Key::new(&format!("bench-key-{number:010}")).expect("a key")
}

/// A batch of requests for one permit of each of these keys.
pub(crate) fn batch(time: Time, keys: impl Iterator<Item = u64>, rate: &str) -> Batch {
    let limit = Limit::Spacing(Spacing::new(rate.parse().expect("a rate"), Span::ZERO, 100).expect("a limit"));
    let commands = keys.map(|number| Command::Acquire(Acquire::one(key(number), Some(limit), 1, Terms::default())));
    Batch { stamp: Stamp { leader: LEADER, time }, keys_max: u64::MAX, commands: commands.collect() }
}

/// A machine that holds this many keys, each under a limit that keeps it for an hour.
pub(crate) fn machine(keys: u64) -> Machine {
    let mut machine = Machine::default();
    for first in (0..keys).step_by(1_000) {
        machine.apply(LEADER, &batch(Time(first + 1), first..(first + 1_000).min(keys), "1/1h"));
    }
    machine
}
