//! `quorate status`: the nodes of the cluster and who leads.

use super::exit::{Exit, Failure};
use super::output::{self, Colour, Output, columns, paint};
use super::reach::Reach;
use crate::api::{ClusterResponse, MemberResponse};
use crate::client::{Client, Error};
use std::io::IsTerminal;
use std::time::Duration;

/// How often `--watch` looks again.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Clears the terminal and goes to its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Arguments of `quorate status`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Look again every second until Ctrl-C
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let client = args.reach.client()?;
    if !args.watch {
        let cluster = look(&client).await?;
        output.data(&cluster, || table(&cluster))?;
        return match cluster.leader {
            Some(_) => Ok(()),
            // The table says so.
            None => Err(Failure::said(Exit::Unavailable)),
        };
    }
    let redraw = !output.is_json() && std::io::stdout().is_terminal();
    loop {
        let clear = if redraw { CLEAR } else { "" };
        match look(&client).await {
            Ok(cluster) => output.data(&cluster, || format!("{clear}{}", table(&cluster)))?,
            // A cluster that is away for a while is what one watches for.
            Err(error) => output::message(&error.to_string()),
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

/// The view of the leader where there is one: it knows best how far the others are. The first answer tells the client who
/// that is, and the second question goes there.
async fn look(client: &Client) -> Result<ClusterResponse, Error> {
    let first = client.cluster().await?;
    match first.leader {
        Some(leader) if leader != first.me => Ok(client.cluster().await.unwrap_or(first)),
        _ => Ok(first),
    }
}

fn table(cluster: &ClusterResponse) -> String {
    let header = ["ID", "ROLE", "CLIENT", "PEER", "LAST LOG", "APPLIED", "REACHABLE"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(header).chain(cluster.nodes.iter().map(row)).collect();
    let mut text = match cluster.leader {
        Some(leader) => format!("node {leader} leads in term {}\n", cluster.term),
        None => format!("{} (term {})\n", paint("no leader", Colour::Red), cluster.term),
    };
    for (at, line) in columns(&rows).into_iter().enumerate() {
        let member = at.checked_sub(1).and_then(|at| cluster.nodes.get(at));
        text.push_str(&match member {
            None => paint(line, Colour::Bold),
            Some(member) if !member.reachable => paint(line, Colour::Red),
            Some(member) if Some(member.id) == cluster.leader => paint(line, Colour::Green),
            Some(_) => line,
        });
        text.push('\n');
    }
    text
}

fn row(node: &MemberResponse) -> [String; 7] {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    [
        node.id.to_string(),
        node.role.clone(),
        node.client.clone().unwrap_or_else(|| "-".to_owned()),
        node.peer.clone(),
        number(node.last_log),
        number(node.applied),
        if node.reachable { "yes" } else { "no" }.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lines_up() {
        let text = r#"{"leader":2,"term":3,"clock_ms":1,"me":1,"cluster_id":"ab","nodes":[
            {"id":1,"client":null,"peer":"a:1","role":"follower","last_log":7,"applied":null,"reachable":false},
            {"id":2,"client":"http://b:2","peer":"b:2","role":"leader","last_log":12,"applied":12,"reachable":true}]}"#;
        let cluster: ClusterResponse = serde_json::from_str(text).unwrap();
        assert_eq!(
            table(&cluster),
            "node 2 leads in term 3\n\
             ID  ROLE      CLIENT      PEER  LAST LOG  APPLIED  REACHABLE\n\
             1   follower  -           a:1   7         -        no\n\
             2   leader    http://b:2  b:2   12        12       yes\n"
        );
    }
}
