//! How a request is granted: replayed if its id is known, else resolved, decided and entered.

use super::command::{Acquire, Identity, Wanted};
use super::keys::KeyState;
use super::machine::Machine;
use super::outcome::{Grant, Outcome, Permit};
use super::policies::Rule;
use super::requests::Remembered;
use super::shards::Placed;
use crate::limiter::{Decision, Entry, Key, Limit, Part, Register, Span, Time, decide};
use crate::limits::ALL_OF_MAX;
use crate::planted::{self, Bug};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One key of a request with the limit it is decided by.
struct Resolved<'a> {
    wanted: &'a Wanted,
    /// Where its key lies.
    place: u64,
    limit: Limit,
    rule: Option<Arc<Rule>>,
    /// The register under this limit, where it is not the stored one.
    adopted: Option<Register>,
}

/// The same with what is stored of the key.
type Stored<'m, 'a> = (Resolved<'a>, Option<&'m KeyState>);

/// One for every key of a request, which as a rule is for one.
type All<T> = SmallVec<[T; 1]>;

impl KeyState {
    /// The register under a limit, which may be another than so far.
    pub(super) fn under(&self, limit: &Limit, now: Time) -> Register {
        self.adopted(limit, now).unwrap_or_else(|| self.register.clone())
    }

    /// The same, if it is not the stored one: an idle key that is still in memory is as good as a fresh one.
    fn adopted(&self, limit: &Limit, now: Time) -> Option<Register> {
        if self.register.idle_at(&self.limit) <= now {
            return Some(Register::default());
        }
        // A copy of what may be thousands of permits, only where another limit reads them in another way.
        (!self.limit.reads_like(limit)).then(|| self.register.adopt(&self.limit, limit, now))
    }
}

impl Machine {
    pub(super) fn acquire(&mut self, acquire: &Acquire, keys_max: u64) -> Outcome {
        let identity = acquire.identity.filter(|_| !planted::is(Bug::NoDedup));
        if let Some(outcome) = identity.and_then(|identity| self.replay(acquire, identity)) {
            return outcome;
        }
        if acquire.replay_only {
            return Outcome::Skipped;
        }
        let resolved = match self.resolve(acquire) {
            Ok(resolved) => resolved,
            Err(outcome) => return outcome,
        };
        let fresh = Register::default();
        let parts: All<_> = resolved
            .iter()
            .map(|(one, stored)| Part {
                register: one.adopted.as_ref().or(stored.map(|state| &state.register)).unwrap_or(&fresh),
                limit: &one.limit,
                cost: one.wanted.cost,
            })
            .collect();
        let decision = decide(&parts, self.now, &acquire.terms);
        drop(parts);
        let slot = match decision {
            Decision::Granted { slot } => slot,
            Decision::Denied { by, denial } => {
                let rule = resolved.into_iter().nth(by).and_then(|(one, _)| one.rule);
                return Outcome::Denied { by, denial, rule };
            }
            Decision::Never { by, why } => return Outcome::Never { by, why },
        };
        let new = resolved.iter().filter(|(_, stored)| stored.is_none()).count();
        if new > 0 && (self.keys.len() + new) as u64 > keys_max {
            return Outcome::TooManyKeys { retry_after: self.keys.first_leaves_after(self.now) };
        }
        if acquire.identity.is_some() && self.requests.is_full() {
            return Outcome::TooManyRequestIds { retry_after: self.requests.first_forgotten_after(self.now) };
        }
        assert!(slot >= self.now, "a grant lies ahead");
        let resolved = resolved.into_iter().map(|(one, _)| one).collect();
        let grant = self.enter(acquire, resolved, slot);
        if let Some(identity) = acquire.identity {
            self.requests.remember(identity.id, Remembered::new(identity.fingerprint, acquire.claim, &grant));
        }
        Outcome::Granted(grant)
    }

    /// The limit of every key: a stored rule's, or else what the request brought along.
    fn resolve<'m, 'a>(&'m self, acquire: &'a Acquire) -> Result<All<Stored<'m, 'a>>, Outcome> {
        let mut resolved: All<Stored<'m, 'a>> = All::with_capacity(1 + acquire.more.len());
        if acquire.more.len() >= ALL_OF_MAX {
            return Err(Outcome::Never { by: 0, why: format!("at most {ALL_OF_MAX} keys in one request") });
        }
        for (by, wanted) in acquire.wanted().enumerate() {
            if resolved.iter().any(|(other, _)| other.wanted.key == wanted.key) {
                return Err(Outcome::Never { by, why: "a key comes twice in one request".to_owned() });
            }
            let (limit, rule) = match (self.policies.find(&wanted.key), wanted.limit) {
                (None, None) => return Err(Outcome::NoLimit { by }),
                (None, Some(limit)) => (limit, None),
                (Some((rule, _)), None) => (rule.limit, Some(Arc::clone(rule))),
                (Some((rule, overrides)), Some(asked)) => match overrides.merge(&rule.limit, &asked) {
                    Ok(limit) if limit == rule.limit => (limit, Some(Arc::clone(rule))),
                    Ok(limit) => (limit, Some(Arc::new(Rule { limit, ..rule.as_ref().clone() }))),
                    Err(error) => return Err(Outcome::Never { by, why: error.to_string() }),
                },
            };
            let place = wanted.key.place();
            let stored = self.keys.get_at(&wanted.key, place);
            let adopted = stored.and_then(|state| state.adopted(&limit, self.now));
            resolved.push((Resolved { wanted, place, limit, rule, adopted }, stored));
        }
        Ok(resolved)
    }

    /// Enters one permit for every key, all at the same slot.
    fn enter(&mut self, acquire: &Acquire, resolved: All<Resolved<'_>>, slot: Time) -> Grant {
        let (now, lead) = (self.now, acquire.terms.lead);
        let request = acquire.identity.map(|identity| identity.id);
        let start_before = resolved.iter().filter_map(|one| one.limit.start_before(slot, now)).min();
        let expires_at = resolved.iter().filter_map(|one| one.limit.expires_at(slot)).min();
        let mut permits = resolved.into_iter().map(|Resolved { wanted, place, limit, rule, adopted }| {
            self.permits += 1;
            let entry = Entry { permit: self.permits, slot, cost: wanted.cost, request };
            let (key, number) = (&wanted.key, self.permits);
            let standing = self.keys.grant((key, place), (number, &limit), adopted, |register| {
                register.take(&limit, now, lead, &entry);
                register.standing(&limit, now)
            });
            Permit::new(number, standing, rule)
        });
        let first = permits.next().expect("a request is for one key at least");
        let more = permits.collect();
        Grant { slot, stamp: now, start_before, expires_at, replayed: false, first, more }
    }

    /// What an answer says of one permit, as its key stands now.
    fn permit(&self, key: &Key, limit: &Limit, number: u64, rule: Option<Arc<Rule>>) -> Permit {
        let fresh = Register::default();
        let register = self.keys.get(key).map_or(&fresh, |state| &state.register);
        Permit::new(number, register.standing(limit, self.now), rule)
    }

    /// The outcome of a request whose id is known. If somebody else asks than before, two rely on the permit from now on.
    fn replay(&mut self, acquire: &Acquire, identity: Identity) -> Option<Outcome> {
        let known = self.requests.get(identity.id)?.clone();
        if known.fingerprint != identity.fingerprint {
            return Some(Outcome::RequestIdReused);
        }
        self.requests.share(identity.id, acquire.claim);
        let permit = |(index, wanted): (usize, &Wanted)| {
            let rule = known.rule(index);
            let stored = || self.keys.get(&wanted.key).map(|state| *state.limit);
            let limit = rule.as_ref().map(|rule| rule.limit).or(wanted.limit).or_else(stored);
            let number = known.permit + index as u64;
            match limit {
                Some(limit) => self.permit(&wanted.key, &limit, number, rule),
                None => Permit { number, reserved: 0, remaining: 0, reset_after: Span::ZERO, rule },
            }
        };
        let first = permit((0, &acquire.first));
        let more = acquire.more.iter().enumerate().map(|(index, wanted)| permit((index + 1, wanted))).collect();
        Some(Outcome::Granted(Grant {
            slot: known.slot,
            stamp: known.stamp,
            start_before: known.start_before,
            expires_at: known.expires_at,
            replayed: true,
            first,
            more,
        }))
    }
}

/// What has to be put back if not all of several requests are granted.
pub(super) struct Undo {
    permits: u64,
    keys: BTreeMap<Key, Option<KeyState>>,
    ids: Vec<(u128, Option<Remembered>)>,
}

impl Undo {
    pub(super) const fn new(machine: &Machine) -> Self {
        Self { permits: machine.permits, keys: BTreeMap::new(), ids: Vec::new() }
    }

    /// Notes all that `acquire` could change.
    pub(super) fn remember(&mut self, machine: &Machine, acquire: &Acquire) {
        for wanted in acquire.wanted() {
            if !self.keys.contains_key(&wanted.key) {
                self.keys.insert(wanted.key.clone(), machine.keys.get(&wanted.key).cloned());
            }
        }
        if let Some(identity) = acquire.identity {
            self.ids.push((identity.id, machine.requests.get(identity.id).cloned()));
        }
    }

    /// Makes the machine what it was.
    pub(super) fn restore(self, machine: &mut Machine) {
        machine.permits = self.permits;
        for (key, state) in self.keys {
            machine.keys.put_back(&key, state);
        }
        // Backwards: an id may come twice, and what it was at first is what counts.
        for (id, known) in self.ids.into_iter().rev() {
            match known {
                Some(known) => machine.requests.put_claim(id, known.claim),
                None => machine.requests.forget(id),
            }
        }
    }
}
