//! An entry on its way to the disk and to the other nodes: `cargo bench --bench codec`.

mod load;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use load::batch;
use quorate::limiter::Time;
use quorate::state::Batch;

fn main() {
    divan::main();
}

const REQUESTS: u64 = 64;

#[divan::bench]
fn write(bencher: Bencher<'_, '_>) {
    let batch = batch(Time(1), 0..REQUESTS, "1000/s");
    bencher.counter(ItemsCount::new(REQUESTS)).bench(|| postcard::to_stdvec(black_box(&batch)));
}

#[divan::bench]
fn read(bencher: Bencher<'_, '_>) {
    let bytes = postcard::to_stdvec(&batch(Time(1), 0..REQUESTS, "1000/s")).expect("a plain value");
    bencher.counter(ItemsCount::new(REQUESTS)).bench(|| postcard::from_bytes::<Batch>(black_box(&bytes)));
}
