//! The `quorate` program as a script sees it: arguments in, streams and exit codes out. No cluster is needed here; where a
//! node has to answer, a fake one does, on a port of its own.

mod acquire;
mod bench;
mod config;
mod fake;
mod history;
mod key;
mod lease;
mod policy;
mod policy_client;
mod release;
mod rules;
mod up;
mod usage;

use std::path::PathBuf;
use std::process::{Command, Output};

/// The program, with nothing of ours in its environment but what a test puts there.
fn quorate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// What a run left behind.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    Ran {
        code: status.code().expect("it exits by itself"),
        out: String::from_utf8(stdout).expect("UTF-8"),
        err: String::from_utf8(stderr).expect("UTF-8"),
    }
}

/// The directory of the cluster's example files.
fn cluster(file: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cluster").join(file).display().to_string()
}
