//! What has to hold, whatever happened: each invariant judged on what workers and target saw.
//!
//! **L** linearizable · **G** starts spaced as promised, at the target · **W** windows never too full · **U** no slot twice, none
//! lost · **M** stamps monotone, and never faster than clocks may run · **E** equal states · **V** serves again soon · **A** there
//! was load.

use super::history::Arrival;
use super::load::{Key, Promise};
use super::model::{self, Verdict};
use super::operations::{Granted, Operations};
use super::replays::{self, Replays};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;

/// Stamps are worked out from rounded answers.
const ROUNDING_US: u64 = 10;
/// For one key.
const SEARCH_WITHIN: Duration = Duration::from_secs(60);
/// Examples of what is wrong; the rest is counted.
const EXAMPLES_MAX: usize = 5;

/// What came of one invariant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its letter.
    pub invariant: char,
    /// What it says.
    pub says: &'static str,
    /// Whether it held; `None` if it was not judged.
    pub held: Option<bool>,
    /// What was looked at, or what is wrong.
    pub detail: String,
}

impl Finding {
    pub(super) fn new(invariant: char, says: &'static str, wrong: &[String], seen: impl Into<String>) -> Self {
        let detail = if wrong.is_empty() {
            seen.into()
        } else {
            let more = wrong.len().saturating_sub(EXAMPLES_MAX);
            let examples = wrong.iter().take(EXAMPLES_MAX).cloned().collect::<Vec<_>>().join("; ");
            if more == 0 { examples } else { format!("{examples}; and {more} more") }
        };
        Self { invariant, says, held: Some(wrong.is_empty()), detail }
    }

    /// What held on too little has shown nothing.
    pub(super) fn on_at_least(mut self, least: usize, count: usize, of: &str) -> Self {
        if self.held == Some(true) && count < least {
            self.held = Some(false);
            self.detail = format!("only {count} {of}, {least} are the least that shows anything ({})", self.detail);
        } else if self.held == Some(true) {
            self.detail = format!("{}; {count} {of}, of {least} at least", self.detail);
        }
        self
    }
}

pub(super) fn linearizable(operations: &Operations, keys: &[Key]) -> Finding {
    let name = |key: &u16| keys.get(usize::from(*key)).map_or("?", |key| key.name.as_str()).to_owned();
    let wrong: Vec<String> = match model::check(&operations.calls, SEARCH_WITHIN) {
        Verdict::Linearizable => Vec::new(),
        Verdict::Not(bad) => {
            bad.iter().map(|(key, stuck)| format!("no order explains key {}: {stuck}", name(key))).collect()
        }
        Verdict::Undecided(keys) => keys.iter().map(|key| format!("undecided for key {}", name(key))).collect(),
    };
    let seen = format!(
        "{} operations on {} keys, {} of unknown outcome, {} looks at idle keys, {} of {} denials judged",
        operations.calls.len(),
        keys.len(),
        operations.unknown,
        operations.idle,
        operations.denials_judged,
        operations.denied
    );
    Finding::new('L', "linearizable: one order explains every answer", &wrong, seen)
}

/// What the target saw of all starts.
#[derive(Debug, Default, Serialize)]
pub struct Starts {
    /// Starts that were judged.
    pub judged: u64,
    /// Starts that arrived after their deadline, and were turned away.
    pub late: u64,
    /// Pairs of starts of spaced keys.
    pub pairs: usize,
    /// The smallest margin over the promised interval, in microseconds.
    pub margin_us: Option<i64>,
    #[serde(skip)]
    wrong: Vec<String>,
    #[serde(skip)]
    twice: Vec<String>,
}

impl Starts {
    pub(super) fn look(arrivals: &[Arrival], keys: &[Key]) -> Self {
        let mut starts = Self::default();
        let mut by_key: HashMap<u16, Vec<Arrival>> = HashMap::new();
        let mut permits: HashMap<(u64, bool), u64> = HashMap::new();
        for arrival in arrivals {
            *permits.entry((arrival.permit, arrival.end)).or_default() += 1;
            if arrival.at_ns > arrival.deadline_ns && !arrival.end {
                starts.late += 1;
                continue;
            }
            // A window promises nothing of starts.
            let promised = !matches!(keys[usize::from(arrival.key)].promise, Promise::Window { .. });
            starts.judged += u64::from(!arrival.end && promised);
            by_key.entry(arrival.key).or_default().push(*arrival);
        }
        starts.twice = permits
            .into_iter()
            .filter(|((_, end), count)| *count > 1 && !end)
            .map(|((permit, _), count)| format!("permit {permit} started {count} times"))
            .collect();
        for (key, mut arrivals) in by_key {
            arrivals.sort_by_key(|arrival| arrival.at_ns);
            starts.judge(&keys[usize::from(key)], &arrivals);
        }
        starts
    }

    fn judge(&mut self, key: &Key, arrivals: &[Arrival]) {
        match key.promise {
            Promise::Spacing { interval_us, .. } => {
                self.pairs += arrivals.len().saturating_sub(1);
                for pair in arrivals.windows(2) {
                    let gap_us = (pair[1].at_ns - pair[0].at_ns) / 1_000;
                    let margin = signed(gap_us) - signed(interval_us);
                    self.margin_us = Some(self.margin_us.map_or(margin, |least| least.min(margin)));
                    if margin < 0 {
                        self.wrong.push(format!(
                            "permits {} and {} of {} started {gap_us} µs apart, not {interval_us}",
                            pair[0].permit, pair[1].permit, key.name
                        ));
                    }
                }
            }
            Promise::Bucket { interval_us, burst, window_us } => {
                // n starts within t: n <= burst + (t + W) / I, for every pair at once by a running minimum.
                let allowed = signed(window_us) + (signed(burst) - 1) * signed(interval_us);
                let mut least = i64::MAX;
                for (n, arrival) in (0_i64..).zip(arrivals) {
                    let ahead = n * signed(interval_us) - signed(arrival.at_ns / 1_000);
                    least = least.min(ahead);
                    if ahead - least > allowed + 1 {
                        self.wrong.push(format!(
                            "{} let more start than {burst} and its rate, at permit {}",
                            key.name, arrival.permit
                        ));
                    }
                }
            }
            Promise::Concurrency { max, .. } => self.at_once(key, max, arrivals),
            Promise::Window { .. } => {}
        }
    }

    fn at_once(&mut self, key: &Key, max: u64, arrivals: &[Arrival]) {
        let ends: HashMap<u64, u64> =
            arrivals.iter().filter(|arrival| arrival.end).map(|arrival| (arrival.permit, arrival.at_ns)).collect();
        let mut edges: Vec<(u64, i64)> = Vec::new();
        for begin in arrivals.iter().filter(|arrival| !arrival.end) {
            // A lease ends at its deadline, whether its holder is done or not.
            let end = ends.get(&begin.permit).copied().unwrap_or(u64::MAX).min(begin.deadline_ns);
            edges.extend([(begin.at_ns, 1), (end, -1)]);
        }
        // Ends come before beginnings of the same instant.
        edges.sort_unstable();
        let mut now = 0;
        for (at, step) in edges {
            now += step;
            if now > signed(max) {
                self.wrong.push(format!("{now} at once under {}, which allows {max}, at {at} ns", key.name));
            }
        }
    }

    pub(super) fn finding(&self, judged: Result<(), &str>) -> Finding {
        let says = "starts are spaced as promised, at the target";
        let margin = self.margin_us.map_or_else(String::new, |us| format!("; closest {us} µs over its interval"));
        let seen = format!("{} starts, {} turned away as late{margin}", self.judged, self.late);
        let finding = Finding::new('G', says, &self.wrong, seen);
        match judged {
            Ok(()) => finding,
            Err(why) => Finding { held: None, detail: format!("not judged: {why} ({})", finding.detail), ..finding },
        }
    }
}

pub(super) fn unique(operations: &Operations, starts: &Starts, replays: &Replays) -> Finding {
    let mut wrong = operations.contradictions.clone();
    wrong.extend(starts.twice.iter().cloned());
    wrong.extend(replays.wrong.iter().cloned());
    for pair in operations.granted.windows(2) {
        if pair[0].grant.permit == pair[1].grant.permit {
            wrong.push(format!(
                "permit {} was told to {:?} and {:?}",
                pair[0].grant.permit, pair[0].request, pair[1].request
            ));
        }
    }
    let seen = format!(
        "{} permits, {} asked for again meanwhile: always the same; at the end {} were the same, {} over, {} not answered",
        operations.granted.len(),
        operations.replayed,
        replays.same,
        replays.expired,
        replays.unanswered
    );
    let finding = Finding::new('U', "no slot twice, none lost after it was answered", &wrong, seen);
    finding.on_at_least(replays::SAME_MIN, replays.same, "answered with a permit at the end")
}

/// Stamps in the order of the log, and the lemma on every pair: `C_j − C_i <= (1 + r)(s_j − s_i)`.
pub(super) fn monotone(granted: &[Granted], fastest_ppm: u64) -> Finding {
    let mut wrong = Vec::new();
    let (mut latest, mut least, mut judged) = (0, i128::MAX, 0_u64);
    let rate = i128::from(fastest_ppm);
    for granted in granted {
        let Some(stamp_us) = granted.stamp_us else { continue };
        judged += 1;
        if stamp_us + ROUNDING_US < latest {
            wrong.push(format!("permit {} was stamped {stamp_us} µs, after {latest} µs", granted.grant.permit));
        }
        latest = latest.max(stamp_us);
        // Stamped after it was sent and before it was answered; all in nanoseconds, times a million.
        let stamp = i128::from(stamp_us) * 1_000_000_000;
        least = least.min(stamp - rate * i128::from(granted.from_ns));
        if stamp - rate * i128::from(granted.to_ns) > least + i128::from(ROUNDING_US) * 1_000_000_000 {
            wrong.push(format!("cluster time ran faster than {rate} ppm up to permit {}", granted.grant.permit));
        }
    }
    Finding::new(
        'M',
        "stamps never go back, nor faster than clocks may run",
        &wrong,
        format!("{judged} stamps, every pair of them"),
    )
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::history::Grant;
    use super::super::load::keys;
    use super::*;

    fn arrival(key: u16, permit: u64, at_us: u64) -> Arrival {
        Arrival { at_ns: at_us * 1_000, key, permit, deadline_ns: u64::MAX, end: false }
    }

    fn held(arrivals: &[Arrival]) -> bool {
        Starts::look(arrivals, &keys()).finding(Ok(())).held == Some(true)
    }

    #[test]
    fn starts_that_are_too_close_are_found() {
        assert!(held(&[arrival(0, 1, 1_000_000), arrival(0, 2, 1_020_000)]));
        assert!(!held(&[arrival(0, 1, 1_000_000), arrival(0, 2, 1_019_999)]));
        assert!(held(&[arrival(0, 1, 1_000_000), arrival(1, 2, 1_000_001)]), "keys do not meet");
        let late = Arrival { deadline_ns: 1, ..arrival(0, 2, 1_000_001) };
        assert!(held(&[arrival(0, 1, 1_000_000), late]), "what is turned away has not started");
    }

    #[test]
    fn bursts_and_leases_are_bounded() {
        let keys = keys();
        let bucket = u16::try_from(keys.iter().position(|key| key.name == "bucket-0").unwrap()).unwrap();
        let burst = |count: u64| (0..count).map(|n| arrival(bucket, n, 1_000_000 + n)).collect::<Vec<_>>();
        assert!(held(&burst(4)), "two tokens, and two more within the window");
        assert!(!held(&burst(5)));
        let leased = u16::try_from(keys.iter().position(|key| key.name == "leased-0").unwrap()).unwrap();
        assert!(held(&[arrival(leased, 1, 10), arrival(leased, 2, 20)]));
        assert!(!held(&[arrival(leased, 1, 10), arrival(leased, 2, 20), arrival(leased, 3, 30)]));
        let end = Arrival { end: true, ..arrival(leased, 1, 25) };
        assert!(held(&[arrival(leased, 1, 10), arrival(leased, 2, 20), end, arrival(leased, 3, 30)]));
    }

    #[test]
    fn time_that_runs_too_fast_is_found() {
        const USUAL: u64 = 1_000_500;
        let granted = |permit: u64, stamp_us: u64, from_us: u64, to_us: u64| Granted {
            key: 0,
            request: (0, permit),
            grant: Grant { permit, slot_us: stamp_us, wait_us: 0, before_us: None, replayed: false, held: false },
            stamp_us: Some(stamp_us),
            from_ns: from_us * 1_000,
            to_ns: to_us * 1_000,
        };
        let held = |all: &[Granted], ppm| monotone(all, ppm).held == Some(true);
        assert!(held(&[granted(1, 100, 500, 600), granted(2, 1_100, 1_500, 1_600)], USUAL));
        assert!(!held(&[granted(1, 100_000, 500_000, 500_100), granted(2, 103_000, 501_000, 501_100)], USUAL));
        assert!(held(&[granted(1, 100_000, 500_000, 500_100), granted(2, 103_000, 501_000, 501_600)], 2_000_000));
        assert!(
            !held(&[granted(1, 100_000, 500_000, 500_100), granted(2, 99_000, 501_000, 501_100)], USUAL),
            "back in time"
        );
    }

    #[test]
    fn what_held_on_too_little_has_shown_nothing() {
        let finding =
            |wrong: &[String], count| Finding::new('G', "spaced", wrong, "seen").on_at_least(5, count, "pairs");
        assert_eq!(
            (finding(&[], 5).held, finding(&[], 5).detail.as_str()),
            (Some(true), "seen; 5 pairs, of 5 at least")
        );
        assert_eq!(finding(&[], 4).held, Some(false));
        assert!(finding(&[], 4).detail.starts_with("only 4 pairs, 5 are"), "{}", finding(&[], 4).detail);
        assert_eq!(finding(&["bad".to_owned()], 0).detail, "bad", "what is wrong comes first");
    }
}
