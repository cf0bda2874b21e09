//! Random scripts, and the logs they become.
//!
//! A script names instants by what happens there ("when the denied request would be granted, less a nanosecond"), because
//! that is where mistakes are, and random numbers never meet them. Playing it against the oracle turns it into a log with
//! plain numbers and into the verdicts that log should get.
//!
//! The first two keys are under spacing limits that change, and under stored rules. Each of the others has one limit of any
//! kind for the whole script; `changes.rs` is about keys that go from one kind to another.

use crate::oracle::{Oracle, Verdict};
use crate::past::Past;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use quorate::limiter::{
    Bucket, Concurrency, Key, Limit, Member, Overrides, Ramp, Rate, Spacing, Span, Terms, Time, Window,
};
use quorate::limits::{COST_MAX, LEAD_NS_MAX};
use quorate::state::{
    Acquire, Batch, Command, Condition, Held, Identity, LeaderId, Outcome, Pattern, Policy, Several, SeveralRule,
    Stamp, Wanted, Withdraw, policy_name, request_id_hash,
};
use std::cmp::Ordering;
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000_000;
const KEYS: [&str; 6] = ["a", "ab", "c", "d", "github: Zürich", "ключ"];
/// So many of the keys are under spacing limits that change.
const SPACED: usize = 2;
const IDS: [&str; 5] = ["v", "w", "x", "y", "z"];
const PATTERNS: [&str; 4] = ["a", "a*", "ab", "ab*"];
const NAMES: [&str; 3] = ["one", "two", "three"];

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

impl Log {
    /// The limit under which `key` is all the time, if it is one that does not change.
    pub(crate) fn only_limit(&self, key: &Key) -> Option<Limit> {
        if KEYS[..SPACED].contains(&key.as_str()) {
            return None;
        }
        let commands = self.0.iter().flat_map(|entry| &entry.batch.commands);
        let acquires = commands.flat_map(|command| match command {
            Command::Acquire(acquire) => std::slice::from_ref(acquire),
            Command::Several(several) => &several.acquires,
            _ => &[],
        });
        acquires.flat_map(Acquire::wanted).filter(|wanted| wanted.key == *key).find_map(|wanted| wanted.limit)
    }
}

#[derive(Debug, Clone)]
struct Script {
    /// Requests choose among these, so that keys meet the same limit often and another one sometimes.
    spacings: Vec<Limit>,
    /// Of the keys that have one each.
    others: Vec<Limit>,
    /// Whoever asks for a key gets one of these: few, so that they meet.
    crowded: Vec<usize>,
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
    /// Around the instant when a key is as good as fresh.
    Free(usize, i64),
    /// Around the first slot ahead of a key, or the first end of a lease.
    Due(usize, i64),
}

#[derive(Debug, Clone)]
enum Intent {
    New(Request),
    /// A retry of an earlier request, with its own terms of waiting.
    Again {
        which: usize,
        patience: Patience,
        claim: u64,
    },
    Several(SeveralRule, Vec<Request>),
    Release(Which),
    Renew(Which),
    Withdraw {
        id: usize,
        claim: u64,
        keys: Vec<usize>,
    },
    Reset(usize),
    Put {
        name: usize,
        pattern: usize,
        limit: usize,
        overrides: Vec<Member>,
        condition: Condition,
    },
    Delete {
        name: usize,
        condition: Condition,
    },
}

#[derive(Debug, Clone)]
struct Request {
    keys: Vec<(usize, u64)>,
    limit: Option<usize>,
    patience: Patience,
    id: Option<usize>,
    claim: u64,
}

/// Which permit.
#[derive(Debug, Clone)]
enum Which {
    /// One that can be given back, if there is any.
    Live(usize),
    /// Any number, of any key.
    Any(usize, u64),
}

#[derive(Debug, Clone)]
struct Patience {
    lead: u64,
    max_wait: Option<u64>,
    free_now_only: bool,
}

/// Logs of up to `steps_max` entries.
pub(crate) fn logs(steps_max: usize) -> impl Strategy<Value = Log> {
    let others = vec(any_limit(), KEYS.len() - SPACED);
    let crowded = prop::sample::subsequence((0..KEYS.len()).collect::<Vec<_>>(), 1..4);
    let script = (vec(spacing(), 1..4), others, crowded, vec(step(), 1..=steps_max));
    script.prop_map(|(spacings, others, crowded, steps)| Script { spacings, others, crowded, steps }.play())
}

/// Limits that look like people's and limits that do not.
pub(crate) fn spacing() -> impl Strategy<Value = Limit> {
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

pub(crate) fn bucket() -> impl Strategy<Value = Limit> {
    let figures = (1..10_u64, 1..9_000_u64, 1..8_u64, prop_oneof![3 => Just(0), 1 => 1..2_000_u64], 0..5_u32);
    figures.prop_filter_map("a bucket that can keep its promise", |(count, per_ms, burst, window_ms, max_reserved)| {
        let rate = Rate::new(count, Span::from_millis(per_ms)).ok()?;
        Bucket::new(rate, burst, Span::from_millis(window_ms), max_reserved).ok().map(Limit::Bucket)
    })
}

pub(crate) fn window() -> impl Strategy<Value = Limit> {
    let figures = (1..8_u64, 1..200_u64, prop_oneof![Just(1), Just(2), Just(5), Just(10)], prop::bool::weighted(0.3));
    figures.prop_map(|(count, tenths, cells, aligned)| {
        let rate = Rate::new(count, Span::from_millis(tenths * 100)).unwrap();
        let sliding = || Window::sliding(rate, Some(Span::from_millis(tenths * 100 / cells))).ok();
        let sliding = if aligned { None } else { sliding() };
        Limit::Window(sliding.unwrap_or(Window::aligned(rate)))
    })
}

pub(crate) fn concurrency() -> impl Strategy<Value = Limit> {
    (1..6_u64, 10..20_000_u64)
        .prop_map(|(max, lease_ms)| Limit::Concurrency(Concurrency::new(max, Span::from_millis(lease_ms)).unwrap()))
}

/// Spacing limits and buckets that begin up to ten times slower, and grow slowly enough that no permit would end sooner by
/// starting later.
pub(crate) fn ramped() -> impl Strategy<Value = Limit> {
    let figures = (10..2_000_u64, 1..10_u64, 1..10_u64, option::of(1..6_u64), 0..5_u32);
    figures.prop_map(|(interval_ms, slower, longer, burst, max_reserved)| {
        let rate = Rate::new(1, Span::from_millis(interval_ms)).unwrap();
        let from = Rate::new(1, Span::from_millis(interval_ms * slower)).unwrap();
        let over = Span::from_millis(interval_ms * slower * slower * 5 + longer * 1_000);
        let ramp = Ramp { from, over };
        match burst {
            None => {
                let spacing = Spacing::new(rate, Span::ZERO, max_reserved).unwrap();
                Limit::Spacing(spacing.with_ramp(ramp).unwrap())
            }
            Some(burst) => {
                let bucket = Bucket::new(rate, burst, Span::ZERO, max_reserved).unwrap();
                Limit::Bucket(bucket.with_ramp(ramp).unwrap())
            }
        }
    })
}

pub(crate) fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![1 => spacing(), 3 => bucket(), 3 => window(), 2 => concurrency(), 1 => ramped()]
}

fn step() -> impl Strategy<Value = Step> {
    let keys_max = prop_oneof![8 => Just(1_000), 1 => 0..6_u64];
    (when(), prop::bool::weighted(0.05), keys_max, vec(intent(), 0..6)).prop_map(|(when, stale, keys_max, asks)| Step {
        when,
        stale,
        keys_max,
        asks,
    })
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        5 => Just(When::Stand),
        1 => (1..20 * SECOND).prop_map(When::Back),
        4 => (1..2 * SECOND).prop_map(When::Forward),
        1 => (1..200 * SECOND).prop_map(When::Forward),
        4 => (-1..=1_i64).prop_map(When::Retry),
        1 => (-1..=1_i64).prop_map(When::Forget),
        2 => (0..KEYS.len(), -1..=1_i64).prop_map(|(key, by)| When::Free(key, by)),
        2 => (0..KEYS.len(), -1..=1_i64).prop_map(|(key, by)| When::Due(key, by)),
    ]
}

fn intent() -> impl Strategy<Value = Intent> {
    let again = (0..1_000_usize, patience(), 0..3_u64);
    let again = again.prop_map(|(which, patience, claim)| Intent::Again { which, patience, claim });
    let rule = prop_oneof![Just(SeveralRule::Each), Just(SeveralRule::InLine), Just(SeveralRule::AllOrNothing)];
    let several = (rule, vec(request(), 1..5)).prop_map(|(rule, requests)| Intent::Several(rule, requests));
    let withdraw = (0..IDS.len(), 0..3_u64, vec(0..KEYS.len(), 1..3));
    let withdraw = withdraw.prop_map(|(id, claim, keys)| Intent::Withdraw { id, claim, keys });
    let overrides = vec(prop::sample::select(Member::ALL.to_vec()), 0..4);
    let put = (0..NAMES.len(), 0..PATTERNS.len(), 0..4_usize, overrides, condition());
    let put = put.prop_map(|(name, pattern, limit, overrides, condition)| Intent::Put {
        name,
        pattern,
        limit,
        overrides,
        condition,
    });
    let delete = (0..NAMES.len(), condition()).prop_map(|(name, condition)| Intent::Delete { name, condition });
    prop_oneof![
        12 => request().prop_map(Intent::New),
        3 => again,
        2 => several,
        4 => which().prop_map(Intent::Release),
        1 => which().prop_map(Intent::Renew),
        2 => withdraw,
        1 => (0..KEYS.len()).prop_map(Intent::Reset),
        2 => put,
        1 => delete,
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::Always),
        1 => Just(Condition::Exists),
        1 => Just(Condition::Absent),
        1 => (0..6_u64).prop_map(Condition::Revision),
    ]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        6 => any::<usize>().prop_map(Which::Live),
        1 => (0..KEYS.len(), 0..40_u64).prop_map(|(key, permit)| Which::Any(key, permit)),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    let cost = prop_oneof![
        6 => Just(1),
        6 => 1..=5_u64,
        1 => prop_oneof![Just(0), 6..1_000_u64, Just(COST_MAX), Just(COST_MAX + 1)],
    ];
    let key = (0..KEYS.len(), cost);
    let keys = prop_oneof![5 => vec(key.clone(), 1), 1 => vec(key, 2..4)];
    let (limit, id) = (option::weighted(0.9, 0..4_usize), option::weighted(0.4, 0..IDS.len()));
    (keys, limit, patience(), id, 0..3_u64).prop_map(|(keys, limit, patience, id, claim)| Request {
        keys,
        limit,
        patience,
        id,
        claim,
    })
}

fn patience() -> impl Strategy<Value = Patience> {
    let lead = prop_oneof![
        8 => Just(0),
        1 => prop_oneof![Just(1), 1..10 * SECOND, Just(LEAD_NS_MAX)],
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
            let commands = step.asks.iter().filter_map(|intent| self.command(intent, &oracle, &mut asked)).collect();
            let leader = LeaderId { term, node: term % 3 + 1 };
            let stamper = if step.stale { LeaderId { term: term - 1, ..leader } } else { leader };
            let stamp = Stamp { leader: stamper, time: Time(step.when.on(&oracle)) };
            let batch = Batch { stamp, keys_max: step.keys_max, commands };
            let verdicts = oracle.apply(leader, &batch);
            let held = (oracle.keys.len(), oracle.ids_remembered());
            entries.push(Entry { leader, batch, verdicts, held });
        }
        Log(entries)
    }

    /// The command that an intent means, given all that was asked before.
    fn command(&self, intent: &Intent, oracle: &Oracle, asked: &mut Vec<Acquire>) -> Option<Command> {
        let held = |which: &Which| match *which {
            Which::Any(key, permit) => Held { key: Key::new(KEYS[key]).unwrap(), permit },
            Which::Live(which) => {
                let live = oracle.live();
                let (key, permit) = live.get(which % live.len().max(1)).cloned().unwrap_or((Key::new("a").unwrap(), 1));
                Held { key, permit }
            }
        };
        Some(match intent {
            Intent::New(request) => {
                let acquire = self.acquire(request);
                asked.push(acquire.clone());
                Command::Acquire(acquire)
            }
            Intent::Again { which, patience, claim } => {
                let first = asked.get(which % asked.len().max(1))?;
                Command::Acquire(Acquire { terms: patience.terms(), claim: *claim, ..first.clone() })
            }
            Intent::Several(rule, requests) => {
                let acquires = requests.iter().map(|request| self.acquire(request)).collect();
                Command::Several(Several { acquires, rule: *rule })
            }
            Intent::Release(which) => Command::Release(held(which)),
            Intent::Renew(which) => Command::Renew(held(which)),
            Intent::Withdraw { id, claim, keys } => {
                let named = asked.iter().rev().filter_map(|acquire| acquire.identity).nth(*id);
                let id = named.map_or(request_id_hash(IDS[*id]), |identity| identity.id);
                // Those of the request itself, if there was one.
                let same = asked.iter().rfind(|acquire| acquire.identity.is_some_and(|identity| identity.id == id));
                let keys = match same {
                    Some(acquire) => acquire.wanted().map(|wanted| wanted.key.clone()).collect(),
                    None => keys.iter().map(|key| Key::new(KEYS[*key]).unwrap()).collect(),
                };
                Command::Withdraw(Withdraw { id, claim: *claim, keys })
            }
            Intent::Reset(key) => Command::Reset(Key::new(KEYS[*key]).unwrap()),
            Intent::Put { name, pattern, limit, overrides, condition } => Command::PutPolicy {
                name: policy_name(NAMES[*name]).unwrap(),
                policy: Policy {
                    pattern: Pattern::new(PATTERNS[*pattern]).unwrap(),
                    limit: self.spacings[limit % self.spacings.len()],
                    overrides: overrides.iter().fold(Overrides::NONE, |all, member| all.with(*member)),
                },
                condition: *condition,
            },
            Intent::Delete { name, condition } => {
                Command::DeletePolicy { name: policy_name(NAMES[*name]).unwrap(), condition: *condition }
            }
        })
    }

    fn acquire(&self, request: &Request) -> Acquire {
        let first = request.keys[0].0;
        let wanted = request.keys.iter().zip(first..).map(|((_, cost), key)| {
            let key = &self.crowded[key % self.crowded.len()];
            let limit = request.limit.map(|index| match key.checked_sub(SPACED) {
                Some(other) => self.others[other],
                None => self.spacings[index % self.spacings.len()],
            });
            Wanted { key: Key::new(KEYS[*key]).unwrap(), limit, cost: *cost }
        });
        let mut more: Vec<_> = wanted.collect();
        let identity = request.id.map(|id| Identity::of(IDS[id], &more));
        let first = more.remove(0);
        Acquire {
            first,
            more,
            terms: request.patience.terms(),
            identity,
            claim: request.claim,
            worker: None,
            replay_only: false,
        }
    }
}

impl Patience {
    fn terms(&self) -> Terms {
        let Self { lead, max_wait, free_now_only } = *self;
        Terms { lead: Span(lead), max_wait: max_wait.map(Span), free_now_only }
    }
}

impl When {
    fn on(&self, oracle: &Oracle) -> u64 {
        let past = |key: usize| oracle.keys.get(&Key::new(KEYS[key]).unwrap());
        match *self {
            Self::Stand => oracle.now,
            Self::Back(by) => oracle.now.saturating_sub(by),
            Self::Forward(by) => oracle.now + by,
            Self::Retry(by) => oracle.last_retry_at.unwrap_or(oracle.now).saturating_add_signed(by),
            Self::Forget(by) => oracle.next_forgotten_at().unwrap_or(oracle.now).saturating_add_signed(by),
            Self::Free(key, by) => past(key).map_or(0, Past::idle_at).saturating_add_signed(by),
            Self::Due(key, by) => {
                let given = past(key).into_iter().flat_map(|past| &past.given);
                let due = given.map(|given| given.ends.unwrap_or(given.slot)).filter(|due| *due > oracle.now);
                due.min().unwrap_or(oracle.now).saturating_add_signed(by)
            }
        }
    }
}

/// The scripts would prove nothing if they never got anywhere.
#[test]
fn scripts_reach_everything_there_is_to_reach() {
    let mut runner = TestRunner::deterministic();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut see = |what: String| *seen.entry(what).or_default() += 1;
    for _ in 0..1_500 {
        let log = logs(24).new_tree(&mut runner).unwrap().current();
        let mut now = Time::ZERO;
        for entry in &log.0 {
            let Some(verdicts) = &entry.verdicts else {
                see("stale stamp".to_owned());
                continue;
            };
            let stamp = match entry.batch.stamp.time.cmp(&now) {
                Ordering::Less => "clamped",
                Ordering::Equal => "standing",
                Ordering::Greater => "later",
            };
            see(format!("{stamp} stamp"));
            now = now.max(entry.batch.stamp.time);
            for (command, verdict) in entry.batch.commands.iter().zip(verdicts) {
                match (command, verdict) {
                    (Command::Several(several), Verdict::Several(verdicts)) => {
                        for verdict in verdicts {
                            see(format!("{:?}: {}", several.rule, verdict.word(now)));
                        }
                    }
                    (Command::Acquire(acquire), verdict) if acquire.more.is_empty() => {
                        let kind = acquire.first.limit.map_or("none", |limit| limit.kind());
                        see(format!("{kind}: {}", verdict.word(now)));
                    }
                    (_, verdict) => see(verdict.word(now)),
                }
            }
        }
    }
    // Whoever is not asked for here is too rare to be relied on: in 1500 logs none of these may be.
    assert!(seen.values().filter(|times| **times >= 20).count() >= 95, "{seen:#?}");
    for (what, least) in
        [("released", 500), ("withdrawn", 20), ("renewed", 50), ("granted, ahead", 100), ("replay", 10)]
    {
        assert!(seen.get(what).is_some_and(|times| *times >= least), "{what}: {seen:#?}");
    }
}

impl Verdict {
    /// What it is, in a word.
    fn word(&self, now: Time) -> String {
        let word = match self {
            Self::Granted { replayed: true, .. } => "replay",
            Self::Granted { slot, .. } if *slot == now.0 => "granted, free now",
            Self::Granted { .. } => "granted, ahead",
            Self::Denied { reason, .. } => reason.as_str(),
            Self::Never { .. } => "never",
            Self::Renewed(_) => "renewed",
            Self::Several(_) => "several",
            Self::Just(outcome) => match outcome {
                Outcome::NoLimit { .. } => "no limit",
                Outcome::RequestIdReused => "reused id",
                Outcome::TooManyKeys { .. } => "too many keys",
                Outcome::Skipped => "skipped",
                Outcome::Released(true) => "released",
                Outcome::Released(false) => "released too late",
                Outcome::NoPermit => "no permit",
                Outcome::Withdrawn(permits) if permits.iter().all(Option::is_none) => "withdrew nothing",
                Outcome::Withdrawn(_) => "withdrawn",
                Outcome::Reset(true) => "reset",
                Outcome::Reset(false) => "reset nothing",
                Outcome::PolicyPut { changed: true, .. } => "rule stored",
                Outcome::PolicyPut { changed: false, .. } => "same rule stored",
                Outcome::PolicyDeleted { .. } => "rule deleted",
                Outcome::NoPolicy => "no rule",
                Outcome::OtherRevision { .. } => "other revision",
                Outcome::PolicyConflict { .. } => "conflict of rules",
                other => panic!("no script gets {other:?}"),
            },
        };
        word.to_owned()
    }
}
