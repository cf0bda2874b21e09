//! Random scripts, and the logs they become.
//!
//! A script names instants by what happens there ("when the denied request would be granted, less a nanosecond"), because
//! that is where mistakes are, and random numbers never meet them. Playing it against the oracle turns it into a log with
//! plain numbers and into the verdicts that log should get.

use crate::oracle::{Oracle, Verdict};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quorate::limiter::{Ask, Key, Limit, Rate, Spacing, Span, Time};
use quorate::limits::COST_MAX;
use quorate::state::{Acquire, Batch, Command, Identity, LeaderId, Stamp};
use std::cmp::Ordering;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const KEYS: [&str; 4] = ["a", "b", "github: Zürich", "ключ"];
const IDS: [&str; 5] = ["v", "w", "x", "y", "z"];

/// One entry of a log.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Who appended it.
    pub(crate) leader: LeaderId,
    pub(crate) batch: Batch,
    /// What the oracle says; `None` for a stale stamp.
    pub(crate) verdicts: Option<Vec<Verdict>>,
    /// What the oracle holds afterwards: keys and request ids.
    pub(crate) held: (usize, usize),
}

/// A whole log.
#[derive(Debug, Clone)]
pub(crate) struct Log(pub(crate) Vec<Entry>);

#[derive(Debug, Clone)]
struct Script {
    /// Requests choose among these, so that keys meet the same limit often and another one sometimes.
    limits: Vec<Limit>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
struct Step {
    when: When,
    stale: bool,
    keys_max: u64,
    asks: Vec<Intent>,
}

#[derive(Debug, Clone)]
enum When {
    Stand,
    Back(u64),
    Forward(u64),
    /// Around the instant when the request denied last would be granted.
    Retry(i64),
    /// Around the instant when the oldest request id is forgotten.
    Forget(i64),
    /// Around the instant when a key is free.
    Free(usize, i64),
}

#[derive(Debug, Clone)]
enum Intent {
    New {
        key: usize,
        limit: Option<usize>,
        cost: u64,
        patience: Patience,
        id: Option<usize>,
    },
    /// A retry of an earlier request, with its own terms of waiting.
    Again {
        which: usize,
        patience: Patience,
    },
}

#[derive(Debug, Clone)]
struct Patience {
    lead: u64,
    max_wait: Option<u64>,
    free_now_only: bool,
}

/// Logs of up to `steps_max` entries.
pub(crate) fn logs(steps_max: usize) -> impl Strategy<Value = Log> {
    let limits = vec(limits(), 1..4);
    (limits, vec(step(), 1..=steps_max)).prop_map(|(limits, steps)| Script { limits, steps }.play())
}

/// Limits that look like people's and limits that do not.
fn limits() -> impl Strategy<Value = Limit> {
    let known = prop_oneof![
        Just(("1/6s", 0, 0)),
        Just(("1/6s", 0, 2)),
        Just(("1/6s", 250, 3)),
        Just(("3/s", 0, 5)),
        Just(("7/s", 20, 1)),
        Just(("10/s", 0, 10)),
        Just(("1000000/s", 0, 3)),
        Just(("1/366d", 0, 1)),
    ];
    let known = known.prop_map(|(rate, window_ms, max_reserved)| {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::from_millis(window_ms), max_reserved).unwrap())
    });
    let any = (1..10_u64, 1..9_000_u64, prop_oneof![Just(0), 1..2_000_u64], 0..7_u32);
    let any = any.prop_filter_map("a limit that can keep its promise", |(count, per_ms, window_ms, max_reserved)| {
        let rate = Rate::new(count, Span::from_millis(per_ms)).ok()?;
        Spacing::new(rate, Span::from_millis(window_ms), max_reserved).ok().map(Limit::Spacing)
    });
    prop_oneof![known, any]
}

fn step() -> impl Strategy<Value = Step> {
    let keys_max = prop_oneof![8 => Just(1_000), 1 => 0..4_u64];
    (when(), prop::bool::weighted(0.05), keys_max, vec(intent(), 0..6)).prop_map(|(when, stale, keys_max, asks)| Step {
        when,
        stale,
        keys_max,
        asks,
    })
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        2 => Just(When::Stand),
        1 => (1..20 * SECOND).prop_map(When::Back),
        3 => (1..10 * SECOND).prop_map(When::Forward),
        1 => (1..200 * SECOND).prop_map(When::Forward),
        3 => (-1..=1_i64).prop_map(When::Retry),
        1 => (-1..=1_i64).prop_map(When::Forget),
        2 => (0..KEYS.len(), -1..=1_i64).prop_map(|(key, by)| When::Free(key, by)),
    ]
}

fn intent() -> impl Strategy<Value = Intent> {
    let cost = prop_oneof![8 => 1..=5_u64, 1 => prop_oneof![Just(0), 6..1_000_u64, Just(COST_MAX), Just(COST_MAX + 1)]];
    let limit = option::weighted(0.97, 0..4_usize);
    let id = option::weighted(0.5, 0..IDS.len());
    let new = (0..KEYS.len(), limit, cost, patience(), id);
    let new = new.prop_map(|(key, limit, cost, patience, id)| Intent::New { key, limit, cost, patience, id });
    let again = (0..1_000_usize, patience()).prop_map(|(which, patience)| Intent::Again { which, patience });
    prop_oneof![4 => new, 1 => again]
}

fn patience() -> impl Strategy<Value = Patience> {
    let lead = prop_oneof![
        8 => Just(0),
        1 => prop_oneof![Just(1), 1..10 * SECOND, Just(u64::MAX)],
    ];
    let max_wait = prop_oneof![
        3 => Just(None),
        2 => (0..20 * SECOND).prop_map(Some),
        1 => prop_oneof![Just(0), Just(1), Just(u64::MAX)].prop_map(Some),
    ];
    (lead, max_wait, prop::bool::weighted(0.1)).prop_map(|(lead, max_wait, free_now_only)| Patience {
        lead,
        max_wait,
        free_now_only,
    })
}

impl Script {
    fn play(&self) -> Log {
        let mut oracle = Oracle::default();
        let mut asked = Vec::new();
        let mut entries = Vec::new();
        for (term, step) in (1..).zip(&self.steps) {
            let commands = step.asks.iter().filter_map(|intent| self.command(intent, &mut asked)).collect();
            let leader = LeaderId { term, node: term % 3 + 1 };
            let stamper = if step.stale { LeaderId { term: term - 1, ..leader } } else { leader };
            let stamp = Stamp { leader: stamper, time: Time(step.when.on(&oracle)) };
            let batch = Batch { stamp, keys_max: step.keys_max, commands };
            let verdicts = oracle.apply(leader, &batch);
            let held = (oracle.keys_busy(), oracle.ids_remembered());
            entries.push(Entry { leader, batch, verdicts, held });
        }
        Log(entries)
    }

    /// The command that an intent means, given all that was asked before.
    fn command(&self, intent: &Intent, asked: &mut Vec<Acquire>) -> Option<Command> {
        let acquire = match intent {
            Intent::New { key, limit, cost, patience, id } => {
                let key = Key::new(KEYS[*key]).unwrap();
                let limit = limit.map(|index| self.limits[index % self.limits.len()].clone());
                let identity = id.map(|id| Identity::of(IDS[id], &key, limit.as_ref(), *cost));
                Acquire { key, limit, ask: patience.ask(*cost), identity }
            }
            Intent::Again { which, patience } => {
                let first = asked.get(which % asked.len().max(1))?;
                Acquire { ask: patience.ask(first.ask.cost), ..first.clone() }
            }
        };
        asked.push(acquire.clone());
        Some(Command::Acquire(acquire))
    }
}

impl Patience {
    fn ask(&self, cost: u64) -> Ask {
        let Self { lead, max_wait, free_now_only } = *self;
        Ask { cost, lead: Span(lead), max_wait: max_wait.map(Span), free_now_only }
    }
}

impl When {
    fn on(&self, oracle: &Oracle) -> u64 {
        match *self {
            Self::Stand => oracle.now,
            Self::Back(by) => oracle.now.saturating_sub(by),
            Self::Forward(by) => oracle.now + by,
            Self::Retry(by) => oracle.last_retry_at.unwrap_or(oracle.now).saturating_add_signed(by),
            Self::Forget(by) => oracle.next_forgotten_at().unwrap_or(oracle.now).saturating_add_signed(by),
            Self::Free(key, by) => oracle.free_from(&Key::new(KEYS[key]).unwrap()).saturating_add_signed(by),
        }
    }
}

/// The scripts would prove nothing if they never got anywhere.
#[test]
fn scripts_reach_everything_there_is_to_reach() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut see = |what| *seen.entry(what).or_default() += 1;
    for _ in 0..500 {
        let log = logs(24).new_tree(&mut runner).unwrap().current();
        let mut now = Time::ZERO;
        for entry in &log.0 {
            let Some(verdicts) = &entry.verdicts else {
                see("stale stamp");
                continue;
            };
            see(match entry.batch.stamp.time.cmp(&now) {
                Ordering::Less => "clamped stamp",
                Ordering::Equal => "standing stamp",
                Ordering::Greater => "later stamp",
            });
            now = now.max(entry.batch.stamp.time);
            for (Command::Acquire(acquire), verdict) in entry.batch.commands.iter().zip(verdicts) {
                see(match verdict {
                    Verdict::Granted { replayed: true, .. } => "replay",
                    Verdict::Granted { slot, .. } if *slot == now.0 => "grant, free now",
                    Verdict::Granted { .. } if acquire.ask.lead > Span::ZERO => "grant, ahead with a lead",
                    Verdict::Granted { .. } => "grant, ahead",
                    Verdict::Denied { reason, .. } => reason.as_str(),
                    Verdict::NoLimit => "no limit",
                    Verdict::Never => "never",
                    Verdict::RequestIdReused => "reused id",
                    Verdict::TooManyKeys { .. } => "too many keys",
                });
            }
        }
    }

    assert_eq!(seen.len(), 15, "{seen:#?}");
    assert!(seen.values().all(|times| *times > 100), "{seen:#?}");
}
