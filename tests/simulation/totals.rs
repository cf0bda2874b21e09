//! What many runs came to, and how much of it there has to be.

use crate::faults::Fault;
use crate::run::Outcome;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Sums over runs.
#[derive(Default)]
pub(crate) struct Totals {
    runs: u64,
    simulated: Duration,
    faults: BTreeMap<Fault, u64>,
    leader_crashes: u64,
    power_cuts: u64,
    leaders: usize,
    answers: usize,
    grants: usize,
    starts: usize,
    entries: usize,
    snapshots: u64,
    healed_after_max: Duration,
}

impl Totals {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.simulated += outcome.simulated;
        for (fault, count) in &outcome.counts.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.leader_crashes += outcome.counts.leader_crashes;
        self.power_cuts += outcome.counts.power_cuts;
        self.leaders += outcome.leaders;
        self.answers += outcome.answers;
        self.grants += outcome.grants;
        self.starts += outcome.starts;
        self.entries += outcome.entries;
        self.snapshots += outcome.snapshots;
        self.healed_after_max = self.healed_after_max.max(outcome.healed_after.unwrap_or_default());
    }

    /// A run that injects little proves little.
    pub(crate) fn assert_enough(&self, seeds: u64) {
        let minutes = self.simulated.as_secs() / 60;
        let faults: u64 = self.faults.values().sum();
        assert!(faults >= 12 * minutes, "{faults} faults in {minutes} minutes");
        assert!(self.leader_crashes >= 11 * seeds, "{} leader crashes in {seeds} runs", self.leader_crashes);
        assert!(self.power_cuts >= seeds, "{} power cuts in {seeds} runs", self.power_cuts);
        assert!(self.snapshots >= seeds / 2, "{} snapshots installed in {seeds} runs", self.snapshots);
        for fault in Fault::ALL {
            let count = self.faults.get(&fault).copied().unwrap_or(0);
            assert!(count >= seeds / 4, "{fault:?} happened {count} times in {seeds} runs");
        }
        assert!(self.leaders as u64 >= 10 * seeds, "{} leaders in {seeds} runs", self.leaders);
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated.as_secs_f64() / 3_600.0;
        writeln!(f, "{} runs, {hours:.2} simulated hours, all healed within {:?}", self.runs, self.healed_after_max)?;
        writeln!(
            f,
            "{} leader crashes, {} power cuts, {} leaders, {} snapshots from disk or peer",
            self.leader_crashes, self.power_cuts, self.leaders, self.snapshots
        )?;
        writeln!(
            f,
            "{} entries, {} answers, {} grants, {} starts",
            self.entries, self.answers, self.grants, self.starts
        )?;
        for (fault, count) in &self.faults {
            write!(f, "{fault:?} {count}  ")?;
        }
        writeln!(f)
    }
}
