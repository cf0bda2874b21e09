//! Applying entries, which every node does for every permit: `cargo bench --bench apply`.

mod load;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use load::{LEADER, batch, machine};
use quorate::limiter::Time;

fn main() {
    divan::main();
}

/// Entries of so many requests, over ten thousand keys and over a million.
#[divan::bench(args = [(1, 10_000), (64, 10_000), (1_024, 10_000), (64, 1_000_000)])]
fn entry(bencher: Bencher<'_, '_>, (requests, keys): (u64, u64)) {
    let mut machine = machine(keys);
    let mut time = 1_000_000_000;
    let mut next = 7;
    bencher
        .counter(ItemsCount::new(requests))
        .with_inputs(|| {
            time += 1_000_000;
            let numbers = (0..requests).map(|_| {
                next = (next * 6_364_136_223 + 1_442_695) % keys;
                next
            });
            batch(Time(time), numbers, "1000/s")
        })
        .bench_local_values(|batch| black_box(machine.apply(LEADER, &batch)));
}

/// The same for keys that are idle again by the next entry: every permit puts one into memory, and every entry forgets them.
#[divan::bench(args = [64, 1_024])]
fn passing(bencher: Bencher<'_, '_>, requests: u64) {
    let mut machine = machine(0);
    let mut time = 1_000_000_000;
    let mut next = 7;
    bencher
        .counter(ItemsCount::new(requests))
        .with_inputs(|| {
            time += 2_000_000;
            let numbers = (0..requests).map(|_| {
                next = (next * 6_364_136_223 + 1_442_695) % 10_000;
                next
            });
            batch(Time(time), numbers, "1000000/s")
        })
        .bench_local_values(|batch| black_box(machine.apply(LEADER, &batch)));
}
