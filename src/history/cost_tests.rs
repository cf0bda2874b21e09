//! What remembering a permit costs: a measurement, not a test. ADR 0009 has the figures.
//!
//! `cargo test --release --lib what_a_permit_costs -- --ignored --nocapture`

use super::event::{Applied, Event};
use super::store::Bounds;
use super::store_tests::{BOUNDS, Bench, WALL, key};
use super::view::Depth;
use crate::clock::Stopwatch;
use crate::limiter::Time;
use std::sync::Arc;
use std::time::Duration;

const EVENTS: u64 = 84 * EVENTS_PER_SECOND;
const EVENTS_PER_SECOND: u64 = 12_000;
const EVENTS_PER_ENTRY: u64 = 100;
const KEYS: u64 = 10_000;

/// What one second brings. Keys and workers are new in every event, as if it had just been read from the log; the policy is not.
fn second(number: u64, policy: &Arc<str>) -> Vec<Applied> {
    let entry = |entry: u64| {
        let first = number * EVENTS_PER_SECOND + entry * EVENTS_PER_ENTRY;
        let at = Time(first * 1_000_000_000 / EVENTS_PER_SECOND);
        let granted = |permit: u64| {
            let mixed = permit.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let (key, worker) = (key(&format!("customer/{:04}", mixed % KEYS)), format!("worker-{}", mixed % 97));
            let slot = Time(at.0 + mixed % 6 * 1_000_000_000);
            Event::Granted { key, policy: Some(Arc::clone(policy)), permit, slot, cost: 1, worker: Some(worker.into()) }
        };
        let events = (first + 1..=first + EVENTS_PER_ENTRY).map(granted).collect();
        Applied { index: first / EVENTS_PER_ENTRY + 1, at, events }
    };
    (0..EVENTS_PER_SECOND / EVENTS_PER_ENTRY).map(entry).collect()
}

/// CPU time of this thread so far, in nanoseconds.
fn thread_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split_whitespace().next().unwrap().parse().unwrap()
}

/// CPU time of this process so far, with the threads of the store, in nanoseconds; it goes by hundredths of a second.
fn process_cpu() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let field = |number: usize| fields[number].parse::<u64>().unwrap();
    (field(11) + field(12)) * 10_000_000
}

#[test]
#[ignore = "a measurement of minutes, judged by people: the command stands above, the figures in ADR 9"]
fn what_a_permit_costs() {
    for bytes_max in [256 << 20, 2 << 30] {
        let dir = tempfile::tempdir().unwrap();
        let mut bench = Bench::open(dir.path(), Bounds { bytes_max, ..BOUNDS });
        let policy = "api".into();
        let (mut gathering, mut writing, mut tidying) = (0, 0, 0);
        let (mut bytes, mut written_bytes, mut writes, mut since) = (0, 0, 0, Duration::ZERO);
        for number in 0..EVENTS / EVENTS_PER_SECOND {
            let (wall_ms, entries) = (WALL + number * 1_000, second(number, &policy));
            let began = thread_cpu();
            for entry in entries {
                bench.desk.add(entry, wall_ms);
            }
            gathering += thread_cpu() - began;
            let began = process_cpu();
            since += Duration::from_secs(1);
            if bench.desk.is_due(since) {
                bench.store.write(&mut bench.desk).unwrap();
                (since, writes) = (Duration::ZERO, writes + 1);
            }
            let written = process_cpu();
            bench.store.flush().unwrap();
            let now = bench.store.tidy(wall_ms).unwrap();
            (writing, tidying) = (writing + written - began, tidying + process_cpu() - written);
            written_bytes += now.saturating_sub(bytes);
            bytes = now;
        }
        let ns = |cpu: u64| cpu / EVENTS;
        println!(
            "{} ns of CPU an event: gathering {}, {writes} writes {}, tidying {}; {} bytes of file an event, {} volumes of {} MiB",
            ns(gathering + writing + tidying),
            ns(gathering),
            ns(writing),
            ns(tidying),
            written_bytes / EVENTS,
            bench.store.row().volumes.len(),
            bytes_max >> 23,
        );
        let depth = Depth { most: 1_000, seconds: 3_600, minutes: 10_080 };
        let (watch, found) = (Stopwatch::start(), bench.store.key(&key("customer/0007"), &depth, WALL).unwrap());
        println!("a look at a key, {} permits: {:?}", found.permits.len(), watch.elapsed());
        let (watch, found) = (Stopwatch::start(), bench.store.usage(None, 20).unwrap());
        println!("a look at the hour, {} permits: {:?}", found.total.granted, watch.elapsed());
    }
}
