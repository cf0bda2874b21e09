//! The machine: applies one batch after the other.

use super::command::{Acquire, Batch, Command, LeaderId};
use super::keys::{Keys, Register};
use super::outcome::{Applied, Grant, KeyView, Outcome};
use super::requests::{Remembered, Requests};
use super::shards::Shards;
use crate::limiter::{Decision, Key, Time};
use crate::limits::{KEYS_EXPIRED_PER_ENTRY_MAX, REQUEST_IDS_EXPIRED_PER_ENTRY_MAX};

/// The whole replicated state.
#[derive(Debug)]
pub struct Machine {
    /// The latest stamp applied. Invariant: never goes back.
    pub(super) now: Time,
    /// The last fencing number given out. Invariant: grows by one with every grant.
    pub(super) permits: u64,
    pub(super) keys: Keys,
    pub(super) requests: Requests,
}

/// The whole state as it was at one instant: cheap to take, unchanged while the machine goes on.
#[derive(Debug)]
pub struct Frozen {
    pub(super) now: Time,
    pub(super) permits: u64,
    pub(super) registers: Shards<Key, Register>,
    pub(super) requests: Shards<u128, Remembered>,
}

impl Default for Machine {
    fn default() -> Self {
        Self { now: Time::ZERO, permits: 0, keys: Keys::new(), requests: Requests::new() }
    }
}

impl Machine {
    /// Cluster time as far as this state knows it.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Permits granted since the cluster was formed; also the last fencing number.
    pub const fn permits(&self) -> u64 {
        self.permits
    }

    /// Keys held.
    pub const fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Request ids remembered.
    pub const fn request_ids(&self) -> usize {
        self.requests.len()
    }

    /// The key as it stands at `now`, or at the state's own time if that is later.
    pub fn view(&self, key: &Key, now: Time) -> Option<KeyView> {
        self.keys.view(key, now.max(self.now))
    }

    /// A consistent view of everything, for snapshots and digests.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            now: self.now,
            permits: self.permits,
            registers: self.keys.registers().clone(),
            requests: self.requests.by_id().clone(),
        }
    }

    /// Applies one entry that `leader` appended to the log.
    pub fn apply(&mut self, leader: LeaderId, batch: &Batch) -> Applied {
        if batch.stamp.leader != leader {
            return Applied::StaleStamp;
        }
        // A stamp behind the state's time would give the past away; one ahead of it only tightens deadlines.
        let now = batch.stamp.time.max(self.now);
        self.now = now;
        self.keys.forget_idle(now, KEYS_EXPIRED_PER_ENTRY_MAX);
        self.requests.forget_old(now, REQUEST_IDS_EXPIRED_PER_ENTRY_MAX);
        let outcomes = batch.commands.iter().map(|command| self.command(command, batch.keys_max)).collect();
        Applied::Decided { now, outcomes }
    }

    fn command(&mut self, command: &Command, keys_max: u64) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire, keys_max),
        }
    }

    fn acquire(&mut self, acquire: &Acquire, keys_max: u64) -> Outcome {
        if let Some(outcome) = self.replay(acquire) {
            return outcome;
        }
        let Some(limit) = &acquire.limit else { return Outcome::NoLimit };
        let register = self.keys.get(&acquire.key);
        let (slot, next) = match limit.decide(register.map_or(Time::ZERO, |r| r.next), self.now, &acquire.ask) {
            Decision::Granted { slot, next } => (slot, next),
            Decision::Denied(denial) => return Outcome::Denied(denial),
            Decision::Never(why) => return Outcome::Never(why),
        };
        if register.is_none() && self.keys.len() as u64 >= keys_max {
            return Outcome::TooManyKeys { retry_after: self.keys.first_leaves_after(self.now) };
        }
        if acquire.identity.is_some() && self.requests.is_full() {
            return Outcome::TooManyRequestIds { retry_after: self.requests.first_forgotten_after(self.now) };
        }

        assert!(slot >= self.now && next > slot, "a grant lies ahead and moves the register");
        assert!(register.is_none_or(|r| slot >= r.next), "a grant never starts before the register allows");
        self.permits += 1;
        self.keys.grant(&acquire.key, (slot, next), self.permits, limit);
        let grant = Grant {
            permit: self.permits,
            slot,
            stamp: self.now,
            reserved: self.keys.reserved(&acquire.key, self.now),
            start_before: limit.start_before(slot, self.now),
            expires_at: limit.expires_at(slot),
            replayed: false,
        };
        if let Some(identity) = acquire.identity {
            self.requests.remember(identity.id, Remembered::new(identity.fingerprint, &grant));
        }
        Outcome::Granted(grant)
    }

    /// The outcome of a request whose id is known.
    fn replay(&self, acquire: &Acquire) -> Option<Outcome> {
        let identity = acquire.identity?;
        let remembered = self.requests.get(identity.id)?;
        if remembered.fingerprint != identity.fingerprint {
            return Some(Outcome::RequestIdReused);
        }
        Some(Outcome::Granted(remembered.replay(self.keys.reserved(&acquire.key, self.now))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Ask, Limit, Spacing, Span};
    use crate::limits::{KEYS_DEFAULT, REQUEST_ID_RETENTION_NS};
    use crate::state::{Identity, Stamp};

    const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

    fn ask(machine: &mut Machine, time: Time, id: Option<&str>) -> Outcome {
        let key = Key::new("a").unwrap();
        let limit = Some(Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 10).unwrap()));
        let identity = id.map(|id| Identity::of(id, &key, limit.as_ref(), 1));
        let commands = vec![Command::Acquire(Acquire { key, limit, ask: Ask::default(), identity })];
        let batch = Batch { stamp: Stamp { leader: LEADER, time }, keys_max: KEYS_DEFAULT, commands };
        match machine.apply(LEADER, &batch) {
            Applied::Decided { mut outcomes, .. } => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// P7: "everything has a limit and a clear error past it", ids included.
    #[test]
    fn ids_are_bounded_and_only_new_ones_are_refused() {
        let mut machine = Machine { requests: Requests::bounded(10), ..Machine::default() };
        assert!(matches!(ask(&mut machine, Time(0), Some("known")), Outcome::Granted(_)));
        let Outcome::Granted(grant) = ask(&mut machine, Time(1), None) else { panic!("a reservation") };
        let remembered = Remembered::new(0, &grant);
        for id in 1..10 {
            machine.requests.remember(id, remembered.clone());
        }
        assert_eq!(machine.request_ids(), 10);
        let refused = Outcome::TooManyRequestIds { retry_after: Span(REQUEST_ID_RETENTION_NS - 2) };
        assert_eq!(ask(&mut machine, Time(2), Some("new")), refused);
        assert_eq!(machine.permits(), 2, "nothing consumed");
        assert!(matches!(ask(&mut machine, Time(2), Some("known")), Outcome::Granted(grant) if grant.replayed));
        assert!(matches!(ask(&mut machine, Time(2), None), Outcome::Granted(_)), "without an id there is room");
        let due = Time(REQUEST_ID_RETENTION_NS);
        assert!(matches!(ask(&mut machine, due, Some("new")), Outcome::Granted(grant) if !grant.replayed));
    }
}
