//! `quorate key`: one key as it stands, or as if it had never been used.

use super::exit::Failure;
use super::limit;
use super::output::{self, Output, seconds};
use super::reach::Reach;
use crate::api::{KeyResponse, Kind, Limit, Millis};

/// Arguments of `quorate key`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The key
    key: String,
    /// Forget what was granted: the next permit is free at once, however close that is to the last one
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let client = args.reach.client()?;
    if args.reset {
        let answer = client.reset_key(&args.key).await?;
        let done = if answer.reset { "reset" } else { "nothing to reset" };
        return output.data(&answer, || format!("key {}: {done}", answer.key));
    }
    let key = client.peek(&args.key).await?;
    output.data(&key, || describe(&key))
}

fn describe(key: &KeyResponse) -> String {
    let kind = match &key.limit {
        Limit::Text(_) => Kind::Spacing,
        Limit::Members(members) => members.kind.unwrap_or(Kind::Spacing),
    };
    let mut rows = vec![["key", &key.key].map(str::to_owned), ["limit".to_owned(), limit::shown(&key.limit)]];
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    if let Some(policy) = &key.policy {
        let revision = key.policy_revision.map(|revision| format!(", revision {revision}"));
        row("policy", format!("{policy}{}", revision.unwrap_or_default()));
    }
    row("next slot", soon(key.next_ms.ns().saturating_sub(key.now_ms.ns())));
    // Each only where the kind has it, or where something is left of a limit of another kind.
    if key.reserved > 0 || matches!(kind, Kind::Spacing | Kind::Bucket) {
        row("reserved", key.reserved.to_string());
    }
    if key.in_flight > 0 || kind == Kind::Concurrency {
        row("in flight", in_flight(key));
    }
    row("remaining", key.remaining.to_string());
    row("waiting", key.waiting.to_string());
    row("free", soon(key.retry_after_ms.ns()));
    row("last permit", key.permit.to_string());
    output::aligned(&rows).join("\n")
}

/// `3 of 5`, where the limit says how many there may be.
fn in_flight(key: &KeyResponse) -> String {
    let max = if let Limit::Members(members) = &key.limit { members.max } else { None };
    max.map_or_else(|| key.in_flight.to_string(), |max| format!("{} of {max}", key.in_flight))
}

/// `now`, or `in 5.211 s`.
fn soon(ns: u64) -> String {
    if ns == 0 { "now".to_owned() } else { format!("in {}", seconds(Millis::up_from_ns(ns))) }
}
