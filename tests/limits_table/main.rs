//! `docs/LIMITS.md` against the code: its table, its examples, its promises and its picture.
//!
//! - `document.rs` reads the limits out of the document, so that it cannot say one thing and the tests another
//! - `stage.rs` is a state machine with a clock that a test sets
//! - `table.rs` has a scenario for every line of the table "What you had"
//! - `promises.rs` tries what each kind promises on random requests; `changes.rs` what happens when a limit changes
//! - `over_http.rs` sends every limit of the document to a real node
//! - `picture.rs` draws the picture from real runs: `REWRITE=1 cargo test --test limits_table picture`

mod changes;
mod document;
mod over_http;
mod picture;
mod promises;
mod stage;
mod table;
