//! `quorate audit`: changes of policies, members and leaders, as a node remembers them.

use super::exit::Failure;
use super::output::{Colour, Output, aligned, paint};
use super::reach::Reach;
use crate::api::{AuditEvent, AuditResponse};

/// Arguments of `quorate audit`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Most events to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let audit = args.reach.client()?.audit(args.limit).await?;
    output.data(&audit, || text(&audit))
}

fn text(audit: &AuditResponse) -> String {
    if audit.events.is_empty() {
        return "no change is remembered on this node\n".to_owned();
    }
    let header = ["RECORDED", "INDEX", "KIND", "WHAT"].map(str::to_owned);
    let rows = audit.events.iter().map(|event| {
        let index = event.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
        [event.recorded.clone(), index, event.kind.clone(), what(event)]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    let mut text = String::new();
    for (at, line) in aligned(&rows).into_iter().enumerate() {
        text.push_str(&if at == 0 { paint(line, Colour::Bold) } else { line });
        text.push('\n');
    }
    text
}

/// Whatever the event says, in one line.
fn what(event: &AuditEvent) -> String {
    let list = |ids: &Vec<u64>| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let parts = [
        event.policy.clone(),
        event.revision.map(|revision| format!("revision {revision}")),
        event.summary.clone(),
        event.key.clone(),
        event.voters.as_ref().map(|voters| format!("voters {}", list(voters))),
        event.learners.as_ref().filter(|ids| !ids.is_empty()).map(|ids| format!("learners {}", list(ids))),
        event.node.map(|node| format!("node {node}")),
        event.term.map(|term| format!("term {term}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines() {
        let text = r#"{"events":[
            {"number":2,"kind":"leader","recorded":"b","node":1,"term":4},
            {"number":1,"kind":"membership","recorded":"a","at_ms":1,"index":7,"voters":[1,2],"learners":[]},
            {"number":0,"kind":"policy_put","recorded":"a","index":6,"policy":"p","revision":1,"summary":"1/6s"}]}"#;
        assert_eq!(
            super::text(&serde_json::from_str(text).unwrap()),
            "RECORDED  INDEX  KIND        WHAT\n\
             b         -      leader      node 1, term 4\n\
             a         7      membership  voters 1,2\n\
             a         6      policy_put  p, revision 1, 1/6s\n"
        );
        assert_eq!(super::text(&AuditResponse { events: Vec::new() }), "no change is remembered on this node\n");
    }
}
