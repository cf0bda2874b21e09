//! Nonsense for everything that reads what others wrote: frames and messages of peers, records, snapshots and whole logs of a
//! disk, limits, and the bodies of requests. No panic, bounded memory, and a node that goes on serving.
//!
//! Half of the inputs are random bytes, the others are good ones with something done to them, which get much farther. The numbers of
//! cases are for every run of the tests; `FUZZ_TIMES=1000 cargo test --release --test fuzz` looks a thousand times longer.

mod bodies;
mod bytes;
mod disk;
mod json;
mod limits;
mod memory;
mod one_node;
