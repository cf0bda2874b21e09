//! What a run leaves behind: figures as JSON, and a page for people.

use super::fault::Kind;
use super::history::{Event, Outcome};
use super::inject::Injected;
use super::judge::{Finding, Starts};
use super::leader::Change;
use super::operations::Operations;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The page; the figures take the place of the marker.
const PAGE: &str = include_str!("page.html");
const MARKER: &str = "/*FIGURES*/null";
/// More faults than this are counted, not drawn.
const DRAWN_MAX: usize = 4_000;

/// All figures of a run. Times are milliseconds from its beginning.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Whether every invariant that was judged held.
    pub held: bool,
    /// What decided everything.
    pub seed: u64,
    /// The line that runs it again.
    pub again: String,
    /// How many nodes.
    pub nodes: u64,
    /// Place by place the ids of the nodes that lived there, one after the other.
    pub residents: Vec<Vec<u64>>,
    /// How many workers, in how many processes.
    pub workers: (u32, u32),
    /// From the first request to the last.
    pub seconds: f64,
    /// Each invariant.
    pub findings: Vec<Finding>,
    /// Faults really injected, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// What could not be injected here, and why.
    pub missing: Vec<String>,
    /// Load and answers.
    pub load: Load,
    /// From a leader's kill to the first grant that was asked for after it.
    pub failover: Option<Spread>,
    /// Starts at the target.
    pub starts: Starts,
    /// Second by second.
    pub series: Vec<Second>,
    /// When faults struck.
    pub timeline: Vec<Bar>,
    /// Who led from when on.
    pub leaders: Vec<(u64, u64, u64)>,
}

/// Load and answers in all.
#[derive(Debug, Default, Serialize)]
pub struct Load {
    /// Operations in the linearizability check.
    pub operations: u64,
    /// Permits.
    pub granted: u64,
    /// Denials.
    pub denied: u64,
    /// Looks.
    pub looks: u64,
    /// Permits given back.
    pub released: u64,
    /// Attempts that were certainly not applied.
    pub not_applied: u64,
    /// Attempts without an answer.
    pub lost: u64,
    /// Requests whose end nobody knows.
    pub unknown: u64,
    /// Permits that came too late to be used.
    pub discarded: u64,
    /// Answers a second.
    pub per_second: f64,
}

/// A few figures of a distribution, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// Half are below.
    pub p50_ms: f64,
    /// All but one of a hundred are below.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Spread {
    /// Of these; `None` if there are none.
    pub fn of(mut ms: Vec<f64>) -> Option<Self> {
        ms.sort_by(f64::total_cmp);
        let at = |share: usize| ms[(ms.len() - 1) * share / 100];
        let max_ms = *ms.last()?;
        Some(Self { count: ms.len(), p50_ms: at(50), p99_ms: at(99), max_ms })
    }
}

/// One second of the run.
#[derive(Debug, Default, Clone, Serialize)]
pub struct Second {
    granted: u64,
    denied: u64,
    not_applied: u64,
    lost: u64,
    /// Of attempts that were answered with a decision.
    p50_ms: f64,
    p99_ms: f64,
    #[serde(skip)]
    latencies_ms: Vec<f64>,
}

/// One fault on the timeline.
#[derive(Debug, Serialize)]
pub struct Bar {
    kind: &'static str,
    from_ms: f64,
    to_ms: f64,
    nodes: Vec<u64>,
    what: String,
}

pub(super) fn load(operations: &Operations, seconds: f64) -> Load {
    Load {
        operations: operations.calls.len() as u64,
        granted: operations.granted.len() as u64,
        denied: operations.denied,
        looks: operations.looks,
        released: operations.released,
        not_applied: operations.not_applied,
        lost: operations.unknown_attempts,
        unknown: operations.unknown,
        discarded: operations.discarded,
        per_second: round(float(operations.answered()) / seconds.max(0.001)),
    }
}

/// From each kill to the first grant that was asked for after it.
pub(super) fn failovers(operations: &Operations, injected: &[Injected]) -> Option<Spread> {
    let mut granted: Vec<(u64, u64)> =
        operations.granted.iter().map(|granted| (granted.from_ns, granted.to_ns)).collect();
    granted.sort_unstable();
    // The first answer to anything that was asked for from here on.
    let mut first = u64::MAX;
    for (_, to_ns) in granted.iter_mut().rev() {
        first = first.min(*to_ns);
        *to_ns = first;
    }
    let kills = injected.iter().filter(|fault| fault.kind == Kind::Kill.name());
    let waits = kills.filter_map(|kill| {
        let at = granted.partition_point(|(from_ns, _)| *from_ns <= kill.at_ns);
        granted.get(at).map(|(_, to_ns)| millis(to_ns.saturating_sub(kill.at_ns)))
    });
    Spread::of(waits.collect())
}

pub(super) fn series(events: &[Event], began_ns: u64, ended_ns: u64) -> Vec<Second> {
    let seconds = usize::try_from(ended_ns.saturating_sub(began_ns) / 1_000_000_000).unwrap_or(0) + 1;
    let mut series = vec![Second::default(); seconds];
    for event in events {
        let Event::Acquire(attempt) = event else { continue };
        let at = usize::try_from(attempt.back_ns.saturating_sub(began_ns) / 1_000_000_000).unwrap_or(usize::MAX);
        let Some(second) = series.get_mut(at) else { continue };
        match &attempt.outcome {
            Outcome::Granted(_) => second.granted += 1,
            Outcome::Denied(_) => second.denied += 1,
            Outcome::NotApplied(_) => second.not_applied += 1,
            Outcome::Unknown(_) | Outcome::Expired | Outcome::Wrong(_) => second.lost += 1,
        }
        if matches!(attempt.outcome, Outcome::Granted(_) | Outcome::Denied(_)) {
            second.latencies_ms.push(millis(attempt.back_ns - attempt.sent_ns));
        }
    }
    for second in &mut series {
        if let Some(spread) = Spread::of(std::mem::take(&mut second.latencies_ms)) {
            (second.p50_ms, second.p99_ms) = (round(spread.p50_ms), round(spread.p99_ms));
        }
    }
    series
}

pub(super) fn timeline(injected: &[Injected], began_ns: u64) -> Vec<Bar> {
    let since = |ns: u64| round(millis(ns.saturating_sub(began_ns)));
    let bar = |fault: &Injected| Bar {
        kind: fault.kind,
        from_ms: since(fault.at_ns),
        to_ms: since(fault.until_ns),
        nodes: fault.nodes.clone(),
        what: fault.what.clone(),
    };
    injected.iter().take(DRAWN_MAX).map(bar).collect()
}

pub(super) fn leaders(changes: &[Change], began_ns: u64) -> Vec<(u64, u64, u64)> {
    let since = |ns: u64| ns.saturating_sub(began_ns) / 1_000_000;
    changes.iter().map(|change| (since(change.at_ns), change.term, change.leader)).collect()
}

impl Report {
    /// Writes `report.json` and `report.html` into a directory.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("report.json"), serde_json::to_vec_pretty(self)?)?;
        // What stands inside a script must not be able to end it.
        let figures = serde_json::to_string(self)?.replace("</", "<\\/");
        fs::write(dir.join("report.html"), PAGE.replace(MARKER, &figures))
    }

    /// The report in a few lines, for a terminal.
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        for finding in &self.findings {
            let mark = match finding.held {
                Some(true) => "ok  ",
                Some(false) => "FAIL",
                None => "–   ",
            };
            lines.push(format!("{mark} {} {}: {}", finding.invariant, finding.says, finding.detail));
        }
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        lines.push(format!("faults: {}", if faults.is_empty() { "none".to_owned() } else { faults.join(", ") }));
        lines.extend(self.missing.iter().map(|missing| format!("not injected: {missing}")));
        if let Some(failover) = &self.failover {
            lines.push(format!(
                "failover, kill to first grant: p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms, of {}",
                failover.p50_ms, failover.p99_ms, failover.max_ms, failover.count
            ));
        }
        let load = &self.load;
        lines.push(format!(
            "load: {:.0} s, {:.0} answers a second, {} granted, {} denied, {} looks, {} not applied, {} lost",
            self.seconds, load.per_second, load.granted, load.denied, load.looks, load.not_applied, load.lost
        ));
        lines.join("\n")
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

pub(super) fn millis(ns: u64) -> f64 {
    float(ns) / 1_000_000.0
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_place_for_the_figures() {
        assert_eq!(PAGE.matches(MARKER).count(), 1);
        assert!(!PAGE.contains("src=\"http") && !PAGE.contains("href=\"http"), "it needs nothing from elsewhere");
    }

    #[test]
    fn a_spread_is_of_what_there_is() {
        assert_eq!(Spread::of(Vec::new()), None);
        let spread = Spread::of((1..=200).map(f64::from).collect()).unwrap();
        assert_eq!((spread.count, spread.p50_ms, spread.p99_ms, spread.max_ms), (200, 100.0, 198.0, 200.0));
    }
}
