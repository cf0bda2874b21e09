//! `quorate chaos`, bounded: real processes, several faults at once, and a verdict, in every run of the tests.
//!
//! `SEED=7 cargo test --test chaos` runs another history; a failure prints the seed it happened with, and where its histories
//! and logs are kept.

mod interrupted;
mod kept;
mod mixed;
mod power;
