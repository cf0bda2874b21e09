//! The machine: applies one batch after the other.

use super::acquire::Undo;
use super::command::{Acquire, Batch, Command, Held, LeaderId, Several, SeveralRule, Withdraw};
use super::keys::{KeyState, Keys};
use super::outcome::{Applied, KeyView, Outcome};
use super::policies::{Policies, Put, Stored};
use super::requests::{Remembered, Requests};
use super::shards::Shards;
use crate::limiter::{Key, Limit, Register, Span, Time};
use crate::limits::{KEYS_EXPIRED_PER_ENTRY_MAX, REQUEST_IDS_EXPIRED_PER_ENTRY_MAX};
use crate::planted::{self, Bug};

/// The whole replicated state.
#[derive(Debug)]
pub struct Machine {
    /// The latest stamp applied. Invariant: never goes back.
    pub(super) now: Time,
    /// The last fencing number given out. Invariant: grows by one with every permit.
    pub(super) permits: u64,
    pub(super) keys: Keys,
    pub(super) requests: Requests,
    pub(super) policies: Policies,
}

/// The whole state as it was at one instant: cheap to take, unchanged while the machine goes on.
#[derive(Debug)]
pub struct Frozen {
    pub(super) now: Time,
    pub(super) permits: u64,
    pub(super) keys: Shards<Key, KeyState>,
    pub(super) requests: Shards<u128, Remembered>,
    pub(super) policies: Policies,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            now: Time::ZERO,
            permits: 0,
            keys: Keys::new(),
            requests: Requests::new(),
            policies: Policies::default(),
        }
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

    /// All stored rules by name, and the revision of the last change of any.
    pub fn policies(&self) -> (Vec<Stored>, u64) {
        (self.policies.all().cloned().collect(), self.policies.revision())
    }

    /// The revision of the last change of any stored rule.
    pub const fn policy_revision(&self) -> u64 {
        self.policies.revision()
    }

    /// One stored rule.
    pub fn policy(&self, name: &str) -> Option<&Stored> {
        self.policies.get(name)
    }

    /// The key as it stands at `now`, or at the state's own time if that is later. `None` when no rule is stored for it and it
    /// equals a fresh one, whether or not it still is in memory.
    pub fn view(&self, key: &Key, now: Time) -> Option<KeyView> {
        let now = now.max(self.now);
        let rule = self.policies.find(key).map(|(rule, _)| rule.clone());
        let state = self.keys.get(key).filter(|state| state.register.idle_at(&state.limit) > now);
        let limit = rule.as_ref().map(|rule| rule.limit).or_else(|| state.map(|state| *state.limit))?;
        let register = state.map_or_else(Register::default, |state| state.under(&limit, now));
        let permit = state.map_or(0, |state| state.permit);
        Some(KeyView { standing: register.standing(&limit, now), limit, rule, permit })
    }

    /// Whether keys or request ids are due to be forgotten that no entry has had the time for yet.
    pub fn has_backlog(&self) -> bool {
        let due = |after: Span| after == Span::ZERO;
        (self.keys() > 0 && due(self.keys.first_leaves_after(self.now)))
            || (self.request_ids() > 0 && due(self.requests.first_forgotten_after(self.now)))
    }

    /// A consistent view of everything, for snapshots and digests.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            now: self.now,
            permits: self.permits,
            keys: self.keys.states().clone(),
            requests: self.requests.by_id().clone(),
            policies: self.policies.clone(),
        }
    }

    /// Applies one entry that `leader` appended to the log.
    pub fn apply(&mut self, leader: LeaderId, batch: &Batch) -> Applied {
        if batch.stamp.leader != leader && !planted::is(Bug::NoLeaderIdCheck) {
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
            Command::Several(several) => Outcome::Several(self.several(several, keys_max)),
            Command::Release(held) => self.release(held),
            Command::Renew(held) => self.renew(held),
            Command::Withdraw(withdraw) => Outcome::Withdrawn(self.withdraw(withdraw)),
            Command::Reset(key) => Outcome::Reset(self.keys.remove(key)),
            Command::PutPolicy { name, policy, condition } => match self.policies.put(name, policy, *condition) {
                Put::Done { revision, changed } => Outcome::PolicyPut { revision, changed },
                Put::OtherRevision(found) => Outcome::OtherRevision { found },
                Put::Conflict(with) => Outcome::PolicyConflict { with },
                Put::Full => Outcome::TooManyPolicies,
            },
            Command::DeletePolicy { name, condition } => match self.policies.delete(name, *condition) {
                Ok(revision) => Outcome::PolicyDeleted { revision },
                Err(None) => Outcome::NoPolicy,
                Err(found) => Outcome::OtherRevision { found },
            },
        }
    }

    fn several(&mut self, several: &Several, keys_max: u64) -> Vec<Outcome> {
        let Several { acquires, rule } = several;
        if *rule == SeveralRule::AllOrNothing {
            return self.all_or_nothing(acquires, keys_max);
        }
        let mut refused = false;
        let one = |acquire| {
            if refused && *rule == SeveralRule::InLine {
                return Outcome::Skipped;
            }
            let outcome = self.acquire(acquire, keys_max);
            refused |= !matches!(outcome, Outcome::Granted(_));
            outcome
        };
        acquires.iter().map(one).collect()
    }

    fn all_or_nothing(&mut self, acquires: &[Acquire], keys_max: u64) -> Vec<Outcome> {
        let mut undo = Undo::new(self);
        let mut outcomes = Vec::with_capacity(acquires.len());
        for acquire in acquires {
            undo.remember(self, acquire);
            outcomes.push(self.acquire(acquire, keys_max));
            if !matches!(outcomes.last(), Some(Outcome::Granted(_))) {
                undo.restore(self);
                let refused = outcomes.pop();
                let mut nothing = vec![Outcome::Skipped; acquires.len()];
                if let (Some(refused), Some(place)) = (refused, nothing.get_mut(outcomes.len())) {
                    *place = refused;
                }
                return nothing;
            }
        }
        outcomes
    }

    fn release(&mut self, held: &Held) -> Outcome {
        if held.permit == 0 || held.permit > self.permits {
            return Outcome::NoPermit;
        }
        Outcome::Released(self.give_back(&held.key, held.permit))
    }

    /// Gives one permit back; whether that was still possible. Its request is forgotten with it: a retry is a new request.
    fn give_back(&mut self, key: &Key, permit: u64) -> bool {
        let now = self.now;
        let Some(state) = self.keys.get_mut(key) else { return false };
        let Some(request) = state.register.release(&state.limit, now, permit) else { return false };
        // The id may have been forgotten and used again since: the newer request has nothing to do with this permit.
        if let Some(id) = request.filter(|id| self.requests.get(*id).is_some_and(|known| known.permit <= permit)) {
            self.requests.forget(id);
        }
        true
    }

    fn renew(&mut self, held: &Held) -> Outcome {
        let now = self.now;
        let Some(state) = self.keys.get_mut(&held.key) else { return Outcome::NoPermit };
        let Some(ends) = state.register.renew(&state.limit, now, held.permit) else { return Outcome::NoPermit };
        let lease = ends.since(now);
        Outcome::Renewed { lease, stop_before: Limit::lease_before(lease) }
    }

    fn withdraw(&mut self, withdraw: &Withdraw) -> Vec<Option<u64>> {
        let own = |known: &&Remembered| known.claim != 0 && known.claim == withdraw.claim;
        let Some(known) = self.requests.get(withdraw.id).filter(own) else {
            return vec![None; withdraw.keys.len()];
        };
        let first = known.permit;
        withdraw.keys.iter().zip(first..).map(|(key, permit)| self.give_back(key, permit).then_some(permit)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Ramp, Spacing, Span, Terms};
    use crate::limits::{KEYS_DEFAULT, REQUEST_ID_RETENTION_NS};
    use crate::state::{Identity, Stamp};

    const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

    fn ask(machine: &mut Machine, time: Time, id: Option<&str>) -> Outcome {
        let limit = Some(Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 10).unwrap()));
        let mut acquire = Acquire::one(Key::new("a").unwrap(), limit, 1, Terms::default());
        acquire.identity = id.map(|id| Identity::of(id, acquire.wanted()));
        let commands = vec![Command::Acquire(acquire)];
        let batch = Batch { stamp: Stamp { leader: LEADER, time }, keys_max: KEYS_DEFAULT, commands };
        match machine.apply(LEADER, &batch) {
            Applied::Decided { mut outcomes, .. } => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    /// "Idle keys leave memory when their state equals a fresh one", and are as good as gone when they merely could leave.
    #[test]
    fn a_ramp_begins_anew_after_its_rest_although_the_key_is_still_there() {
        let ramp = Ramp { from: "1/10s".parse().unwrap(), over: Span::from_secs(20) };
        let limit = Spacing::new("1/s".parse().unwrap(), Span::ZERO, 10).unwrap().with_ramp(ramp).unwrap();
        let key = Key::new("a").unwrap();
        let acquire = |cost, lead_secs| {
            let terms = Terms { lead: Span::from_secs(lead_secs), ..Terms::default() };
            Command::Acquire(Acquire::one(key.clone(), Some(Limit::Spacing(limit)), cost, terms))
        };
        let mut machine = Machine::default();
        let mut apply = |secs: u64, commands: Vec<Command>| {
            let stamp = Stamp { leader: LEADER, time: Time(secs * 1_000_000_000) };
            let Applied::Decided { outcomes, .. } =
                machine.apply(LEADER, &Batch { stamp, keys_max: KEYS_DEFAULT, commands })
            else {
                panic!("this leader's own stamp")
            };
            let view = machine.view(&key, stamp.time);
            (outcomes, machine.keys(), view.map(|view| view.standing.next.0 / 1_000_000_000))
        };
        // Indexed far ahead, where the first permit would have ended; what is left in the end is one at the very beginning.
        let release = |permit| Command::Release(Held { key: key.clone(), permit });
        apply(0, vec![acquire(40, 5), acquire(1, 0), release(1), acquire(1, 0), release(2)]);
        assert_eq!(apply(29, vec![]).2, Some(29), "free, and still in its ramp");
        let (outcomes, keys, next) = apply(30, vec![acquire(1, 0)]);
        assert!(matches!(&outcomes[..], [Outcome::Granted(grant)] if grant.slot == Time(30_000_000_000)));
        assert_eq!((keys, next), (1, Some(40)), "the slow rate again");
    }

    /// P5: "At most once", for "the retention time of the id": a permit that outlives its id takes no other request's along.
    #[test]
    fn a_release_forgets_its_own_request_only() {
        let mut machine = Machine::default();
        let far = Some(Limit::Spacing(Spacing::new("1/1h".parse().unwrap(), Span::ZERO, 10).unwrap()));
        let mut acquire = Acquire::one(Key::new("far").unwrap(), far, 1, Terms::default());
        let mut apply = |time, command| {
            let batch =
                Batch { stamp: Stamp { leader: LEADER, time }, keys_max: KEYS_DEFAULT, commands: vec![command] };
            machine.apply(LEADER, &batch);
            machine.request_ids()
        };
        apply(Time(0), Command::Acquire(acquire.clone()));
        acquire.identity = Some(Identity::of("id", acquire.wanted()));
        assert_eq!(apply(Time(0), Command::Acquire(acquire.clone())), 1);
        let later = Time(REQUEST_ID_RETENTION_NS);
        assert_eq!(apply(later, Command::Acquire(acquire.clone())), 1, "forgotten, and a new request");
        let release = |permit| Command::Release(Held { key: acquire.first.key.clone(), permit });
        assert_eq!(apply(later, release(2)), 1, "the permit of the first request");
        assert_eq!(apply(later, release(3)), 0);
    }

    /// P7: "everything has a limit and a clear error past it", ids included.
    #[test]
    fn ids_are_bounded_and_only_new_ones_are_refused() {
        let mut machine = Machine { requests: Requests::bounded(10), ..Machine::default() };
        assert!(matches!(ask(&mut machine, Time(0), Some("known")), Outcome::Granted(_)));
        let Outcome::Granted(grant) = ask(&mut machine, Time(1), None) else { panic!("a reservation") };
        let remembered = Remembered::new(0, 0, &grant);
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
