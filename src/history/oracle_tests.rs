//! Random histories against an oracle that simply remembers everything: whatever is written when, in however many volumes, and
//! however often the node dies in between, the answers are those of one long memory.

use super::event::{Applied, Event};
use super::place::group_of;
use super::record::Counts;
use super::store_tests::{BOUNDS, Bench, DAY_MS, WALL, key};
use super::view::{Bucket, Denied, Depth, Permit};
use crate::limiter::Time;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND_NS: u64 = 1_000_000_000;
const DEPTH: Depth = Depth { most: 60, seconds: 90, minutes: 45 };
const POLICIES: [Option<&str>; 3] = [None, Some("api"), Some("bulk")];

/// Few keys, two of them in one group.
fn keys() -> [String; 3] {
    let neighbour = (0..100_000).map(|number| format!("n/{number}")).find(|name| group_of(name) == group_of("a"));
    ["a".to_owned(), neighbour.unwrap(), "b".to_owned()]
}

#[derive(Debug, Clone)]
enum Step {
    /// An entry so many milliseconds after the last.
    Entry(u64, Vec<Doing>),
    /// Many permits of one key.
    Flood(usize),
    Write,
    /// The node dies, starts again, and applies its log from the beginning.
    Crash,
    /// Another volume begins.
    Volume,
}

#[derive(Debug, Clone)]
enum Doing {
    /// Of which key, by which policy.
    Grant(usize, usize),
    Deny(usize, usize),
    /// The permit that was granted so many permits ago.
    Release(usize),
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        4 => (0..3_usize, 0..3_usize).prop_map(|(key, policy)| Doing::Grant(key, policy)),
        2 => (0..3_usize, 0..3_usize).prop_map(|(key, policy)| Doing::Deny(key, policy)),
        1 => (0..20_usize).prop_map(Doing::Release),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let later = prop_oneof![Just(0), 1..1_500_u64, Just(20_000), Just(61_000), Just(1_000_000)];
    prop_oneof![
        12 => (later, prop::collection::vec(doing(), 0..8)).prop_map(|(later, doings)| Step::Entry(later, doings)),
        1 => (0..3_usize).prop_map(Step::Flood),
        4 => Just(Step::Write),
        2 => Just(Step::Crash),
        1 => Just(Step::Volume),
    ]
}

/// Everything that was ever told, in its order.
#[derive(Default)]
struct Oracle {
    log: Vec<Applied>,
    permits: Vec<(usize, u64)>,
    now: Time,
}

impl Oracle {
    fn entry(&mut self, later_ms: u64, doings: &[Doing]) -> Applied {
        self.now = Time(self.now.0 + later_ms * 1_000_000);
        let events = doings.iter().filter_map(|doing| self.event(doing)).collect();
        let entry = Applied { index: self.log.len() as u64 + 1, at: self.now, events };
        self.log.push(entry.clone());
        entry
    }

    fn event(&mut self, doing: &Doing) -> Option<Event> {
        let (names, slot) = (keys(), Time(self.now.0 + 5));
        Some(match *doing {
            Doing::Grant(number, policy) => {
                let permit = self.permits.len() as u64 + 1;
                self.permits.push((number, permit));
                let worker = permit.is_multiple_of(3).then(|| "w".into());
                let policy = POLICIES[policy].map(Into::into);
                Event::Granted { key: key(&names[number]), policy, permit, slot, cost: 1 + permit % 2, worker }
            }
            Doing::Deny(number, policy) => {
                let policy = POLICIES[policy].map(Into::into);
                Event::Denied { key: key(&names[number]), policy, cost: 1, reason: "not_free_now", worker: None }
            }
            Doing::Release(back) => {
                let (number, permit) = *self.permits.iter().rev().nth(back)?;
                Event::Released { key: key(&names[number]), permit }
            }
        })
    }

    fn events(&self) -> impl Iterator<Item = (Time, &Event)> {
        self.log.iter().flat_map(|entry| entry.events.iter().map(|event| (entry.at, event)))
    }

    /// Granted and denied events with what they count.
    fn counted(&self) -> impl Iterator<Item = (Time, &str, Option<&str>, Counts)> {
        self.events().filter_map(|(at, event)| match event {
            Event::Granted { key, policy, cost, .. } => {
                Some((at, key.as_str(), policy.as_deref(), Counts { granted: 1, cost: *cost, denied: 0 }))
            }
            Event::Denied { key, policy, .. } => {
                Some((at, key.as_str(), policy.as_deref(), Counts { granted: 0, cost: 0, denied: 1 }))
            }
            _ => None,
        })
    }

    /// Number, slot, decision, cost, policy, worker and whether it was given back.
    fn permits(&self, name: &str) -> Vec<String> {
        let released: Vec<_> = self
            .events()
            .filter_map(|(_, event)| match event {
                Event::Released { permit, .. } => Some(*permit),
                _ => None,
            })
            .collect();
        let mut permits: Vec<_> = self
            .events()
            .filter_map(|(at, event)| match event {
                Event::Granted { key, policy, permit, slot, cost, worker } if key.as_str() == name => {
                    Some(format!("{permit} {slot:?} {at:?} {cost} {policy:?} {worker:?} {}", released.contains(permit)))
                }
                _ => None,
            })
            .collect();
        permits.reverse();
        permits.truncate(DEPTH.most);
        permits
    }

    fn denied(&self, name: &str) -> Vec<String> {
        let mut denied: Vec<_> = self
            .events()
            .filter_map(|(at, event)| match event {
                Event::Denied { key, policy, cost, reason, worker } if key.as_str() == name => {
                    Some(format!("{at:?} {cost} {reason} {policy:?} {worker:?}"))
                }
                _ => None,
            })
            .collect();
        denied.reverse();
        denied.truncate(DEPTH.most);
        denied
    }

    /// The last so many buckets of this width with something of a key in them.
    fn buckets(&self, name: &str, width_ns: u64, count: u64) -> Vec<Bucket> {
        let first = (self.now.0 / width_ns + 1).saturating_sub(count);
        let mut found: BTreeMap<u64, Counts> = BTreeMap::new();
        for (at, _, _, counts) in self.counted().filter(|(at, key, ..)| *key == name && at.0 / width_ns >= first) {
            *found.entry(at.0 / width_ns).or_default() += counts;
        }
        found.into_iter().map(|(bucket, counts)| Bucket { at: Time(bucket * width_ns), counts }).collect()
    }
}

fn check(bench: &Bench, oracle: &Oracle) {
    for name in keys() {
        let found = bench.store.key(&key(&name), &DEPTH, WALL).unwrap();
        let permits = found.permits.iter().map(|found| {
            let Permit { permit, slot, at, cost, policy, worker, released, .. } = found;
            format!("{permit} {slot:?} {at:?} {cost} {policy:?} {worker:?} {released}")
        });
        assert_eq!(permits.collect::<Vec<_>>(), oracle.permits(&name));
        let denied = found.denied.iter().map(|found| {
            let Denied { at, cost, reason, policy, worker, .. } = found;
            format!("{at:?} {cost} {reason} {policy:?} {worker:?}")
        });
        assert_eq!(denied.collect::<Vec<_>>(), oracle.denied(&name));
        assert_eq!(found.seconds, oracle.buckets(&name, SECOND_NS, DEPTH.seconds));
        assert_eq!(found.minutes, oracle.buckets(&name, 60 * SECOND_NS, DEPTH.minutes));
        assert_eq!(found.until, oracle.now);
    }
    check_usage(bench, oracle);
}

fn check_usage(bench: &Bench, oracle: &Oracle) {
    let first = (oracle.now.0 / (60 * SECOND_NS)).saturating_sub(59) * 60 * SECOND_NS;
    let hour: Vec<_> = oracle.counted().filter(|(at, ..)| at.0 >= first).collect();
    for wanted in POLICIES {
        let found = bench.store.usage(wanted, 10).unwrap();
        let mut total = Counts::default();
        let (mut minutes, mut policies) = (BTreeMap::<_, Counts>::new(), BTreeMap::<_, Counts>::new());
        for (at, _, policy, counts) in hour.iter().filter(|(_, _, policy, _)| wanted.is_none() || *policy == wanted) {
            total += *counts;
            *minutes.entry(at.0 / (60 * SECOND_NS)).or_default() += *counts;
            if let Some(policy) = policy {
                *policies.entry((*policy).to_owned()).or_default() += *counts;
            }
        }
        let minutes = minutes.into_iter().map(|(minute, counts)| Bucket { at: Time(minute * 60 * SECOND_NS), counts });
        assert_eq!((found.total, found.minutes), (total, minutes.collect()));
        assert_eq!(found.policies.into_iter().collect::<BTreeMap<_, _>>(), policies);
        assert_eq!((found.since, found.until, found.complete), (Time(first), oracle.now, true));
        if wanted.is_none() {
            let mut keys = BTreeMap::<_, (Option<String>, Counts)>::new();
            for (_, key, policy, counts) in &hour {
                let known = keys.entry((*key).to_owned()).or_default();
                known.0 = policy.map(str::to_owned);
                known.1 += *counts;
            }
            let found = found.keys.into_iter().map(|(key, policy, counts)| (key.as_str().to_owned(), (policy, counts)));
            assert_eq!(found.collect::<BTreeMap<_, _>>(), keys);
        }
    }
}

fn run(steps: &[Step]) {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    let (mut oracle, mut days) = (Oracle::default(), 0);
    for step in steps {
        match step {
            Step::Entry(later_ms, doings) => bench.desk.add(oracle.entry(*later_ms, doings), WALL),
            Step::Flood(key) => {
                let doings: Vec<_> = (0..700).map(|number| Doing::Grant(*key, number % 3)).collect();
                bench.desk.add(oracle.entry(1, &doings), WALL);
            }
            Step::Write => bench.store.write(&mut bench.desk).unwrap(),
            Step::Crash => {
                drop(bench);
                bench = Bench::open(dir.path(), BOUNDS);
                oracle.log.iter().for_each(|entry| bench.desk.add(entry.clone(), WALL));
            }
            // None of them gets too old.
            Step::Volume if days < 5 => {
                days += 1;
                bench.store.tidy(WALL + days * DAY_MS).unwrap();
            }
            Step::Volume => {}
        }
        if matches!(step, Step::Write) {
            check(&bench, &oracle);
        }
    }
    bench.store.write(&mut bench.desk).unwrap();
    check(&bench, &oracle);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_those_of_one_long_memory(steps in prop::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
