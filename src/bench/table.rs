//! Figures as people read them.

use super::compare::Comparison;
use super::load::Measured;
use std::fmt::Write as _;

/// One measurement.
pub fn text(measured: &Measured) -> String {
    let Measured { per_second, granted, denied, failed, latency_ms, .. } = measured;
    format!(
        "{} decisions a second: {granted} granted, {denied} denied, {failed} failed\n\
         latency in ms: p50 {:.2}, p90 {:.2}, p99 {:.2}, p99.9 {:.2}, longest {:.2}",
        grouped(*per_second),
        latency_ms.p50,
        latency_ms.p90,
        latency_ms.p99,
        latency_ms.p999,
        latency_ms.max
    )
}

/// A comparison: every row, then the ratios.
pub fn table(comparison: &Comparison) -> String {
    let Comparison { baseline, rows, missing, leader_changes, ratios } = comparison;
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(
        out,
        "fdatasync {:.3} ms, loopback round trip {:.3} ms\n\n{:<28} {:>5} {:>12} {:>9} {:>9} {:>9} {:>8}  keeps",
        baseline.fdatasync_ms,
        baseline.round_trip_ms,
        "",
        "conns",
        "decisions/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "failed"
    );
    for row in rows {
        let latency = &row.measured.latency_ms;
        let _ = writeln!(
            out,
            "{:<28} {:>5} {:>12} {:>9.2} {:>9.2} {:>9.2} {:>8}  {}",
            row.name,
            row.connections,
            grouped(row.measured.per_second),
            latency.p50,
            latency.p99,
            latency.p999,
            row.measured.failed + row.measured.denied,
            row.keeps
        );
    }
    let _ = writeln!(out);
    for ratio in ratios {
        let met = if ratio.met { "ok  " } else { "FAIL" };
        let _ = writeln!(out, "{met} {:<50} {:>10.2}  ({})", ratio.name, ratio.value, ratio.wanted);
    }
    let met = if *leader_changes == 0 { "ok  " } else { "FAIL" };
    let _ = writeln!(out, "{met} {:<50} {leader_changes:>10}  (none)", "changes of the leader");
    for name in missing {
        let _ = writeln!(out, "not measured: {name} is not installed");
    }
    out
}

/// Whole, in groups of three digits.
fn grouped(figure: f64) -> String {
    let digits = format!("{figure:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn figures_are_grouped() {
        for (figure, text) in [(0.0, "0"), (999.4, "999"), (1_000.0, "1,000"), (1_234_567.0, "1,234,567")] {
            assert_eq!(grouped(figure), text);
        }
    }
}
