//! Invariant A: there was load, before the first fault and while faults went on, and faults of every kind that was to be
//! injected. Without that a run proves nothing, however well everything else held.

use super::fault::Kind;
use super::history::{Event, Outcome};
use super::inject::Injected;
use super::judge::Finding;
use super::report::{float, millis};
use std::collections::BTreeMap;

/// Rates are taken over no less than this.
const SPAN_MIN_NS: u64 = 500_000_000;

/// What a run has to come to.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// Each of these at least once.
    pub(super) kinds: &'a [Kind],
    /// Or more often.
    pub(super) at_least: &'a BTreeMap<Kind, u64>,
    /// In all.
    pub(super) answers: u64,
    /// Answers a second, before and during the faults.
    pub(super) per_second: u64,
}

impl Wanted<'_> {
    /// How often a kind has to be injected.
    pub(super) fn of(&self, kind: Kind) -> u64 {
        self.at_least.get(&kind).copied().unwrap_or(0).max(1)
    }
}

/// What it came to.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    /// From here on faults were possible.
    pub(super) faults_from_ns: u64,
    pub(super) injected: &'a [Injected],
    /// When each answer arrived that was about a register.
    pub(super) answers_ns: Vec<u64>,
    /// What went wrong with injecting itself.
    pub(super) broken: &'a [String],
}

/// When answers arrived that tell something.
pub(super) fn answers_ns(events: &[Event]) -> Vec<u64> {
    let at = |event: &Event| match event {
        Event::Acquire(attempt) => {
            matches!(attempt.outcome, Outcome::Granted(_) | Outcome::Denied(_)).then_some(attempt.back_ns)
        }
        Event::Look(look) => Some(look.back_ns),
        Event::Release(release) => (release.released == Some(true)).then_some(release.back_ns),
        Event::Discarded { .. } => None,
    };
    events.iter().filter_map(at).collect()
}

pub(super) fn finding(wanted: &Wanted<'_>, seen: &Seen<'_>) -> Finding {
    let mut wrong: Vec<String> = seen.broken.to_vec();
    for kind in wanted.kinds {
        let done = seen.injected.iter().filter(|fault| fault.kind == kind.name()).count() as u64;
        if done < wanted.of(*kind) {
            wrong.push(format!("{kind} was injected {done} times, not {}", wanted.of(*kind)));
        }
    }
    // The first answer begins it: processes take their time to start.
    let first_ns = seen.answers_ns.iter().copied().min().unwrap_or(u64::MAX);
    let before = seen.rate(first_ns, seen.faults_from_ns);
    let from_ns = seen.injected.iter().map(|fault| fault.at_ns).min();
    let to_ns = seen.injected.iter().map(|fault| fault.until_ns).max();
    let during = from_ns.zip(to_ns).map_or(0.0, |(from_ns, to_ns)| seen.rate(from_ns, to_ns));
    if seen.injected.is_empty() {
        wrong.push("nothing was injected".to_owned());
    }
    let floor = float(wanted.per_second);
    for (when, rate) in [("before the first fault", before), ("from the first fault to the last", during)] {
        if rate < floor {
            wrong.push(format!("{rate:.1} answers a second {when}, the floor is {floor}"));
        }
    }
    let answers = seen.answers_ns.len() as u64;
    if answers < wanted.answers {
        wrong.push(format!("{answers} answers, {} were asked for", wanted.answers));
    }
    let detail = format!(
        "{before:.0} answers a second before the first fault, {during:.0} from the first to the last, of {floor} at least; every \
         kind was injected"
    );
    Finding::new('A', "there was load before and during the faults", &wrong, detail)
}

impl Seen<'_> {
    fn rate(&self, from_ns: u64, to_ns: u64) -> f64 {
        let count = self.answers_ns.iter().filter(|at| (from_ns..=to_ns).contains(at)).count() as u64;
        float(count) / (millis(to_ns.saturating_sub(from_ns).max(SPAN_MIN_NS)) / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn fault(kind: Kind, at: u64, until: u64) -> Injected {
        Injected {
            kind: kind.name(),
            nodes: vec![1],
            at_ns: at * SECOND,
            until_ns: until * SECOND,
            what: String::new(),
        }
    }

    /// Ten answers a second in these seconds.
    fn load(seconds: std::ops::Range<u64>) -> Vec<u64> {
        seconds.flat_map(|second| (0..10).map(move |n| second * SECOND + n * SECOND / 10)).collect()
    }

    fn held(kinds: &[Kind], injected: &[Injected], answers_ns: Vec<u64>, broken: &[String]) -> bool {
        let wanted = Wanted { kinds, at_least: &BTreeMap::new(), answers: 0, per_second: 9 };
        finding(&wanted, &Seen { faults_from_ns: 10 * SECOND, injected, answers_ns, broken }).held == Some(true)
    }

    #[test]
    fn a_run_that_injected_nothing_proves_nothing() {
        let kill = [fault(Kind::Kill, 11, 20)];
        assert!(held(&[Kind::Kill], &kill, load(8..25), &[]));
        assert!(!held(&[], &[], load(8..25), &[]), "nothing at all");
        assert!(!held(&[Kind::Kill, Kind::Pause], &kill, load(8..25), &[]), "no pause");
        assert!(!held(&[Kind::Kill], &kill, load(8..25), &["a task panicked".to_owned()]));
    }

    #[test]
    fn load_is_wanted_before_and_during_the_faults() {
        let kill = [fault(Kind::Kill, 11, 20)];
        assert!(!held(&[Kind::Kill], &kill, load(10..25), &[]), "none before");
        let mut stalled = load(8..11);
        stalled.extend(load(20..40));
        assert!(!held(&[Kind::Kill], &kill, stalled, &[]), "hardly any during");
        assert!(!held(&[Kind::Kill], &kill, Vec::new(), &[]));
    }

    #[test]
    fn as_many_as_were_asked_for() {
        let at_least = BTreeMap::from([(Kind::Kill, 2)]);
        let wanted = Wanted { kinds: &[Kind::Kill], at_least: &at_least, answers: 171, per_second: 1 };
        let verdict = |injected: &[Injected]| {
            let seen = Seen { faults_from_ns: 10 * SECOND, injected, answers_ns: load(8..25), broken: &[] };
            finding(&wanted, &seen).detail
        };
        let detail = verdict(&[fault(Kind::Kill, 11, 20)]);
        assert!(detail.contains("kill was injected 1 times, not 2"), "{detail}");
        assert!(detail.contains("170 answers, 171 were asked for"), "{detail}");
    }
}
