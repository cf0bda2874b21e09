//! What a client has learned of the limits of keys: how fast they are, and whether a lead goes with them.

use super::ask::Ask;
use crate::api::{Kind, Limit};
use crate::limiter::Rate;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys remembered at once; of more, only what the question itself says is known.
const KEYS_MAX: usize = 10_000;

/// Limits by key, as the last grant had them.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<HashMap<String, Rule>>);

#[derive(Debug, Clone)]
struct Rule {
    limit: Limit,
    /// Whether the cluster said that a lead can never be granted.
    no_lead: bool,
}

impl Rules {
    /// The cluster granted something by this limit.
    pub(super) fn learn(&self, key: &str, limit: &Limit) {
        let mut rules = self.lock();
        let room = rules.len() < KEYS_MAX;
        match rules.get_mut(key) {
            Some(rule) if rule.limit == *limit => {}
            Some(rule) => *rule = Rule { limit: limit.clone(), no_lead: false },
            None if room => {
                rules.insert(key.to_owned(), Rule { limit: limit.clone(), no_lead: false });
            }
            None => {}
        }
    }

    /// A lead can never be granted for this question. `false` if that cannot be remembered.
    pub(super) fn refuse_leads(&self, ask: &Ask) -> bool {
        let mut rules = self.lock();
        if let Some(rule) = rules.get_mut(&ask.key) {
            rule.no_lead = true;
            return true;
        }
        let room = rules.len() < KEYS_MAX;
        if let Some(limit) = ask.limit.as_ref().filter(|_| room) {
            rules.insert(ask.key.clone(), Rule { limit: limit.clone(), no_lead: true });
            return true;
        }
        false
    }

    /// Whether a slot ahead of now can be asked for. Of a key that nothing is known of: no.
    pub(super) fn lead_goes(&self, ask: &Ask) -> bool {
        match self.lock().get(&ask.key) {
            Some(rule) => !rule.no_lead && has_slots(&rule.limit),
            None => ask.limit.as_ref().is_some_and(has_slots),
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

/// Whether permits of this limit have slots that may lie ahead.
fn has_slots(limit: &Limit) -> bool {
    match limit {
        Limit::Text(_) => true,
        Limit::Members(members) => matches!(members.kind, None | Some(Kind::Spacing | Kind::Bucket)),
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
    fn a_lead_goes_with_slots_until_it_is_refused() {
        let (rules, ask) = (Rules::default(), Ask::new("k").limit("1/s"));
        assert!(rules.lead_goes(&ask));
        assert!(!rules.lead_goes(&Ask::new("k")), "nothing is known yet");
        assert!(!rules.lead_goes(&Ask::new("k").limit(members(Kind::Window, Some("9/s")))));
        assert!(!rules.refuse_leads(&Ask::new("k")) && rules.refuse_leads(&ask));
        assert!(!rules.lead_goes(&ask));
        rules.learn("k", &Limit::from("1/s"));
        assert!(!rules.lead_goes(&ask), "the same limit");
        rules.learn("k", &Limit::from("2/s"));
        assert!(rules.lead_goes(&ask), "another one");
    }
}
