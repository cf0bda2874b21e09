//! What a client has learned of the limits of keys: how fast they are, and whether a lead goes with them.

use super::ask::Ask;
use crate::api::{Kind, Limit};
use crate::limiter::Rate;
use crate::limits::{LEAD_NS_MAX, MAX_RESERVED_DEFAULT};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys remembered at once; of more, only what the question itself says is known.
const KEYS_MAX: usize = 10_000;
/// How long a refused lead is not tried again: the round trip that it came from may have been an exception.
const NO_LEAD_FOR: Duration = Duration::from_secs(60);
const LEAD_MAX: Duration = Duration::from_nanos(LEAD_NS_MAX);

/// Limits by key, as the last grant had them.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<HashMap<String, Rule>>);

#[derive(Debug, Clone)]
struct Rule {
    limit: Limit,
    /// The cluster said that a lead can never be granted; until this instant it is not asked again.
    no_lead_until: Duration,
}

impl Rules {
    /// The cluster granted something by this limit.
    pub(super) fn learn(&self, key: &str, limit: &Limit) {
        let mut rules = self.lock();
        let room = rules.len() < KEYS_MAX;
        match rules.get_mut(key) {
            Some(rule) if rule.limit == *limit => {}
            Some(rule) => *rule = Rule { limit: limit.clone(), no_lead_until: Duration::ZERO },
            None if room => {
                rules.insert(key.to_owned(), Rule { limit: limit.clone(), no_lead_until: Duration::ZERO });
            }
            None => {}
        }
    }

    /// A lead can never be granted for this question, as things stand. `false` if that cannot be remembered.
    pub(super) fn refuse_leads(&self, ask: &Ask, now: Duration) -> bool {
        let until = now.saturating_add(NO_LEAD_FOR);
        let mut rules = self.lock();
        if let Some(rule) = rules.get_mut(&ask.key) {
            rule.no_lead_until = until;
            return true;
        }
        let room = rules.len() < KEYS_MAX;
        if let Some(limit) = ask.limit.as_ref().filter(|_| room) {
            rules.insert(ask.key.clone(), Rule { limit: limit.clone(), no_lead_until: until });
            return true;
        }
        false
    }

    /// How far ahead of now a slot can be asked for at most. Of a key that nothing is known of: not at all.
    pub(super) fn lead_max(&self, ask: &Ask, now: Duration) -> Option<Duration> {
        match self.lock().get(&ask.key) {
            Some(rule) if now < rule.no_lead_until => None,
            Some(rule) => lead_max_of(&rule.limit),
            None => lead_max_of(ask.limit.as_ref()?),
        }
    }

    /// The time between two permits, where the limit is known and has such a time. A stored policy wins over the question's
    /// own limit, so what was granted last does.
    pub(super) fn interval(&self, ask: &Ask) -> Option<Duration> {
        match self.lock().get(&ask.key) {
            Some(rule) => interval_of(&rule.limit),
            None => ask.limit.as_ref().and_then(interval_of),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far ahead slots of this limit may lie: spacing reserves so many intervals, a bucket has no bound of its own, and permits of
/// other kinds have no slots. A lead past that can never be granted.
fn lead_max_of(limit: &Limit) -> Option<Duration> {
    let (kind, reserved) = match limit {
        Limit::Text(_) => (Kind::Spacing, None),
        Limit::Members(members) => (members.kind.unwrap_or(Kind::Spacing), members.max_reserved),
    };
    match kind {
        Kind::Bucket => Some(LEAD_MAX),
        Kind::Spacing => {
            let reserved = reserved.map_or(MAX_RESERVED_DEFAULT, |many| u32::try_from(many).unwrap_or(u32::MAX));
            Some(interval_of(limit)?.saturating_mul(reserved).min(LEAD_MAX))
        }
        _ => None,
    }
}

fn interval_of(limit: &Limit) -> Option<Duration> {
    let rate = match limit {
        Limit::Text(rate) => rate,
        Limit::Members(members) => members.rate.as_ref()?,
    };
    let rate: Rate = rate.parse().ok()?;
    Some(Duration::from_nanos(rate.interval().0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LimitMembers;

    fn members(kind: Kind, rate: Option<&str>) -> Limit {
        let rate = rate.map(str::to_owned);
        LimitMembers { kind: Some(kind), rate, ..LimitMembers::default() }.into()
    }

    #[test]
    fn intervals_are_those_of_the_rate() {
        assert_eq!(interval_of(&Limit::from("1/6s")), Some(Duration::from_secs(6)));
        assert_eq!(interval_of(&members(Kind::Window, Some("100/1m"))), Some(Duration::from_millis(600)));
        assert_eq!(interval_of(&members(Kind::Concurrency, None)), None);
        assert_eq!(interval_of(&Limit::from("nonsense")), None);
    }

    #[test]
    fn what_was_granted_wins_over_what_was_asked() {
        let (rules, ask) = (Rules::default(), Ask::new("k").limit("1/s"));
        assert_eq!(rules.interval(&ask), Some(Duration::from_secs(1)));
        assert_eq!(rules.interval(&Ask::new("k")), None);
        rules.learn("k", &Limit::from("1/2s"));
        assert_eq!(rules.interval(&ask), Some(Duration::from_secs(2)));
        assert_eq!(rules.interval(&Ask::new("k")), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_lead_goes_with_slots_until_it_is_refused_and_again_after_a_while() {
        let (rules, ask, now) = (Rules::default(), Ask::new("k").limit("1/s"), Duration::from_secs(5));
        let goes = |ask: &Ask, now| rules.lead_max(ask, now).is_some();
        assert!(goes(&ask, now));
        assert!(!goes(&Ask::new("k"), now), "nothing is known yet");
        assert!(!goes(&Ask::new("k").limit(members(Kind::Window, Some("9/s"))), now));
        assert!(!rules.refuse_leads(&Ask::new("k"), now) && rules.refuse_leads(&ask, now));
        assert!(!goes(&ask, now));
        rules.learn("k", &Limit::from("1/s"));
        assert!(!goes(&ask, now), "the same limit");
        assert!(goes(&ask, now + NO_LEAD_FOR), "the way may be short again");
        rules.learn("k", &Limit::from("2/s"));
        assert!(goes(&ask, now), "another one");
    }

    /// "A lead longer than what spacing reserves is `never`."
    #[test]
    fn a_lead_lies_within_what_the_limit_reserves() {
        let spaced = |max_reserved| {
            let rate = Some("1/50ms".to_owned());
            lead_max_of(&LimitMembers { rate, max_reserved, ..LimitMembers::default() }.into())
        };
        assert_eq!(lead_max_of(&Limit::from("1/50ms")), Some(Duration::from_millis(500)));
        assert_eq!((spaced(Some(3)), spaced(Some(0))), (Some(Duration::from_millis(150)), Some(Duration::ZERO)));
        assert_eq!(lead_max_of(&members(Kind::Bucket, Some("1/ms"))), Some(LEAD_MAX));
        assert_eq!(lead_max_of(&members(Kind::Concurrency, None)), None);
    }
}
