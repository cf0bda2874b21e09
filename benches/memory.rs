//! What a key takes in memory, allocator included: `cargo bench --bench memory -- 1000000`.
//!
//! Resident memory before and after, on Linux; no timings.

mod load;

use std::hint::black_box;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let asked = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let keys: u64 = asked.unwrap_or(1_000_000);
    // What is loaded at the first use is not the keys'.
    drop(load::machine(10_000));
    let Some(before) = resident_bytes() else {
        println!("resident memory cannot be read here: nothing is measured");
        return;
    };
    let machine = black_box(load::machine(keys));
    let grown = resident_bytes().unwrap_or(before).saturating_sub(before);
    println!("{} keys of 20 bytes under spacing: {} bytes a key", machine.keys(), grown / keys.max(1));
}

/// The second figure, in pages of 4 KiB.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(text.split_whitespace().nth(1)?.parse::<u64>().ok()? * 4_096)
}
