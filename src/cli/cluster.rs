//! `quorate cluster`: adds and removes nodes, and hands leadership over.

use super::exit::Failure;
use super::output::{Output, message};
use super::reach::Reach;
use crate::api::AddNodeResponse;
use crate::clock::{Deadline, Stopwatch};
use std::time::Duration;

/// How often a person is told how far a new node is.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// What `quorate cluster` does.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Add a node that was started with `--join true`, and wait until it has caught up and votes
    Add(AddArgs),
    /// Remove a node; one that leads hands leadership over first
    Remove(RemoveArgs),
    /// Hand leadership over
    Transfer(TransferArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct AddArgs {
    /// Its id and where the other nodes reach it: 4=host:port
    #[arg(value_name = "ID=HOST:PORT", value_parser = id_and_peer)]
    node: (u64, String),
    /// It gets the log and no vote
    #[arg(long)]
    learner: bool,
    /// Give up when it has not caught up after this many seconds; it stays a learner then
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    within: u64,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    /// Its id
    id: u64,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, clap::Args)]
pub(super) struct TransferArgs {
    /// To this node [default: the one that is farthest]
    id: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

fn id_and_peer(text: &str) -> Result<(u64, String), String> {
    let wrong = || "has to be ID=HOST:PORT, such as 4=10.0.0.4:7101".to_owned();
    let (id, peer) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.trim().parse().map_err(|_| wrong())?, peer.trim().to_owned()))
}

pub(super) async fn run(command: &Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add(args, output).await,
        Command::Remove(args) => {
            let answer = args.reach.client()?.remove_node(args.id).await?;
            output.data(&answer, || {
                let id = answer.id;
                if answer.removed {
                    format!("node {id} is removed; stop it, and give its successor another id")
                } else {
                    format!("node {id} does not belong to the cluster")
                }
            })
        }
        Command::Transfer(args) => {
            let answer = args.reach.client()?.transfer(args.id).await?;
            output.data(&answer, || format!("node {} leads, in term {}", answer.leader, answer.term))
        }
    }
}

async fn add(args: &AddArgs, output: Output) -> Result<(), Failure> {
    let client = args.reach.client()?;
    let (id, peer) = (args.node.0, &args.node.1);
    let until = Deadline::after(Duration::from_secs(args.within));
    let mut said: Option<Stopwatch> = None;
    loop {
        let answer = client.add_node(id, peer, !args.learner).await?;
        let Some(behind) = answer.behind else {
            return output.data(&answer, || describe(&answer));
        };
        if until.passed() {
            return Err(Failure::error(format!(
                "node {id} is still {behind} entries behind after {} s; it stays a learner: run this again to go on",
                args.within
            )));
        }
        if said.as_ref().is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            message(&format!("node {id} catches up: {behind} entries behind"));
            said = Some(Stopwatch::start());
        }
    }
}

fn describe(answer: &AddNodeResponse) -> String {
    let AddNodeResponse { id, peer, role, changed, .. } = answer;
    let what = if role == "voter" { "votes" } else { "gets the log and has no vote" };
    if *changed { format!("node {id} at {peer} {what}") } else { format!("node {id} at {peer} {what}, as before") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_an_id_and_an_address() {
        assert_eq!(id_and_peer("4=[::1]:7101"), Ok((4, "[::1]:7101".to_owned())));
        for wrong in ["4", "=a:1", "x=a:1", "-1=a:1", "4:a=1"] {
            assert!(id_and_peer(wrong).is_err_and(|error| error.contains("4=10.0.0.4:7101")), "{wrong}");
        }
    }
}
