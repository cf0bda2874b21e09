//! `quorate completions`: what a shell needs to complete our commands.

use super::exit::Failure;
use super::output::{self, Output};
use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `quorate completions`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args, output: Output) -> Result<(), Failure> {
    // Into memory first: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "quorate", &mut script);
    let script = String::from_utf8_lossy(&script);
    if output.is_json() {
        return output::line(&serde_json::json!({ "shell": args.shell.to_string(), "script": script }).to_string());
    }
    output::line(&script)
}
