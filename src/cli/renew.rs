//! `quorate renew`: extends the lease of a permit.

use super::exit::Failure;
use super::output::{Output, seconds_down};
use super::reach::Reach;

/// Arguments of `quorate renew`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The key the permit was granted for
    key: String,
    /// The permit, as acquire numbered it
    permit: u64,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let answer = args.reach.client()?.renew(&args.key, args.permit).await?;
    output.data(&answer, || {
        let within = seconds_down(answer.start_before_ms);
        format!("permit {} of {}: renewed, within {within} of asking renew again or be done", answer.permit, answer.key)
    })
}
