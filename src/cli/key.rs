//! `quorate key`: one key as it stands, or as if it had never been used.

use super::exit::Failure;
use super::output::{Output, json_text, seconds};
use super::reach::Reach;
use crate::api::{KeyResponse, Millis};

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
    let key = client.key(&args.key).await?;
    let limit = json_text(&key.limit)?;
    output.data(&key, || describe(&key, &limit))
}

fn describe(key: &KeyResponse, limit: &str) -> String {
    let until = key.next_ms.ns().saturating_sub(key.now_ms.ns());
    let next = if until == 0 { "now".to_owned() } else { format!("in {}", seconds(Millis::up_from_ns(until))) };
    format!(
        "key          {}\nlimit        {}\nnext slot    {next}\nreserved     {}\nlast permit  {}",
        key.key,
        limit.trim_matches('"'),
        key.reserved,
        key.permit
    )
}
