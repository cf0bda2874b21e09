//! The observer who sees real time: applies what was committed, once, and checks the promises.

use crate::clocks::{FAST, PAR};
use crate::log::{EntryId, Tree};
use crate::rng::{MS, Rng};
use crate::rule::Rule;
use crate::stats::{Count, Stats};
use quorate::limiter::{Decision, Entry, Limit, Part, Rate, Register, Spacing, Span, Terms, Time, decide};

/// A promise that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub promise: Promise,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// `C_j - C_i <= (1 + r)(s_j - s_i)` for entries i before j.
    Lemma,
    /// The same for the time read when answering.
    Reading,
    /// P1.
    Spacing,
    /// P2.
    Starts,
}

impl Promise {
    pub const COUNT: usize = 4;
}

/// A granted request: what every answer to it says.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    pub slot: Time,
    /// The stamp it was decided at.
    pub stamp: Time,
}

/// One key and everything that was granted and started on it.
pub struct Key {
    pub spacing: Spacing,
    register: Register,
    /// The last slot granted and how much of the limit it took.
    last: Option<(Time, Span)>,
    /// Real instants of starts.
    pub starts: Vec<u64>,
}

impl Key {
    pub fn random(rng: &mut Rng) -> Self {
        let rate = Rate::new(1, Span(rng.range(50 * MS, 1_000 * MS))).expect("a sensible rate");
        let window = Span(rng.range(50 * MS, 500 * MS));
        let reserved = rng.pick(&[0, 1, 2, 4, 8]);
        let spacing = Spacing::new(rate, window, reserved).expect("a window that drift leaves open");
        Self { spacing, register: Register::default(), last: None, starts: Vec::new() }
    }

    pub const fn limit(&self) -> Limit {
        Limit::Spacing(self.spacing)
    }
}

/// The replicated state, as it would be on any node that has applied as much, and the measure of the lemma.
pub struct Oracle {
    pub committed: Vec<EntryId>,
    /// The state's time after each committed entry.
    times: Vec<Option<Time>>,
    /// After each committed entry, the lowest `C - (1 + r)s` so far, times [`PAR`].
    floors: Vec<i128>,
    pub keys: Vec<Key>,
    permits: u64,
    pub violations: Vec<Violation>,
}

impl Oracle {
    pub const fn new(keys: Vec<Key>) -> Self {
        Self { committed: Vec::new(), times: Vec::new(), floors: Vec::new(), keys, permits: 0, violations: Vec::new() }
    }

    /// The last stamp in a snapshot of the first `len` entries.
    pub fn last_stamp(&self, len: usize) -> Option<Time> {
        len.checked_sub(1).and_then(|last| self.times[last])
    }

    /// Applies one committed entry.
    pub fn apply(&mut self, tree: &Tree, id: EntryId, requests: &mut [Ordered], rule: Rule, stats: &mut Stats) {
        stats.add(Count::Commits);
        let entry = tree.get(id);
        assert_eq!(entry.index, self.committed.len(), "the model's Raft skips an entry");
        self.committed.push(id);
        let mut time = self.times.last().copied().flatten();
        let mut floor = self.floors.last().copied().unwrap_or(i128::MAX);
        let accepted = if rule == Rule::NoLeaderCheck { entry.command.as_ref() } else { tree.accepted(id) };
        if accepted.is_none() && entry.command.is_some() {
            stats.add(Count::StaleEntries);
        }
        if let Some(command) = accepted {
            let now = time.map_or(command.stamp, |time| time.max(command.stamp));
            // For all i before j, C_j - (1 + r)s_j <= C_i - (1 + r)s_i: it is enough to know the lowest one so far.
            let height = height(now, command.real_ns);
            if height > floor {
                let text =
                    format!("entry {} at {now} is {} ns too far", entry.index, (height - floor) / i128::from(PAR));
                self.violations.push(Violation { promise: Promise::Lemma, text });
            }
            stats.add(Count::Stamps);
            floor = floor.min(height);
            time = Some(now);
            if let Some(request) = command.request {
                self.decide(&mut requests[request], now, stats);
            }
        }
        self.times.push(time);
        self.floors.push(floor);
    }

    /// Acquires once: a retry finds the permit it already has.
    fn decide(&mut self, request: &mut Ordered, now: Time, stats: &mut Stats) {
        if request.grant.is_some() {
            return;
        }
        let key = &mut self.keys[request.key];
        let (limit, cost) = (key.limit(), request.cost);
        match decide(&[Part { register: &key.register, limit: &limit, cost }], now, &request.terms) {
            Decision::Granted { slot } => {
                stats.add(Count::Grants);
                if let Some((last, taken)) = key.last
                    && slot < last.after(taken)
                {
                    let text = format!("slot {slot} follows {last}, which took {taken}");
                    self.violations.push(Violation { promise: Promise::Spacing, text });
                }
                let taken = key.spacing.unit().times(cost).expect("a modest cost");
                self.permits += 1;
                let entry = Entry { permit: self.permits, slot, cost, request: None };
                key.register.take(&limit, now, request.terms.lead, &entry);
                key.last = Some((slot, taken));
                request.grant = Some(Grant { slot, stamp: now });
            }
            Decision::Denied { .. } => stats.add(Count::Denials),
            Decision::Never { why, .. } => panic!("the model asks for the impossible: {why}"),
        }
    }

    /// A server that answers for the entry at `index` reads `time` at this real time.
    pub fn check_reading(&mut self, index: usize, time: Time, real_ns: u64) {
        let (height, floor) = (height(time, real_ns), self.floors[index]);
        if height > floor {
            let too_far_ns = (height - floor) / i128::from(PAR);
            let text = format!("answering for entry {index} at {time}, {too_far_ns} ns too far");
            self.violations.push(Violation { promise: Promise::Reading, text });
        }
    }

    /// All starts of each key, at the end of the history.
    pub fn check_starts(&mut self, stats: &mut Stats) {
        for key in &mut self.keys {
            key.starts.sort_unstable();
            let interval_ns = key.spacing.rate().interval().0;
            for pair in key.starts.windows(2) {
                let gap_ns = pair[1] - pair[0];
                if let Some(above_ns) = gap_ns.checked_sub(interval_ns) {
                    stats.closest_ns = stats.closest_ns.min(above_ns);
                } else {
                    let text = format!("starts at {} and {} ns, interval {interval_ns} ns", pair[0], pair[1]);
                    self.violations.push(Violation { promise: Promise::Starts, text });
                }
            }
        }
    }
}

/// The part of a request that the log entry carries, and the state's answer to it.
pub struct Ordered {
    pub key: usize,
    pub cost: u64,
    pub terms: Terms,
    pub grant: Option<Grant>,
}

/// `C - (1 + r)s`, in 2000ths of a nanosecond.
fn height(time: Time, real_ns: u64) -> i128 {
    i128::from(time.0) * i128::from(PAR) - i128::from(real_ns) * i128::from(FAST)
}
