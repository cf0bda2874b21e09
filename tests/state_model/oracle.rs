//! The naive oracle: it keeps every grant and decides each command from the lists of them.
//!
//! It has no register, no index and no arithmetic in common with the code under test; `past.rs` decides a single key.

use crate::past::{Asked, Past, interval, ns};
use quorate::limiter::{Key, Limit, Member, Reason, Spacing, Time};
use quorate::limits::{ALL_OF_MAX, DRIFT_PPM, REQUEST_ID_RETENTION_NS};
use quorate::state::{
    Acquire, Batch, Command, Condition, Grant, Held, LeaderId, Outcome, Pattern, Policy, Rule, Several, SeveralRule,
    Wanted, Withdraw,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the oracle expects of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Granted, now or before, with these permits.
    Granted {
        slot: u64,
        stamp: u64,
        replayed: bool,
        permits: Vec<Numbers>,
        limits: Vec<Limit>,
    },
    /// Denied, and granted from exactly `retry_after` on if it is a single key.
    Denied {
        by: usize,
        reason: Reason,
        retry_after: u64,
        rule: Named,
    },
    Never {
        by: usize,
    },
    /// The lease ends so much later.
    Renewed(u64),
    Several(Vec<Self>),
    /// Nothing but this.
    Just(Outcome),
}

/// The name and revision of the rule something was decided by.
type Named = Option<(Arc<str>, u64)>;

/// What an answer says of one permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers {
    number: u64,
    reserved: u64,
    /// `None` where it is a replay's, which speaks of a key that may be under another limit by now.
    reset_after: Option<u64>,
    rule: Named,
}

/// A granted request that can be asked for again.
#[derive(Debug, Clone)]
struct Known {
    id: u128,
    fingerprint: u64,
    kept_until: u64,
    /// Who asks under this id; `None` as soon as there are two.
    claim: Option<u64>,
    first: u64,
    slot: u64,
    stamp: u64,
    rules: Vec<Named>,
    limits: Vec<Limit>,
}

/// One stored rule.
#[derive(Debug, Clone)]
struct Stored {
    name: Arc<str>,
    policy: Policy,
    revision: u64,
}

/// All there is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Oracle {
    pub(crate) now: u64,
    pub(crate) permits: u64,
    pub(crate) keys: BTreeMap<Key, Past>,
    known: Vec<Known>,
    rules: Vec<Stored>,
    revision: u64,
    /// When the request denied last would be granted.
    pub(crate) last_retry_at: Option<u64>,
}

/// A key of a request, its limit and the rule that has it.
type Resolved<'a> = (&'a Wanted, Limit, Named);

impl Oracle {
    /// One entry; `None` for one whose stamp is another leader's.
    pub(crate) fn apply(&mut self, leader: LeaderId, batch: &Batch) -> Option<Vec<Verdict>> {
        if leader != batch.stamp.leader {
            return None;
        }
        self.now = self.now.max(batch.stamp.time.0);
        let now = self.now;
        self.keys.retain(|_, past| {
            let due = past.looked_at <= now;
            if due {
                past.looked_at = past.idle_at();
            }
            !due || past.looked_at > now
        });
        self.known.retain(|known| known.kept_until > now);
        Some(batch.commands.iter().map(|command| self.command(command, batch.keys_max)).collect())
    }

    /// Request ids within their retention.
    pub(crate) fn ids_remembered(&self) -> usize {
        self.known.len()
    }

    /// When the oldest remembered id is forgotten.
    pub(crate) fn next_forgotten_at(&self) -> Option<u64> {
        self.known.iter().map(|known| known.kept_until).min()
    }

    /// Permits that can be given back, and where.
    pub(crate) fn live(&self) -> Vec<(Key, u64)> {
        let live = |past: &Past| {
            let live = past.given.iter().filter(|given| given.ends.unwrap_or(given.slot) > self.now);
            live.map(|given| given.permit).collect::<Vec<_>>()
        };
        self.keys.iter().flat_map(|(key, past)| live(past).into_iter().map(|permit| (key.clone(), permit))).collect()
    }

    fn command(&mut self, command: &Command, keys_max: u64) -> Verdict {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire, keys_max),
            Command::Several(several) => Verdict::Several(self.several(several, keys_max)),
            Command::Release(Held { key, permit }) => Verdict::Just(match *permit {
                permit if permit == 0 || permit > self.permits => Outcome::NoPermit,
                permit => Outcome::Released(self.give_back(key, permit)),
            }),
            Command::Renew(held) => self.renew(held),
            Command::Withdraw(Withdraw { id, claim, keys }) => {
                let own = |known: &&Known| known.id == *id && *claim != 0 && known.claim == Some(*claim);
                let first = self.known.iter().find(own).map(|known| known.first);
                let permits = keys.iter().enumerate().map(|(place, key)| {
                    first.map(|first| first + place as u64).filter(|permit| self.give_back(key, *permit))
                });
                Verdict::Just(Outcome::Withdrawn(permits.collect()))
            }
            Command::Reset(key) => Verdict::Just(Outcome::Reset(self.keys.remove(key).is_some())),
            Command::PutPolicy { name, policy, condition } => Verdict::Just(self.put(name, policy, *condition)),
            Command::DeletePolicy { name, condition } => Verdict::Just(self.delete(name, *condition)),
        }
    }

    fn several(&mut self, Several { acquires, rule }: &Several, keys_max: u64) -> Vec<Verdict> {
        let before = self.clone();
        let mut verdicts = vec![Verdict::Just(Outcome::Skipped); acquires.len()];
        for (place, acquire) in acquires.iter().enumerate() {
            verdicts[place] = self.acquire(acquire, keys_max);
            if matches!(verdicts[place], Verdict::Granted { .. }) {
                continue;
            }
            match rule {
                SeveralRule::Each => {}
                SeveralRule::InLine => break,
                SeveralRule::AllOrNothing => {
                    let last_retry_at = self.last_retry_at;
                    *self = Self { last_retry_at, ..before };
                    verdicts[..place].fill(Verdict::Just(Outcome::Skipped));
                    break;
                }
            }
        }
        verdicts
    }

    fn give_back(&mut self, key: &Key, permit: u64) -> bool {
        let now = self.now;
        let given_back = self.keys.get_mut(key).is_some_and(|past| past.give_back(permit, now));
        if given_back {
            self.known.retain(|known| !(known.first..known.first + known.limits.len() as u64).contains(&permit));
        }
        given_back
    }

    fn renew(&mut self, Held { key, permit }: &Held) -> Verdict {
        let now = self.now;
        let past = self.keys.get_mut(key);
        let lease = past.and_then(|past| {
            let given = past.given.iter_mut().find(|given| given.permit == *permit)?;
            let Limit::Concurrency(concurrency) = given.limit else { return None };
            let ends = given.ends.as_mut().filter(|ends| **ends > now)?;
            *ends = (*ends).max(now + concurrency.lease().0);
            Some(*ends - now)
        });
        lease.map_or(Verdict::Just(Outcome::NoPermit), Verdict::Renewed)
    }

    fn put(&mut self, name: &Arc<str>, policy: &Policy, condition: Condition) -> Outcome {
        let found = self.rules.iter().position(|stored| stored.name == *name);
        let revision = found.map(|at| self.rules[at].revision);
        if !holds(condition, revision) {
            return Outcome::OtherRevision { found: revision };
        }
        if let Some(at) = found.filter(|at| self.rules[*at].policy == *policy) {
            return Outcome::PolicyPut { revision: self.rules[at].revision, changed: false };
        }
        let same = |stored: &&Stored| stored.policy.pattern == policy.pattern && stored.name != *name;
        if let Some(other) = self.rules.iter().find(same) {
            return Outcome::PolicyConflict { with: Arc::clone(&other.name) };
        }
        self.revision += 1;
        let stored = Stored { name: Arc::clone(name), policy: policy.clone(), revision: self.revision };
        match found {
            Some(at) => self.rules[at] = stored,
            None => self.rules.push(stored),
        }
        Outcome::PolicyPut { revision: self.revision, changed: true }
    }

    fn delete(&mut self, name: &Arc<str>, condition: Condition) -> Outcome {
        let Some(at) = self.rules.iter().position(|stored| stored.name == *name) else { return Outcome::NoPolicy };
        let found = Some(self.rules[at].revision);
        if !holds(condition, found) {
            return Outcome::OtherRevision { found };
        }
        self.rules.remove(at);
        self.revision += 1;
        Outcome::PolicyDeleted { revision: self.revision }
    }

    /// "A whole key before any beginning, a longer beginning before a shorter one."
    fn rule_for(&self, key: &Key) -> Option<&Stored> {
        let fit = |stored: &&Stored| match &stored.policy.pattern {
            Pattern::Exact(text) => (key.as_str() == text.as_ref()).then_some(usize::MAX),
            Pattern::Prefix(text) => key.as_str().starts_with(text.as_ref()).then_some(text.len()),
        };
        self.rules.iter().filter(|stored| fit(stored).is_some()).max_by_key(fit)
    }

    fn resolve<'a>(&self, acquire: &'a Acquire) -> Result<Vec<Resolved<'a>>, Verdict> {
        let mut resolved: Vec<Resolved<'_>> = Vec::new();
        if acquire.wanted().count() > ALL_OF_MAX {
            return Err(Verdict::Never { by: 0 });
        }
        for (by, wanted) in acquire.wanted().enumerate() {
            if resolved.iter().any(|(other, ..)| other.key == wanted.key) {
                return Err(Verdict::Never { by });
            }
            let rule = self.rule_for(&wanted.key);
            let named = rule.map(|stored| (Arc::clone(&stored.name), stored.revision));
            let limit = match (rule, &wanted.limit) {
                (None, None) => return Err(Verdict::Just(Outcome::NoLimit { by })),
                (None, Some(limit)) => *limit,
                (Some(stored), None) => stored.policy.limit,
                (Some(stored), Some(asked)) => merged(&stored.policy, asked).ok_or(Verdict::Never { by })?,
            };
            resolved.push((wanted, limit, named));
        }
        Ok(resolved)
    }

    fn acquire(&mut self, acquire: &Acquire, keys_max: u64) -> Verdict {
        if let Some(verdict) = self.again(acquire) {
            return verdict;
        }
        let resolved = match self.resolve(acquire) {
            Ok(resolved) => resolved,
            Err(verdict) => return verdict,
        };
        let slot = match self.decide(acquire, &resolved) {
            Ok(slot) => slot,
            Err(verdict) => return verdict,
        };
        let new = resolved.iter().filter(|(wanted, ..)| !self.keys.contains_key(&wanted.key)).count();
        if new > 0 && (self.keys.len() + new) as u64 > keys_max {
            let first = self.keys.values().map(|past| past.looked_at).min().unwrap_or(0);
            let retry_after = Time(first).since(Time(self.now));
            return Verdict::Just(Outcome::TooManyKeys { retry_after });
        }
        let first = self.permits + 1;
        for (wanted, limit, _) in &resolved {
            self.permits += 1;
            let (now, permit) = (self.now, self.permits);
            let mut past = self.under(&wanted.key, limit);
            past.enter(&Asked { limit, cost: wanted.cost, terms: &acquire.terms }, now, slot, permit);
            if !self.keys.contains_key(&wanted.key) {
                past.looked_at = past.idle_at();
            }
            self.keys.insert(wanted.key.clone(), past);
        }
        let rules: Vec<_> = resolved.iter().map(|(.., rule)| rule.clone()).collect();
        let limits: Vec<_> = resolved.iter().map(|(_, limit, _)| *limit).collect();
        let numbered = acquire.wanted().zip(first..).zip(&rules);
        let permits = numbered.map(|((wanted, number), rule)| self.numbers(&wanted.key, number, rule, false)).collect();
        let stamp = self.now;
        if let Some(identity) = acquire.identity {
            let (id, fingerprint, claim) = (identity.id, identity.fingerprint, Some(acquire.claim));
            let limits = limits.clone();
            let kept_until = if acquire.claim == 0 { stamp } else { slot } + REQUEST_ID_RETENTION_NS;
            self.known.push(Known { id, fingerprint, kept_until, claim, first, slot, stamp, rules, limits });
        }
        Verdict::Granted { slot, stamp, replayed: false, permits, limits }
    }

    /// The key as it is decided by: as good as fresh is fresh.
    fn under(&self, key: &Key, limit: &Limit) -> Past {
        let mut past = self.keys.get(key).cloned().unwrap_or(Past::new(*limit));
        if past.idle_at() <= self.now {
            past.given.clear();
        }
        past
    }

    fn numbers(&self, key: &Key, number: u64, rule: &Named, replayed: bool) -> Numbers {
        let past = self.keys.get(key);
        let reserved = past.map_or(0, |past| past.ahead(self.now).len() as u64);
        let reset_after = past.map_or(0, |past| past.idle_at().saturating_sub(self.now));
        Numbers { number, reserved, reset_after: (!replayed).then_some(reset_after), rule: rule.clone() }
    }

    /// The verdict on a request whose id is remembered.
    fn again(&mut self, acquire: &Acquire) -> Option<Verdict> {
        let identity = acquire.identity?;
        let known = self.known.iter_mut().find(|known| known.id == identity.id)?;
        if known.fingerprint != identity.fingerprint {
            return Some(Verdict::Just(Outcome::RequestIdReused));
        }
        known.claim = known.claim.filter(|claim| *claim == acquire.claim);
        let Known { first, slot, stamp, rules, limits, .. } = known.clone();
        let numbered = acquire.wanted().zip(first..).zip(&rules);
        let permits = numbered.map(|((wanted, number), rule)| self.numbers(&wanted.key, number, rule, true)).collect();
        Some(Verdict::Granted { slot, stamp, replayed: true, permits, limits })
    }

    /// The common slot of all keys: each of them alone has to agree to its own earliest one, and then to the latest of those.
    fn decide(&mut self, acquire: &Acquire, resolved: &[Resolved<'_>]) -> Result<u64, Verdict> {
        let (now, terms) = (self.now, &acquire.terms);
        let pasts: Vec<_> = resolved.iter().map(|(wanted, limit, _)| self.under(&wanted.key, limit)).collect();
        let asked: Vec<_> =
            resolved.iter().map(|(wanted, limit, _)| Asked { limit, cost: wanted.cost, terms }).collect();
        if let Some(by) = asked.iter().position(Past::is_never) {
            return Err(Verdict::Never { by });
        }
        let denied =
            |by: usize, reason, retry_after| Verdict::Denied { by, reason, retry_after, rule: resolved[by].2.clone() };
        let refused = pasts.iter().zip(&asked).enumerate().filter_map(|(by, (past, asked))| {
            let reason = past.judge(asked, now).err()?;
            Some((by, reason, past.retry_after(asked, now)))
        });
        // The one that refuses longest; of two the first.
        let worst = refused.rev().max_by_key(|(.., retry_after)| *retry_after);
        if let Some((by, reason, retry_after)) = worst {
            self.last_retry_at = Some(now + retry_after);
            return Err(denied(by, reason, retry_after));
        }
        let from = now + terms.lead.0;
        let owns = pasts.iter().zip(&asked).map(|(past, asked)| past.earliest(asked, now, from).unwrap_or(from));
        let (mut last, mut slot) = owns.enumerate().rev().max_by_key(|(_, own)| *own).unwrap_or((0, from));
        let mut agreed = 0;
        // Around and around, until all of them have agreed in a row.
        for by in (0..asked.len()).cycle() {
            let own = pasts[by].earliest(&asked[by], now, slot).unwrap_or(slot);
            if own > slot {
                (slot, last, agreed) = (own, by, 0);
            }
            agreed += 1;
            if agreed > asked.len() {
                break;
            }
        }
        let wait = slot - now;
        if asked.len() > 1 && terms.free_now_only && wait > 0 {
            return Err(denied(last, Reason::NotFreeNow, wait));
        }
        if let Some(longest) = terms.max_wait.filter(|longest| asked.len() > 1 && wait > longest.0) {
            return Err(denied(last, Reason::WouldWaitTooLong, wait - longest.0));
        }
        Ok(slot)
    }
}

fn holds(condition: Condition, found: Option<u64>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Exists => found.is_some(),
        Condition::Absent => found.is_none(),
        Condition::Revision(revision) => found == Some(revision),
    }
}

/// The limit of a rule with what a request may bring along; `None` if that is no limit.
fn merged(policy: &Policy, asked: &Limit) -> Option<Limit> {
    if policy.overrides.has(Member::Limit) {
        return Some(*asked);
    }
    let (Limit::Spacing(rule), Limit::Spacing(asked)) = (&policy.limit, asked) else { return Some(policy.limit) };
    let (mut rate, mut window, mut reserved) = (rule.rate(), rule.start_window(), rule.max_reserved());
    for member in policy.overrides.members() {
        match member {
            Member::Rate => rate = asked.rate(),
            Member::StartWindow => window = asked.start_window(),
            Member::MaxReserved => reserved = asked.max_reserved(),
            _ => {}
        }
    }
    Spacing::new(rate, window, reserved).ok().map(Limit::Spacing)
}

impl Verdict {
    /// What `outcome` has that the oracle does not expect, if anything.
    pub(crate) fn differs(&self, outcome: &Outcome) -> Option<String> {
        let named = |rule: &Option<Arc<Rule>>| rule.as_ref().map(|rule| (Arc::clone(&rule.policy), rule.revision));
        let same = match (self, outcome) {
            (Self::Granted { slot, stamp, replayed, permits, limits }, Outcome::Granted(grant)) => {
                let found = grant.permits().zip(permits).map(|(found, expected)| Numbers {
                    number: found.number,
                    reserved: found.reserved,
                    reset_after: expected.reset_after.map(|_| found.reset_after.0),
                    rule: named(&found.rule),
                });
                (*slot, *stamp, *replayed) == (grant.slot.0, grant.stamp.0, grant.replayed)
                    && found.eq(permits.iter().cloned())
                    && grant.permits().count() == permits.len()
                    && deadlines_agree(limits, grant)
            }
            (Self::Denied { by, reason, retry_after, rule }, Outcome::Denied { by: found, denial, rule: by_rule }) => {
                (by, reason, retry_after, rule) == (found, &denial.reason, &denial.retry_after.0, &named(by_rule))
            }
            (Self::Never { by }, Outcome::Never { by: found, .. }) => by == found,
            (Self::Renewed(ends), Outcome::Renewed { lease, stop_before }) => {
                let kept = u128::from(*ends) * u128::from(1_000_000 - 2 * DRIFT_PPM) / 1_000_000;
                *ends == lease.0 && u128::from(stop_before.0) <= kept && kept - u128::from(stop_before.0) < 2
            }
            (Self::Several(verdicts), Outcome::Several(outcomes)) => {
                verdicts.len() == outcomes.len()
                    && verdicts.iter().zip(outcomes).all(|(verdict, outcome)| verdict.differs(outcome).is_none())
            }
            (Self::Just(expected), found) => expected == found,
            _ => false,
        };
        (!same).then(|| format!("expected {self:?}\nfound    {outcome:?}"))
    }
}

/// `S + W` and `(S - T_p) + W - 2r(S - T_p + W) - rI`, of each limit that has a window or a lease, and the sooner ones count.
/// Deadlines round down, by no more than the two roundings in them.
fn deadlines_agree(limits: &[Limit], grant: &Grant) -> bool {
    let ahead = u128::from(grant.slot.0 - grant.stamp.0);
    let usable = |limit: &Limit| match limit {
        Limit::Spacing(spacing) => Some((spacing.start_window(), interval(spacing.rate()))),
        Limit::Bucket(bucket) => Some((bucket.start_window(), interval(bucket.rate()))),
        Limit::Concurrency(concurrency) => Some((concurrency.lease(), 0)),
        Limit::Window(_) => None,
    };
    let usable = || limits.iter().filter_map(usable).filter(|(window, _)| window.0 > 0);
    let expires_at = usable().map(|(window, _)| grant.slot.after(window)).min();
    let millionths = usable().map(|(window, interval)| {
        let (window, drift) = (u128::from(window.0), u128::from(DRIFT_PPM));
        let eaten = 2 * drift * (ahead + window) + drift * interval;
        // Nothing is left of a window that drift has eaten up.
        if eaten + 2_000_000 > window * 1_000_000 { 0 } else { (ahead + window) * 1_000_000 - eaten }
    });
    let start_before = grant.start_before.map(|span| u128::from(span.0) * 1_000_000);
    let agrees = match (start_before, millionths.min()) {
        (None, None) => true,
        (Some(found), Some(exact)) => found <= exact && exact - found < 2_000_000,
        _ => false,
    };
    grant.expires_at == expires_at && agrees && ns(ahead) == grant.slot.since(grant.stamp).0
}
