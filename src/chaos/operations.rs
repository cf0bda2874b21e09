//! From attempts to operations: what the workers wrote down, as the model wants to see it.
//!
//! A request is one operation, however many attempts it took: it began with the first that can have reached anybody, and
//! ended with the first answer that told its permit.

use super::history::{Attempt, Event, Grant, Outcome, RequestNumber};
use super::load::{Key, Promise};
use super::model::{Call, Op};
use crate::limits::DRIFT_PPM;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A request that nobody was told the end of can take a slot for so long after it was sent.
const UNSEEN_FOR_NS: u64 = 60_000_000_000;

/// A permit that some worker was told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) key: u16,
    pub(super) request: RequestNumber,
    pub(super) grant: Grant,
    /// Cluster time of the decision, where the answer tells.
    pub(super) stamp_us: Option<u64>,
    /// First sent, of the attempts that can have counted.
    pub(super) from_ns: u64,
    /// First told.
    pub(super) to_ns: u64,
}

/// The whole history, sorted out.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// In the order of their permits, which is the order of the log.
    pub(super) granted: Vec<Granted>,
    pub(super) calls: Vec<Call>,
    /// What contradicts itself, whatever the order.
    pub(super) contradictions: Vec<String>,
    pub(super) denied: u64,
    /// Denials that could have been found wrong: those that unseen requests do not explain by themselves.
    pub(super) denials_judged: u64,
    pub(super) looks: u64,
    /// Looks that found nothing.
    pub(super) idle: u64,
    pub(super) released: u64,
    /// Permits of spaced keys.
    pub(super) spaced: usize,
    /// Permits that were given back, or may have been.
    pub(super) given_back: HashSet<u64>,
    pub(super) not_applied: u64,
    pub(super) unknown_attempts: u64,
    /// Requests whose end nobody knows.
    pub(super) unknown: u64,
    pub(super) replayed: u64,
    pub(super) discarded: u64,
}

impl Operations {
    /// Cluster time ran at most at `rate_ppm` of real time.
    pub(super) fn sort_out(events: &[Event], keys: &[Key], rate_ppm: u64) -> Self {
        let mut operations = Self::default();
        let mut requests: BTreeMap<RequestNumber, Vec<&Attempt>> = BTreeMap::new();
        for event in events {
            match event {
                Event::Acquire(attempt) => requests.entry(attempt.request).or_default().push(attempt),
                Event::Discarded { .. } => operations.discarded += 1,
                Event::Release(_) | Event::Look(_) => {}
            }
        }
        // Requests that may hold a slot that nobody was told of, by key: when they were sent.
        let mut unseen: HashMap<u16, Vec<u64>> = HashMap::new();
        for attempts in requests.values_mut() {
            attempts.sort_by_key(|attempt| attempt.sent_ns);
            operations.request(attempts, keys, &mut unseen);
        }
        operations.granted.sort_by_key(|granted| granted.grant.permit);
        operations.denials(&requests, keys, &unseen);
        operations.others(events, &unseen, rate_ppm);
        operations
    }

    fn request(&mut self, attempts: &[&Attempt], keys: &[Key], unseen: &mut HashMap<u16, Vec<u64>>) {
        let first = attempts[0];
        let (key, request) = (first.key, first.request);
        let mut granted: Option<Granted> = None;
        let mut open = None;
        for attempt in attempts {
            match &attempt.outcome {
                Outcome::Granted(grant) => {
                    self.replayed += u64::from(grant.replayed);
                    let from_ns = open.unwrap_or(attempt.sent_ns);
                    match &mut granted {
                        None => {
                            let stamp_us = stamp_us(&keys[usize::from(key)], grant);
                            let to_ns = attempt.back_ns;
                            granted = Some(Granted { key, request, grant: *grant, stamp_us, from_ns, to_ns });
                        }
                        Some(known) => {
                            known.to_ns = known.to_ns.min(attempt.back_ns);
                            if (known.grant.permit, known.grant.slot_us) != (grant.permit, grant.slot_us) {
                                self.contradictions.push(format!(
                                    "request {request:?} got permit {} at {} µs and permit {} at {} µs",
                                    known.grant.permit, known.grant.slot_us, grant.permit, grant.slot_us
                                ));
                            }
                            if !grant.replayed {
                                self.contradictions.push(format!("request {request:?} was granted twice"));
                            }
                        }
                    }
                }
                Outcome::Denied(_) => self.denied += 1,
                Outcome::NotApplied(_) => self.not_applied += 1,
                Outcome::Unknown(_) | Outcome::Expired => {
                    self.unknown_attempts += 1;
                    open.get_or_insert(attempt.sent_ns);
                }
                Outcome::Wrong(what) => self.contradictions.push(format!("request {request:?} was answered: {what}")),
            }
        }
        if open.is_some() {
            unseen.entry(key).or_default().push(first.sent_ns);
        }
        match (granted, open) {
            (Some(granted), _) => {
                let unit_us = keys[usize::from(key)].unit_us();
                let Grant { permit, slot_us, .. } = granted.grant;
                let op = Op::Grant { permit, slot_us, unit_us, stamp_us: granted.stamp_us };
                self.calls.push(Call { key, from_ns: granted.from_ns, to_ns: granted.to_ns, op });
                self.spaced += usize::from(unit_us > 0);
                self.granted.push(granted);
            }
            (None, Some(sent_ns)) => {
                self.unknown += 1;
                self.calls.push(Call { key, from_ns: sent_ns, to_ns: u64::MAX, op: Op::Unknown });
            }
            (None, None) => {}
        }
    }

    fn denials(
        &mut self,
        requests: &BTreeMap<RequestNumber, Vec<&Attempt>>,
        keys: &[Key],
        unseen: &HashMap<u16, Vec<u64>>,
    ) {
        for attempt in requests.values().flatten() {
            let Outcome::Denied(Some(farther_than_us)) = attempt.outcome else { continue };
            let near = |sent: &&u64| **sent <= attempt.back_ns && **sent + UNSEEN_FOR_NS > attempt.sent_ns;
            let unseen = unseen.get(&attempt.key).map_or(0, |sent| sent.iter().filter(near).count() as u64);
            let unit_us = keys[usize::from(attempt.key)].unit_us();
            self.denials_judged += u64::from(unseen * unit_us <= farther_than_us);
            let op = Op::Denied { farther_than_us, unseen };
            self.calls.push(Call { key: attempt.key, from_ns: attempt.sent_ns, to_ns: attempt.back_ns, op });
        }
    }

    /// Looks and releases, and whatever of them no order could explain.
    fn others(&mut self, events: &[Event], unseen: &HashMap<u16, Vec<u64>>, rate_ppm: u64) {
        let latest = Latest::of(&self.granted, rate_ppm);
        let told: HashSet<(u16, u64)> =
            self.granted.iter().map(|granted| (granted.key, granted.grant.permit)).collect();
        let mut strange: HashMap<u16, HashSet<u64>> = HashMap::new();
        let mut given_back = HashSet::new();
        for event in events {
            match event {
                Event::Look(look) => {
                    self.looks += 1;
                    let unseen = look.permit != 0 && !told.contains(&(look.key, look.permit));
                    if unseen {
                        strange.entry(look.key).or_default().insert(look.permit);
                    }
                    self.idle += u64::from(look.permit == 0);
                    let now_us =
                        if look.permit == 0 { latest.cluster_us(look.sent_ns, look.back_ns) } else { look.now_us };
                    let op = Op::Look { permit: look.permit, now_us, unseen };
                    self.calls.push(Call { key: look.key, from_ns: look.sent_ns, to_ns: look.back_ns, op });
                }
                Event::Release(release) => {
                    if release.released != Some(false) {
                        self.given_back.insert(release.permit);
                    }
                    let (op, to_ns) = match release.released {
                        Some(true) => {
                            self.released += 1;
                            if !given_back.insert(release.permit) {
                                self.contradictions.push(format!("permit {} was given back twice", release.permit));
                            }
                            (Op::Release { permit: release.permit }, release.back_ns)
                        }
                        Some(false) => continue,
                        None => (Op::MaybeRelease { permit: release.permit }, u64::MAX),
                    };
                    self.calls.push(Call { key: release.key, from_ns: release.sent_ns, to_ns, op });
                }
                Event::Acquire(_) | Event::Discarded { .. } => {}
            }
        }
        for (key, permits) in strange {
            let may_be = unseen.get(&key).map_or(0, Vec::len);
            if permits.len() > may_be {
                self.contradictions.push(format!(
                    "key {key} showed {} permits that nobody was told of, and only {may_be} requests were lost",
                    permits.len()
                ));
            }
        }
    }

    /// Permits whose decision can be dated.
    pub(super) fn stamps(&self) -> usize {
        self.granted.iter().filter(|granted| granted.stamp_us.is_some()).count()
    }

    /// Every answer that was about the register.
    pub(super) fn answered(&self) -> u64 {
        self.granted.len() as u64 + self.denied + self.looks + self.released
    }
}

/// How late it can have been in the cluster when a look was answered. An idle key does not tell cluster time; but no stamp came
/// before its request was sent, and cluster time runs no faster than clocks may (invariant M).
///
/// Only what was answered before the look was sent bounds it. A leader may have read a later time for the look and stamped it
/// nowhere, and the next one does not know of that: its stamps, from requests that were sent meanwhile, may lie behind.
struct Latest {
    /// When a request was answered, and the least that cluster time was ahead of one by then, in nanoseconds times a million.
    least: Vec<(u64, i128)>,
    rate_ppm: i128,
}

impl Latest {
    fn of(granted: &[Granted], rate_ppm: u64) -> Self {
        let rate_ppm = i128::from(rate_ppm);
        let ahead = |granted: &Granted| {
            let stamp = i128::from(granted.stamp_us?) * 1_000_000_000;
            Some((granted.to_ns, stamp - rate_ppm * i128::from(granted.from_ns)))
        };
        let mut least: Vec<(u64, i128)> = granted.iter().filter_map(ahead).collect();
        least.sort_unstable();
        let mut so_far = i128::MAX;
        for (_, ahead) in &mut least {
            so_far = so_far.min(*ahead);
            *ahead = so_far;
        }
        Self { least, rate_ppm }
    }

    fn cluster_us(&self, sent_ns: u64, back_ns: u64) -> u64 {
        let at = self.least.partition_point(|(to_ns, _)| *to_ns <= sent_ns);
        let Some((_, ahead)) = at.checked_sub(1).map(|at| self.least[at]) else { return u64::MAX / 2 };
        u64::try_from((ahead + self.rate_ppm * i128::from(back_ns)) / 1_000_000_000 + 1).unwrap_or(0)
    }
}

/// When a permit was decided, worked back from its deadline `D + W − ⌈2r(D + W)⌉ − ⌈rI⌉` after the first send.
fn stamp_us(key: &Key, grant: &Grant) -> Option<u64> {
    let Promise::Spacing { interval_us, window_us, .. } = key.promise else { return None };
    let before_us = grant.before_us.filter(|before| *before > 0 && !grant.held)?;
    let whole = u128::from(before_us + (interval_us * DRIFT_PPM).div_ceil(1_000_000)) * 1_000_000;
    let ahead_and_window = u64::try_from(whole / u128::from(1_000_000 - 2 * DRIFT_PPM)).ok()?;
    Some(grant.slot_us.saturating_sub(ahead_and_window.saturating_sub(window_us)))
}

#[cfg(test)]
mod tests {
    use super::super::history::{Look, Release};
    use super::super::load::keys;
    use super::*;

    const RATE: u64 = 1_000_000 + DRIFT_PPM;

    fn attempt(number: u64, sent_ns: u64, outcome: Outcome) -> Event {
        Event::Acquire(Attempt { request: (1, number), key: 0, sent_ns, back_ns: sent_ns + 10, outcome })
    }

    fn grant(permit: u64, replayed: bool) -> Outcome {
        Outcome::Granted(Grant {
            permit,
            slot_us: permit * 1_000_000,
            wait_us: 0,
            before_us: None,
            replayed,
            held: false,
        })
    }

    #[test]
    fn attempts_of_one_request_are_one_operation() {
        let lost = || Outcome::Unknown("lost".to_owned());
        let events = [
            attempt(1, 100, Outcome::NotApplied("no_leader".to_owned())),
            attempt(1, 200, lost()),
            attempt(1, 300, grant(5, true)),
            attempt(2, 250, lost()),
            Event::Look(Look { key: 0, sent_ns: 400, back_ns: 410, permit: 6, now_us: 9 }),
        ];
        let operations = Operations::sort_out(&events, &keys(), RATE);
        assert_eq!(operations.contradictions, Vec::<String>::new());
        let granted = operations.granted[0];
        assert_eq!((granted.from_ns, granted.to_ns), (200, 310), "what was certainly not applied does not count");
        assert_eq!(operations.unknown, 1);
        assert!(operations.calls.iter().any(|call| call.op == Op::Look { permit: 6, now_us: 9, unseen: true }));
    }

    #[test]
    fn contradictions_are_found_without_any_order() {
        let found = |events: &[Event]| Operations::sort_out(events, &keys(), RATE).contradictions.join("; ");
        let twice = [attempt(1, 100, grant(5, false)), attempt(1, 200, grant(6, true))];
        assert!(found(&twice).contains("permit 5 at 5000000 µs and permit 6"), "{}", found(&twice));
        let fresh = [attempt(1, 100, grant(5, false)), attempt(1, 200, grant(5, false))];
        assert!(found(&fresh).contains("granted twice"));
        let strange = [Event::Look(Look { key: 0, sent_ns: 1, back_ns: 2, permit: 9, now_us: 9 })];
        assert!(found(&strange).contains("nobody was told of"));
        let release = Event::Release(Release { key: 0, permit: 3, sent_ns: 1, back_ns: 2, released: Some(true) });
        assert!(found(&[release.clone(), release]).contains("given back twice"));
    }

    /// A key that was forgotten while a slot of it lay ahead is noticed, and one that idled out is not.
    #[test]
    fn an_idle_key_is_judged_by_how_late_it_can_have_been() {
        use super::super::model::{Verdict, check};
        let held = |idle_at_ns: u64| {
            let keys = keys();
            let Promise::Spacing { window_us, .. } = keys[0].promise else { panic!("spaced") };
            // Decided at once: its slot is the stamp, its unit 80 ms.
            let drift = (window_us * 1_000).div_ceil(1_000_000) + 10;
            let before_us = Some(window_us - drift);
            let slot_us = 5_000_000;
            let grant = Grant { permit: 1, slot_us, wait_us: 0, before_us, replayed: false, held: false };
            let look = Look { key: 0, sent_ns: idle_at_ns - 5, back_ns: idle_at_ns, permit: 0, now_us: 0 };
            let events = [attempt(1, 1_000_000_000, Outcome::Granted(grant)), Event::Look(look)];
            let operations = Operations::sort_out(&events, &keys, RATE);
            assert_eq!((operations.looks, operations.idle), (1, 1));
            check(&operations.calls, std::time::Duration::from_secs(5)) == Verdict::Linearizable
        };
        assert!(!held(1_040_000_000), "40 ms after it was sent its unit cannot be over");
        assert!(!held(1_079_000_000));
        assert!(held(1_080_100_000));
        assert!(held(2_000_000_000));
    }

    /// A leader whose clocks lost time is behind what the one before it may have read for a look that is still on its way.
    #[test]
    fn only_what_was_answered_before_bounds_a_look() {
        let keys = keys();
        let Promise::Spacing { window_us, .. } = keys[0].promise else { panic!("spaced") };
        let before_us = Some(window_us - (window_us * 1_000).div_ceil(1_000_000) - 10);
        let at_once = |permit, slot_us| {
            Outcome::Granted(Grant { permit, slot_us, wait_us: 0, before_us, replayed: false, held: false })
        };
        let events =
            [attempt(1, 1_000_000_000, at_once(1, 5_000_000)), attempt(2, 2_000_000_000, at_once(2, 5_100_000))];
        let latest = Latest::of(&Operations::sort_out(&events, &keys, RATE).granted, RATE);
        let about = |sent_ns, back_ns| latest.cluster_us(sent_ns, back_ns) / 10_000 * 10_000;
        assert_eq!(about(1_500_000_000, 3_000_000_000), 7_000_000, "the second may have come after it");
        assert_eq!(about(2_500_000_000, 3_000_000_000), 6_100_000);
    }

    #[test]
    fn denials_that_can_be_found_wrong_are_counted() {
        let events = [
            attempt(1, 100, Outcome::Unknown("lost".to_owned())),
            attempt(2, 200, Outcome::Denied(Some(79_999))),
            attempt(3, 300, Outcome::Denied(Some(80_000))),
            attempt(4, 400, Outcome::Denied(None)),
        ];
        let operations = Operations::sort_out(&events, &keys(), RATE);
        assert_eq!((operations.denied, operations.denials_judged), (3, 1));
    }

    #[test]
    fn a_stamp_is_worked_back_from_the_deadline() {
        let keys = keys();
        let Promise::Spacing { interval_us, window_us, .. } = keys[0].promise else { panic!("spaced") };
        for ahead_us in [0, 1, 999, 80_000, 412_345] {
            let drift = ((ahead_us + window_us) * 1_000).div_ceil(1_000_000) + (interval_us * 500).div_ceil(1_000_000);
            let before_us = Some(ahead_us + window_us - drift);
            let grant = Grant { permit: 1, slot_us: 5_000_000, wait_us: 0, before_us, replayed: false, held: false };
            let stamp = stamp_us(&keys[0], &grant).unwrap();
            assert!(stamp.abs_diff(5_000_000 - ahead_us) <= 3, "{ahead_us}: {stamp}");
        }
    }
}
