//! `quorate history`: what a node remembers of a key, with a chart.

use super::chart::{bars, folded};
use super::exit::Failure;
use super::output::{Colour, Output, aligned, paint};
use super::reach::Reach;
use crate::api::{KeyHistoryResponse, Millis, PermitOutcome, UsageBucket};
use std::fmt::Write as _;

/// Columns of a chart.
const COLUMNS: usize = 60;
/// What the charts show: the last minute by the second, the last hour by the minute.
const SECONDS: usize = 60;
const MINUTES: usize = 60;
/// Denials in the text; `--json` has all.
const DENIALS_SHOWN: usize = 5;

/// Arguments of `quorate history`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The key
    key: String,
    /// Most permits to show
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    reach: Reach,
}

pub(super) async fn run(args: &Args, output: Output) -> Result<(), Failure> {
    let history = args.reach.client()?.history(&args.key, args.limit).await?;
    output.data(&history, || text(&history))
}

fn text(history: &KeyHistoryResponse) -> String {
    let mut text = format!("key {}\n", history.key);
    if history.permits.is_empty() && history.denied.is_empty() && history.minutes.is_empty() {
        text.push_str("nothing is remembered of it on this node\n");
        return text;
    }
    chart(&mut text, "second", SECONDS, 1_000_000, &history.seconds, history.until_ms);
    chart(&mut text, "minute", MINUTES, 60_000_000, &history.minutes, history.until_ms);
    text.push('\n');
    permits(&mut text, history);
    if !history.denied.is_empty() {
        text.push('\n');
        denials(&mut text, history);
    }
    text
}

/// Grants by bucket up to the end of what was recorded, and a line of sums.
fn chart(text: &mut String, unit: &str, count: usize, width_us: u64, buckets: &[UsageBucket], until: Millis) {
    let last = until.micros() / width_us;
    let first = last.saturating_sub(count as u64 - 1);
    let mut grants = vec![0_u64; count];
    let (mut granted, mut denied) = (0_u64, 0_u64);
    for bucket in buckets {
        let at = bucket.at_ms.micros() / width_us;
        let slot = at.checked_sub(first).and_then(|slot| usize::try_from(slot).ok());
        if let Some(place) = slot.and_then(|slot| grants.get_mut(slot)) {
            *place = place.saturating_add(bucket.granted);
            granted = granted.saturating_add(bucket.granted);
            denied = denied.saturating_add(bucket.denied);
        }
    }
    let most = grants.iter().copied().max().unwrap_or(0);
    let (columns, _) = folded(&grants, COLUMNS);
    // Writing into a string does not fail.
    let _ = writeln!(text, "\ngrants per {unit}, the last {count}: {granted} granted, {denied} denied, at most {most}");
    let _ = writeln!(text, "│{}│", paint(bars(&columns), Colour::Green));
}

fn permits(text: &mut String, history: &KeyHistoryResponse) {
    let header = ["PERMIT", "SLOT", "WAITED", "COST", "OUTCOME", "WORKER", "POLICY", "RECORDED"].map(str::to_owned);
    let rows = history.permits.iter().map(|permit| {
        let waited = permit.slot_ms.micros().saturating_sub(permit.at_ms.micros());
        let outcome = match permit.outcome {
            PermitOutcome::Granted => "granted",
            PermitOutcome::Released => "released",
        };
        [
            permit.permit.to_string(),
            permit.slot_ms.to_string(),
            super::output::seconds(Millis::up_from_ns(waited.saturating_mul(1_000))),
            permit.cost.to_string(),
            outcome.to_owned(),
            permit.worker.clone().unwrap_or_else(|| "-".to_owned()),
            permit.policy.clone().unwrap_or_else(|| "-".to_owned()),
            permit.recorded.clone(),
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    table(text, &rows);
}

fn denials(text: &mut String, history: &KeyHistoryResponse) {
    let header = ["DENIED AT", "REASON", "COST", "WORKER", "RECORDED"].map(str::to_owned);
    let rows = history.denied.iter().take(DENIALS_SHOWN).map(|denied| {
        [
            denied.at_ms.to_string(),
            denied.reason.clone(),
            denied.cost.to_string(),
            denied.worker.clone().unwrap_or_else(|| "-".to_owned()),
            denied.recorded.clone(),
        ]
    });
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    table(text, &rows);
}

fn table<const N: usize>(text: &mut String, rows: &[[String; N]]) {
    for (at, line) in aligned(rows).into_iter().enumerate() {
        text.push_str(&if at == 0 { paint(line, Colour::Bold) } else { line });
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{DenialLine, PermitLine};

    fn bucket(at_ms: u64, granted: u64, denied: u64) -> UsageBucket {
        UsageBucket { at_ms: Millis::up_from_ns(at_ms * 1_000_000), granted, cost: granted, denied }
    }

    #[test]
    fn a_key_has_two_charts_and_two_tables() {
        let permit = PermitLine {
            permit: 7,
            slot_ms: Millis::up_from_ns(65_500_000_000),
            at_ms: Millis::up_from_ns(64_000_000_000),
            cost: 1,
            worker: Some("w".to_owned()),
            policy: None,
            outcome: PermitOutcome::Released,
            recorded: "2026-11-16T04:59:37.123Z".to_owned(),
        };
        let denied = DenialLine {
            at_ms: Millis::up_from_ns(1_000_000),
            cost: 1,
            reason: "not_free_now".to_owned(),
            worker: None,
            policy: None,
            recorded: "r".to_owned(),
        };
        let history = KeyHistoryResponse {
            key: "k".to_owned(),
            until_ms: Millis::up_from_ns(64_000_000_000),
            permits: vec![permit],
            denied: vec![denied],
            seconds: vec![bucket(1_000, 9, 0), bucket(63_000, 1, 2), bucket(64_000, 2, 0)],
            minutes: vec![bucket(0, 9, 0), bucket(60_000, 3, 2)],
        };
        let text = text(&history);
        assert_eq!(
            text,
            format!(
                "key k\n\n\
                 grants per second, the last 60: 3 granted, 2 denied, at most 2\n│{}▄█│\n\n\
                 grants per minute, the last 60: 12 granted, 2 denied, at most 9\n│█▃{}│\n\n\
                 PERMIT  SLOT   WAITED   COST  OUTCOME   WORKER  POLICY  RECORDED\n\
                 7       65500  1.500 s  1     released  w       -       2026-11-16T04:59:37.123Z\n\n\
                 DENIED AT  REASON        COST  WORKER  RECORDED\n\
                 1          not_free_now  1     -       r\n",
                " ".repeat(58),
                " ".repeat(58)
            )
        );
    }

    #[test]
    fn an_unknown_key_is_said_to_be_one() {
        let history = KeyHistoryResponse {
            key: "k".to_owned(),
            until_ms: Millis::ZERO,
            permits: Vec::new(),
            denied: Vec::new(),
            seconds: Vec::new(),
            minutes: Vec::new(),
        };
        assert_eq!(text(&history), "key k\nnothing is remembered of it on this node\n");
    }
}
