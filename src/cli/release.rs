//! `quorate release`: gives a permit back.

use super::exit::Failure;
use super::output::Output;
use super::reach::Reach;
use crate::api::ReleaseResponse;

/// Arguments of `quorate release`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The key the permit was granted for
    key: String,
    /// The permit, as acquire numbered it
    permit: u64,
    #[command(flatten)]
    reach: Reach,
}

/// A permit that came too late to be given back is no failure: whoever cleans up wants to be done with it, and is.
pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let answer = args.reach.client()?.release(&args.key, args.permit).await?;
    output.data(&answer, || describe(&answer))
}

fn describe(answer: &ReleaseResponse) -> String {
    let ReleaseResponse { released, key, permit, detail } = answer;
    match (released, detail) {
        (true, _) => format!("permit {permit} of {key}: given back"),
        (false, Some(detail)) => format!("permit {permit} of {key}: not given back, {detail}"),
        (false, None) => format!("permit {permit} of {key}: not given back"),
    }
}
