//! The replicated state machine against its promises: random logs, a naive oracle, and each promise as a property.
//!
//! `PROPTEST_CASES=100000 cargo test --test state_model` looks longer. A failure prints the shrunk log and leaves its seed
//! in `tests/state_model.regressions`, which is run first from then on.
//!
//! - `oracle.rs` decides from the lists of all grants; `past.rs` decides for one key
//! - `script.rs` makes logs that meet the instants where things change
//! - `ledger.rs` runs a log and lists what was decided
//! - the others are the properties

mod bounds;
mod changes;
mod decisions;
mod kinds;
mod ledger;
mod lost_time;
mod oracle;
mod past;
mod play;
mod release;
mod retries;
mod script;
mod several;
mod snapshots;
mod together;

use proptest::test_runner::{Config, FileFailurePersistence};

/// `cases` unless the environment says otherwise.
fn config(cases: u32) -> Config {
    let from_environment = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { from_environment.cases } else { cases };
    let persistence = FileFailurePersistence::Direct("tests/state_model.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..from_environment }
}
