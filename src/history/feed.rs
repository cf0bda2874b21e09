//! From applied entries to what the history is told of them.
//!
//! Only what was newly decided: a retry that got its old permit again is none, and neither is a request that made no sense.

use super::event::{Applied, Audit, Event};
use crate::limiter::Time;
use crate::state::{self, Acquire, Command, Outcome, Policy};

/// One applied entry, as the history is told of it.
pub fn entry(index: u64, batch: &state::Batch, applied: &state::Applied) -> Option<Applied> {
    let state::Applied::Decided { now, outcomes } = applied else { return None };
    let mut events = Vec::with_capacity(batch.commands.len());
    for (command, outcome) in batch.commands.iter().zip(outcomes) {
        tell(command, outcome, &mut events);
    }
    Some(Applied { index, at: *now, events })
}

/// A change of the members.
pub fn membership(index: u64, at: Time, voters: Vec<u64>, learners: Vec<u64>) -> Applied {
    Applied { index, at, events: vec![Event::Audit(Audit::Membership { voters, learners })] }
}

fn tell(command: &Command, outcome: &Outcome, events: &mut Vec<Event>) {
    match (command, outcome) {
        (Command::Acquire(acquire), outcome) => tell_acquire(acquire, outcome, events),
        (Command::Several(several), Outcome::Several(outcomes)) => {
            for (acquire, outcome) in several.acquires.iter().zip(outcomes) {
                tell_acquire(acquire, outcome, events);
            }
        }
        (Command::Release(held), Outcome::Released(true)) => {
            events.push(Event::Released { key: held.key.clone(), permit: held.permit });
        }
        (Command::Withdraw(withdraw), Outcome::Withdrawn(permits)) => {
            let given_back = withdraw.keys.iter().zip(permits).filter_map(|(key, permit)| Some((key, (*permit)?)));
            events.extend(given_back.map(|(key, permit)| Event::Released { key: key.clone(), permit }));
        }
        (Command::Reset(key), Outcome::Reset(true)) => events.push(Event::Reset { key: key.clone() }),
        (Command::PutPolicy { name, policy, .. }, Outcome::PolicyPut { revision, changed: true }) => {
            let (name, summary) = (name.to_string(), summary(policy));
            events.push(Event::Audit(Audit::PolicyPut { name, revision: *revision, summary }));
        }
        (Command::DeletePolicy { name, .. }, Outcome::PolicyDeleted { revision }) => {
            events.push(Event::Audit(Audit::PolicyDeleted { name: name.to_string(), revision: *revision }));
        }
        _ => {}
    }
}

fn tell_acquire(acquire: &Acquire, outcome: &Outcome, events: &mut Vec<Event>) {
    match outcome {
        Outcome::Granted(grant) if !grant.replayed => {
            events.extend(acquire.wanted().zip(grant.permits()).map(|(wanted, permit)| Event::Granted {
                key: wanted.key.clone(),
                policy: permit.rule.as_ref().map(|rule| rule.policy.clone()),
                permit: permit.number,
                slot: grant.slot,
                cost: wanted.cost,
                worker: acquire.worker.clone(),
            }));
        }
        Outcome::Denied { by, denial, rule } => {
            let Some(wanted) = acquire.wanted().nth(*by) else { return };
            events.push(Event::Denied {
                key: wanted.key.clone(),
                policy: rule.as_ref().map(|rule| rule.policy.clone()),
                cost: wanted.cost,
                reason: denial.reason.as_str(),
                worker: acquire.worker.clone(),
            });
        }
        _ => {}
    }
}

fn summary(policy: &Policy) -> String {
    format!("{} for {}", policy.limit, policy.pattern)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Key, Limit, Overrides, Spacing, Span, Terms};
    use crate::state::{
        Batch, Condition, Held, Identity, LeaderId, Machine, Pattern, Several, SeveralRule, Stamp, Withdraw,
    };

    const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

    fn told(machine: &mut Machine, commands: Vec<Command>) -> Vec<String> {
        let batch = Batch { stamp: Stamp { leader: LEADER, time: Time(7) }, keys_max: 100, commands };
        let applied = machine.apply(LEADER, &batch);
        let entry = entry(3, &batch, &applied).unwrap();
        assert_eq!((entry.index, entry.at), (3, Time(7)));
        entry.events.iter().map(|event| format!("{event:?}").split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn acquire(key: &str, id: Option<&str>) -> Acquire {
        let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 2).unwrap());
        let mut acquire = Acquire::one(Key::new(key).unwrap(), Some(limit), 1, Terms::default());
        acquire.identity = id.map(|id| Identity::of(id, acquire.wanted()));
        acquire.worker = Some("w".into());
        acquire
    }

    #[test]
    fn every_new_decision_is_told_once() {
        let mut machine = Machine::default();
        let one = |id| Command::Acquire(Acquire { claim: 5, ..acquire("k", id) });
        let first = told(&mut machine, vec![one(Some("a")), one(Some("a")), one(Some("b"))]);
        assert_eq!(first.len(), 2, "a retry is not told: {first:?}");
        assert!(
            first[0].starts_with("Granted { key: Key(\"k\"), policy: None, permit: 1") && first[0].contains("\"w\"")
        );
        let id = Identity::of("b", acquire("k", None).wanted()).id;
        let withdraw = Withdraw { id, claim: 5, keys: vec![Key::new("k").unwrap()] };
        let more = told(&mut machine, vec![Command::Withdraw(withdraw.clone()), Command::Withdraw(withdraw)]);
        assert_eq!(more, ["Released { key: Key(\"k\"), permit: 2 }"]);
        let several = Several { acquires: vec![acquire("k", None); 3], rule: SeveralRule::Each };
        let several = told(&mut machine, vec![Command::Several(several)]);
        assert!(several[1].contains("Granted") && several[2].contains("reservations_full"), "{several:?}");
        let held = |permit| Command::Release(Held { key: Key::new("k").unwrap(), permit });
        assert_eq!(told(&mut machine, vec![held(4), held(4), held(99)]), ["Released { key: Key(\"k\"), permit: 4 }"]);
    }

    #[test]
    fn changes_of_rules_and_resets_are_told() {
        let mut machine = Machine::default();
        let policy = Policy {
            pattern: Pattern::new("k*").unwrap(),
            limit: Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 2).unwrap()),
            overrides: Overrides::NONE,
        };
        let put = Command::PutPolicy { name: "p".into(), policy, condition: Condition::Always };
        let events = told(&mut machine, vec![put.clone(), put, Command::Acquire(acquire("k1", None))]);
        assert_eq!(events.len(), 2, "the same rule again is no change: {events:?}");
        assert!(events[0].contains("summary: \"spacing 1/6s for k*\""), "{events:?}");
        assert!(events[1].contains("policy: Some(\"p\")"), "{events:?}");
        let reset = Command::Reset(Key::new("k1").unwrap());
        let delete = Command::DeletePolicy { name: "p".into(), condition: Condition::Always };
        let events = told(&mut machine, vec![reset.clone(), reset, delete.clone(), delete]);
        assert_eq!(events.len(), 2, "{events:?}");
    }
}
