//! The last permits, asked for once more at the end: each has to be the same.
//!
//! Half of them are of keys without a start window, which are answered whenever they are asked for: their permit and slot are
//! compared. The others tell at least that they are remembered.

use super::cluster::Cluster;
use super::history::{Event, Grant, Outcome, RequestNumber};
use super::load::{self, Key, Promise};
use super::worker::MAX_WAIT_US;
use crate::api::{AcquireRequest, AcquireResponse, Code, Millis, Problem};
use crate::clock::Deadline;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// Permits that are asked for, of each half.
const OF_EACH: usize = 60;
/// As many answers with a permit in them, or nothing is shown.
pub(super) const SAME_MIN: usize = 20;
/// Whoever has no leader for the moment is asked again for so long.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Replays {
    /// The same permit and the same slot.
    pub(super) same: usize,
    /// Remembered, and over.
    pub(super) expired: usize,
    /// Nobody answered in time: not what this is about.
    pub(super) unanswered: usize,
    /// Anything else.
    pub(super) wrong: Vec<String>,
}

/// A permit that somebody was told.
type Told = (u16, RequestNumber, Grant);

impl Replays {
    /// Asks for the last ones, at nodes in turn.
    pub(super) async fn ask(cluster: &Cluster, events: &[Event], seed: u64) -> Self {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap_or_default();
        let keys = load::keys();
        let nodes = cluster.members();
        let mut replays = Self::default();
        for (turn, (key, request, grant)) in last(events, &keys).into_iter().enumerate() {
            let key = &keys[usize::from(key)];
            // The way of waiting is not part of what a request is.
            let body = AcquireRequest {
                limit: Some(key.limit()),
                max_wait_ms: Some(Millis::up_from_ns(MAX_WAIT_US * 1_000)),
                request_id: Some(format!("{seed}-{}-{}", request.0, request.1)),
                ..AcquireRequest::new(&key.name)
            };
            // Once nobody answered for that long, the others are asked once.
            let until = Deadline::after(if replays.unanswered == 0 { ANSWERS_WITHIN } else { Duration::ZERO });
            for attempt in turn.. {
                let Some(node) = nodes.get(attempt % nodes.len().max(1)) else { break };
                let answer = http.post(format!("{}/acquire", node.url)).json(&body).send().await;
                let answer = match answer {
                    Ok(answer) => Some((answer.status().as_u16(), answer.text().await.unwrap_or_default())),
                    Err(_) => None,
                };
                if let Some((status, text)) = answer.filter(|(status, _)| ![503, 504].contains(status)) {
                    replays.judge(key, &grant, status, &text);
                    break;
                }
                if until.passed() {
                    replays.unanswered += 1;
                    break;
                }
                tokio::time::sleep(ASK_AGAIN_AFTER).await;
            }
        }
        replays
    }

    fn judge(&mut self, key: &Key, grant: &Grant, status: u16, text: &str) {
        let is_same = |again: AcquireResponse| {
            again.permit == grant.permit && again.slot_ms.micros() == grant.slot_us && again.replayed
        };
        let is_over = |problem: Problem| problem.code == Code::Expired && !always_answered(key);
        match status {
            200 if serde_json::from_str(text).is_ok_and(is_same) => self.same += 1,
            409 if serde_json::from_str(text).is_ok_and(is_over) => self.expired += 1,
            _ => {
                let permit = grant.permit;
                self.wrong.push(format!("permit {permit} of {}, asked for again: {status} {text}", key.name));
            }
        }
    }
}

/// Whether a permit of this key is never too late.
const fn always_answered(key: &Key) -> bool {
    matches!(key.promise, Promise::Window { .. })
}

/// The last permits that nobody gave back: half of keys that are always answered.
fn last(events: &[Event], keys: &[Key]) -> Vec<Told> {
    let given_back: HashSet<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Release(release) => Some(release.permit),
            _ => None,
        })
        .collect();
    let mut told: BTreeMap<u64, Told> = BTreeMap::new();
    for event in events {
        if let Event::Acquire(attempt) = event
            && let Outcome::Granted(grant) = attempt.outcome
            && !given_back.contains(&grant.permit)
        {
            told.insert(grant.permit, (attempt.key, attempt.request, grant));
        }
    }
    let (lasting, others): (Vec<Told>, Vec<Told>) =
        told.into_values().rev().partition(|(key, ..)| always_answered(&keys[usize::from(*key)]));
    lasting.into_iter().take(OF_EACH).chain(others.into_iter().take(OF_EACH)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::Attempt;
    use super::*;

    fn grant(permit: u64) -> Grant {
        Grant { permit, slot_us: 5_000, wait_us: 0, before_us: None, replayed: false, held: false }
    }

    fn key(name: &str) -> Key {
        load::keys().into_iter().find(|key| key.name == name).unwrap()
    }

    #[test]
    fn half_are_of_keys_that_are_always_answered() {
        let keys = load::keys();
        let window = u16::try_from(keys.iter().position(|key| key.name == "window-0").unwrap()).unwrap();
        let events: Vec<Event> = (1..=400)
            .map(|permit| {
                let key = if permit <= 100 { window } else { 0 };
                let outcome = Outcome::Granted(grant(permit));
                Event::Acquire(Attempt { request: (1, permit), key, sent_ns: 1, back_ns: 2, outcome })
            })
            .collect();
        let last = last(&events, &keys);
        assert_eq!(last.iter().filter(|(key, ..)| *key == window).count(), OF_EACH);
        assert_eq!((last.len(), last[0].2.permit), (2 * OF_EACH, 100));
    }

    #[test]
    fn another_permit_is_wrong_and_so_is_one_that_is_over_and_cannot_be() {
        let seen = |name: &str, status, text: &str| {
            let mut replays = Replays::default();
            replays.judge(&key(name), &grant(7), status, text);
            (replays.same, replays.expired, replays.wrong.len())
        };
        let over = serde_json::to_string(&Problem::new(Code::Expired, "over")).unwrap();
        assert_eq!(seen("spaced-0", 409, &over), (0, 1, 0));
        assert_eq!(seen("window-0", 409, &over), (0, 0, 1));
        let other = serde_json::to_string(&Problem::new(Code::BadRequest, "?")).unwrap();
        assert_eq!(seen("spaced-0", 409, &other), (0, 0, 1));
        assert_eq!(seen("spaced-0", 429, &other), (0, 0, 1));
        assert_eq!(seen("window-0", 200, "{}"), (0, 0, 1));
    }
}
