//! The naive oracle: it keeps every grant ever made and decides each request from that list.
//!
//! It has no register, no index, no expiry and no arithmetic in common with the code under test: where that keeps
//! `next`, this takes the maximum over all grants; where that divides, this multiplies; where that computes
//! `retry_after`, this searches for it.

use quorate::limiter::{Ask, Key, Limit, Reason, Time};
use quorate::limits::{COST_MAX, DRIFT_PPM, HORIZON_NS_MAX, REQUEST_ID_RETENTION_NS};
use quorate::state::{Acquire, Batch, Command, Grant, Identity, LeaderId, Outcome};

/// What the oracle expects of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Granted, now or before.
    Granted {
        permit: u64,
        slot: u64,
        stamp: u64,
        reserved: u64,
        replayed: bool,
    },
    /// Denied, and granted from exactly `retry_after` on.
    Denied {
        reason: Reason,
        retry_after: u64,
    },
    NoLimit,
    Never,
    RequestIdReused,
    /// A lower bound of when a key leaves is all that is promised: some time ahead, but not after `first_idle_after`.
    TooManyKeys {
        first_idle_after: u64,
    },
}

/// One grant, with the terms it was decided by.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) key: Key,
    pub(crate) permit: u64,
    pub(crate) slot: u64,
    pub(crate) stamp: u64,
    pub(crate) cost: u64,
    pub(crate) terms: Terms,
    pub(crate) identity: Option<Identity>,
}

impl Given {
    /// The first instant that this permit leaves to the next one.
    pub(crate) fn end(&self) -> u64 {
        ns(u128::from(self.slot) + u128::from(self.cost) * self.terms.unit())
    }
}

/// The numbers of a spacing limit, read off its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    interval: u128,
    window: u128,
    pub(crate) max_reserved: u128,
}

impl Terms {
    pub(crate) fn of(limit: &Limit) -> Self {
        let Limit::Spacing(spacing) = limit;
        let (count, per) = (u128::from(spacing.rate().count()), u128::from(spacing.rate().per().0));
        // The shortest whole interval of which `count` fill the period.
        let mut interval = per / count;
        while interval * count < per {
            interval += 1;
        }
        let (window, max_reserved) = (u128::from(spacing.start_window().0), u128::from(spacing.max_reserved()));
        Self { interval, window, max_reserved }
    }

    /// The distance of two slots.
    pub(crate) fn unit(&self) -> u128 {
        self.interval + self.window
    }

    fn is_never(&self, ask: &Ask) -> bool {
        let longest = if ask.free_now_only { 0 } else { ask.max_wait.map_or(u64::MAX, |wait| wait.0) };
        ask.cost == 0
            || ask.cost > COST_MAX
            || u128::from(ask.cost) * self.unit() > u128::from(HORIZON_NS_MAX)
            || u128::from(ask.lead.0) > self.max_reserved * self.unit()
            || ask.lead.0 > longest
    }

    /// `S + W` and `(S - T_p) + W - 2r(S - T_p + W) - rI` in millionths of a nanosecond, exactly.
    fn deadlines(&self, slot: u64, stamp: u64) -> Option<(u64, u128)> {
        let ahead = u128::from(slot - stamp);
        let drift = 2 * u128::from(DRIFT_PPM) * (ahead + self.window) + u128::from(DRIFT_PPM) * self.interval;
        (self.window > 0).then(|| (ns(u128::from(slot) + self.window), (ahead + self.window) * 1_000_000 - drift))
    }
}

/// The list of all grants, and the time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Oracle {
    pub(crate) now: u64,
    pub(crate) given: Vec<Given>,
    /// When the request denied last would be granted.
    pub(crate) last_retry_at: Option<u64>,
}

impl Oracle {
    /// One entry; `None` for one whose stamp is another leader's.
    pub(crate) fn apply(&mut self, leader: LeaderId, batch: &Batch) -> Option<Vec<Verdict>> {
        if leader != batch.stamp.leader {
            return None;
        }
        self.now = self.now.max(batch.stamp.time.0);
        Some(batch.commands.iter().map(|Command::Acquire(acquire)| self.acquire(acquire, batch.keys_max)).collect())
    }

    /// Keys that do not equal fresh ones.
    pub(crate) fn keys_busy(&self) -> usize {
        let mut busy: Vec<_> =
            self.given.iter().filter(|given| given.end() > self.now).map(|given| &given.key).collect();
        busy.sort_unstable();
        busy.dedup();
        busy.len()
    }

    /// Request ids within their retention.
    pub(crate) fn ids_remembered(&self) -> usize {
        self.given.iter().filter(|given| given.identity.is_some() && !self.forgotten(given)).count()
    }

    /// When the oldest remembered id is forgotten.
    pub(crate) fn next_forgotten_at(&self) -> Option<u64> {
        let oldest = self.given.iter().find(|given| given.identity.is_some() && !self.forgotten(given))?;
        Some(oldest.stamp + REQUEST_ID_RETENTION_NS)
    }

    /// The first instant at which the next permit of `key` may lie.
    pub(crate) fn free_from(&self, key: &Key) -> u64 {
        self.given.iter().filter(|given| given.key == *key).map(Given::end).max().unwrap_or(0)
    }

    fn forgotten(&self, given: &Given) -> bool {
        given.stamp + REQUEST_ID_RETENTION_NS <= self.now
    }

    fn acquire(&mut self, acquire: &Acquire, keys_max: u64) -> Verdict {
        if let Some(verdict) = self.known(acquire) {
            return verdict;
        }
        let Some(terms) = acquire.limit.as_ref().map(Terms::of) else { return Verdict::NoLimit };
        if terms.is_never(&acquire.ask) {
            return Verdict::Never;
        }
        let slot = match self.place(&acquire.key, &terms, &acquire.ask, self.now) {
            Ok(slot) => slot,
            Err(reason) => {
                let retry_after = self.search_retry(&acquire.key, &terms, &acquire.ask);
                self.last_retry_at = Some(self.now + retry_after);
                return Verdict::Denied { reason, retry_after };
            }
        };
        if self.free_from(&acquire.key) <= self.now && self.keys_busy() as u64 >= keys_max {
            return Verdict::TooManyKeys { first_idle_after: self.first_idle_after() };
        }
        let permit = self.given.len() as u64 + 1;
        let (stamp, cost, identity) = (self.now, acquire.ask.cost, acquire.identity);
        self.given.push(Given { key: acquire.key.clone(), permit, slot, stamp, cost, terms, identity });
        Verdict::Granted { permit, slot, stamp, reserved: self.reserved(&acquire.key), replayed: false }
    }

    /// The verdict on a request whose id is remembered.
    fn known(&self, acquire: &Acquire) -> Option<Verdict> {
        let identity = acquire.identity?;
        let first = self
            .given
            .iter()
            .find(|given| given.identity.is_some_and(|known| known.id == identity.id) && !self.forgotten(given))?;
        if first.identity != Some(identity) {
            return Some(Verdict::RequestIdReused);
        }
        let Given { permit, slot, stamp, .. } = *first;
        Some(Verdict::Granted { permit, slot, stamp, reserved: self.reserved(&first.key), replayed: true })
    }

    /// The slot of a request that comes at `at`, or the rule that refuses it.
    fn place(&self, key: &Key, terms: &Terms, ask: &Ask, at: u64) -> Result<u64, Reason> {
        let slot = (at + ask.lead.0).max(self.free_from(key));
        let reach = u128::from(at) + terms.max_reserved * terms.unit();
        if slot == at {
            Ok(slot)
        } else if ask.free_now_only {
            Err(Reason::NotFreeNow)
        } else if u128::from(slot) > reach {
            Err(Reason::ReservationsFull)
        } else if ask.max_wait.is_some_and(|wait| u128::from(slot) > u128::from(at) + u128::from(wait.0)) {
            Err(Reason::WouldWaitTooLong)
        } else {
            Ok(slot)
        }
    }

    /// The shortest wait after which this request, which is denied now, is granted if nobody else comes.
    fn search_retry(&self, key: &Key, terms: &Terms, ask: &Ask) -> u64 {
        let (mut too_soon, mut enough) = (0, self.free_from(key) - self.now);
        while enough - too_soon > 1 {
            let middle = too_soon + (enough - too_soon) / 2;
            if self.place(key, terms, ask, self.now + middle).is_ok() {
                enough = middle;
            } else {
                too_soon = middle;
            }
        }
        enough
    }

    /// Places taken ahead of now up to the last permit and including it, in units of the limit that was used last.
    fn reserved(&self, key: &Key) -> u64 {
        let Some(last) = self.given.iter().rfind(|given| given.key == *key) else { return 0 };
        let (ahead, unit) = (u128::from(last.slot.saturating_sub(self.now)), last.terms.unit());
        ns(ahead / unit + u128::from(ahead % unit > 0))
    }

    fn first_idle_after(&self) -> u64 {
        let ends = self.given.iter().map(|given| self.free_from(&given.key)).filter(|end| *end > self.now);
        ends.min().map_or(0, |end| end - self.now)
    }
}

impl Verdict {
    /// What `outcome` has that the oracle does not expect, if anything.
    pub(crate) fn differs(&self, acquire: &Acquire, outcome: &Outcome) -> Option<String> {
        let same = match (self, outcome) {
            (&Self::Granted { permit, slot, stamp, reserved, replayed }, Outcome::Granted(grant)) => {
                (permit, slot, stamp, reserved, replayed)
                    == (grant.permit, grant.slot.0, grant.stamp.0, grant.reserved, grant.replayed)
                    && deadlines_agree(acquire, grant)
            }
            (&Self::Denied { reason, retry_after }, Outcome::Denied(denial)) => {
                (reason, retry_after) == (denial.reason, denial.retry_after.0)
            }
            (&Self::TooManyKeys { first_idle_after }, Outcome::TooManyKeys { retry_after }) => {
                retry_after.0 <= first_idle_after && (retry_after.0 > 0 || first_idle_after == 0)
            }
            (Self::NoLimit, Outcome::NoLimit)
            | (Self::Never, Outcome::Never(_))
            | (Self::RequestIdReused, Outcome::RequestIdReused) => true,
            _ => false,
        };
        (!same).then(|| format!("{acquire:?}\nexpected {self:?}\nfound    {outcome:?}"))
    }
}

/// Deadlines round down, by no more than the two roundings in them.
fn deadlines_agree(acquire: &Acquire, grant: &Grant) -> bool {
    let terms = acquire.limit.as_ref().map(Terms::of);
    match terms.and_then(|terms| terms.deadlines(grant.slot.0, grant.stamp.0)) {
        None => grant.start_before.is_none() && grant.expires_at.is_none(),
        Some((expires_at, exact_millionths)) => {
            let start_before = grant.start_before.map(|span| u128::from(span.0) * 1_000_000);
            grant.expires_at == Some(Time(expires_at))
                && start_before.is_some_and(|found| found <= exact_millionths && exact_millionths - found < 2_000_000)
        }
    }
}

fn ns(wide: u128) -> u64 {
    u64::try_from(wide).expect("scripts stay within the end of time")
}
