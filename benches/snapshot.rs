//! Snapshots of a hundred thousand keys: `cargo bench --bench snapshot`.
//!
//! Freezing is all that happens under the lock; writing goes on beside applied entries.

mod load;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use load::machine;
use quorate::state::Machine;

fn main() {
    divan::main();
}

const KEYS: u64 = 100_000;

#[divan::bench]
fn freeze(bencher: Bencher<'_, '_>) {
    let machine = machine(KEYS);
    bencher.bench_local(|| black_box(machine.freeze()));
}

#[divan::bench]
fn write(bencher: Bencher<'_, '_>) {
    let frozen = machine(KEYS).freeze();
    bencher.counter(ItemsCount::new(KEYS)).bench_local(|| {
        let mut bytes = Vec::new();
        frozen.write(&mut bytes).expect("memory takes everything");
        bytes
    });
}

#[divan::bench]
fn read(bencher: Bencher<'_, '_>) {
    let mut bytes = Vec::new();
    machine(KEYS).freeze().write(&mut bytes).expect("memory takes everything");
    bencher.counter(ItemsCount::new(KEYS)).bench_local(|| Machine::read(&mut black_box(bytes.as_slice())));
}
