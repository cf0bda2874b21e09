//! From what is stored to what a file says: which changes, and in which order.
//!
//! Invariants
//! - No two policies ever have one pattern, not even between two steps: who holds a pattern that another one gets goes
//!   first. Policies that want each other's patterns cannot all go first, so one of them is deleted and stored again.
//! - Every step names the revision it was planned against, so that nobody else's change is run over.
//! - What the file does not name is deleted only if that is asked for, and last, unless room is needed.
//!
//! Keys whose pattern changes hands are without that rule between the two steps: nodes change one policy at a time.
//!
//! Not here: sending anything.

use super::super::limit;
use super::file::{POLICIES_MAX, Rules};
use super::{differences, list};
use crate::api::{PolicyRequest, PolicyResponse};
use std::collections::BTreeMap;

/// One policy that is to become another, to come, or to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) name: String,
    /// As it is stored.
    pub(super) before: Option<PolicyResponse>,
    /// As it shall be; `None` for one that goes.
    pub(super) after: Option<PolicyRequest>,
}

/// One request. The number is the index of the change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Store it.
    Put(usize),
    /// Delete it.
    Delete(usize),
    /// Delete it for a moment: others are waiting for its pattern, and it for theirs.
    Aside(usize),
    /// Store it again.
    Return(usize),
}

/// All changes, by name, and all steps, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) changes: Vec<Change>,
    pub(super) steps: Vec<Step>,
    /// How many policies are stored as the file has them.
    pub(super) unchanged: usize,
    /// How many policies are stored that the file does not name, and stay.
    pub(super) kept: usize,
}

impl Plan {
    /// Fails where a policy of the file wants the pattern of one that stays.
    pub(super) fn new(rules: Rules, stored: Vec<PolicyResponse>, prune: bool) -> Result<Self, Vec<String>> {
        let mut plan = Self::default();
        let stored_count = stored.len();
        let mut stored: BTreeMap<_, _> = stored.into_iter().map(|policy| (policy.name.clone(), policy)).collect();
        for (name, wanted) in rules.0 {
            match stored.remove(&name) {
                Some(before) if differences(&before, &wanted).is_empty() => plan.unchanged += 1,
                before => plan.changes.push(Change { name, before, after: Some(wanted) }),
            }
        }
        if prune {
            let gone = |(name, before)| Change { name, before: Some(before), after: None };
            plan.changes.extend(std::mem::take(&mut stored).into_iter().map(gone));
            plan.changes.sort_by(|one, other| one.name.cmp(&other.name));
        }
        plan.kept = stored.len();
        let conflicts = plan.conflicts(&stored);
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        plan.steps = plan.order(stored_count);
        Ok(plan)
    }

    /// Patterns that the file gives to one policy while another keeps them.
    fn conflicts(&self, kept: &BTreeMap<String, PolicyResponse>) -> Vec<String> {
        let holders: BTreeMap<_, _> = kept.values().map(|policy| (&policy.pattern, &policy.name)).collect();
        let conflict = |change: &Change| {
            let pattern = &change.after.as_ref()?.pattern;
            let holder = holders.get(pattern)?;
            Some(format!(
                "{}: its match {pattern:?} belongs to {holder}, which the file does not name; delete that one, or use --prune",
                change.name
            ))
        };
        self.changes.iter().filter_map(conflict).collect()
    }

    fn order(&self, stored_count: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut done = vec![false; self.changes.len()];
        let goes = |at: usize| self.changes[at].after.is_none();
        let created = self.changes.iter().filter(|change| change.before.is_none()).count();
        if stored_count + created > POLICIES_MAX {
            // There would be no room for what comes.
            (0..done.len()).filter(|at| goes(*at)).for_each(|at| {
                done[at] = true;
                steps.push(Step::Delete(at));
            });
        }
        let holders: BTreeMap<_, _> = self.changes.iter().enumerate().filter_map(holds).collect();
        for first in (0..self.changes.len()).filter(|at| !goes(*at)) {
            if done[first] {
                continue;
            }
            // Who is in the way of whom. Each holds one pattern and wants one, so this either ends or comes back to the
            // first.
            let mut chain = vec![first];
            let mut round = false;
            while let Some(holder) = self.wants(chain[chain.len() - 1]).and_then(|pattern| holders.get(pattern)) {
                round = *holder == first && chain.len() > 1;
                if round || done[*holder] || *holder == chain[chain.len() - 1] {
                    break;
                }
                chain.push(*holder);
            }
            if round {
                steps.push(Step::Aside(first));
            }
            for at in chain.into_iter().rev() {
                done[at] = true;
                steps.push(match at {
                    _ if goes(at) => Step::Delete(at),
                    _ if round && at == first => Step::Return(at),
                    _ => Step::Put(at),
                });
            }
        }
        steps.extend((0..done.len()).filter(|at| !done[*at]).map(Step::Delete));
        steps
    }

    fn wants(&self, at: usize) -> Option<&String> {
        self.changes[at].after.as_ref().map(|policy| &policy.pattern)
    }

    /// For people, a line a change.
    pub(super) fn diff(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.changes.iter().enumerate().map(|(at, change)| self.line(at, change)).collect();
        if self.unchanged > 0 {
            lines.push(format!("= {} unchanged", self.unchanged));
        }
        if self.kept > 0 {
            lines.push(format!("= {} not in the file, kept (--prune deletes them)", self.kept));
        }
        lines
    }

    fn line(&self, at: usize, change: &Change) -> String {
        let name = &change.name;
        match (&change.before, &change.after) {
            (Some(before), Some(after)) => {
                let aside = if self.steps.contains(&Step::Aside(at)) { "  (deleted for a moment)" } else { "" };
                format!("~ {name}  {}{aside}", differences(before, after).join(", "))
            }
            (None, Some(after)) => {
                let members: Vec<_> = after.overrides.iter().map(|member| member.as_str()).collect();
                let overrides =
                    if members.is_empty() { String::new() } else { format!("  override: {}", list(&members)) };
                format!("+ {name}  {}  {}{overrides}", after.pattern, limit::shown(&after.limit))
            }
            (Some(before), None) => format!("- {name}  {}  {}", before.pattern, limit::shown(&before.limit)),
            (None, None) => format!("= {name}"),
        }
    }
}

/// The pattern that a change frees or keeps, and whose it is.
fn holds((at, change): (usize, &Change)) -> Option<(&String, usize)> {
    change.before.as_ref().map(|policy| (&policy.pattern, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(policies: &[(&str, &str)]) -> Rules {
        let one = |(name, pattern): &(&str, &str)| {
            ((*name).to_owned(), PolicyRequest::new(*pattern, limit::read("1/s").unwrap()))
        };
        Rules(policies.iter().map(one).collect())
    }

    fn stored(policies: &[(&str, &str)]) -> Vec<PolicyResponse> {
        let one = |(revision, (name, pattern)): (u64, &(&str, &str))| PolicyResponse {
            name: (*name).to_owned(),
            pattern: (*pattern).to_owned(),
            limit: limit::read("1/s").unwrap(),
            overrides: Vec::new(),
            revision,
        };
        (1..).zip(policies).map(one).collect()
    }

    /// Takes the steps one by one, under the rule of the nodes: one policy a pattern.
    fn walk(plan: &Plan, stored: &[PolicyResponse]) -> BTreeMap<String, String> {
        let mut now: BTreeMap<_, _> =
            stored.iter().map(|policy| (policy.name.clone(), policy.pattern.clone())).collect();
        for step in &plan.steps {
            match *step {
                Step::Put(at) | Step::Return(at) => {
                    let (name, pattern) = (&plan.changes[at].name, plan.wants(at).expect("one that stays"));
                    assert!(now.iter().all(|(other, held)| other == name || held != pattern), "{plan:?}");
                    assert_eq!(
                        now.insert(name.clone(), pattern.clone()).is_none(),
                        matches!(step, Step::Return(_)) || plan.changes[at].before.is_none()
                    );
                }
                Step::Delete(at) | Step::Aside(at) => assert!(now.remove(&plan.changes[at].name).is_some(), "{plan:?}"),
            }
        }
        now
    }

    fn plan(file: &[(&str, &str)], there: &[(&str, &str)], prune: bool) -> Plan {
        Plan::new(rules(file), stored(there), prune).unwrap()
    }

    #[test]
    fn the_diff_says_what_comes_changes_goes_and_stays() {
        let there = [("a", "a"), ("b", "b"), ("old", "o")];
        let file = [("a", "a"), ("b", "b2"), ("new", "n")];
        assert_eq!(
            plan(&file, &there, false).diff(),
            [
                "~ b  match: b -> b2",
                "+ new  n  1/s",
                "= 1 unchanged",
                "= 1 not in the file, kept (--prune deletes them)"
            ]
        );
        let pruned = plan(&file, &there, true);
        assert_eq!(pruned.diff(), ["~ b  match: b -> b2", "+ new  n  1/s", "- old  o  1/s", "= 1 unchanged"]);
        assert_eq!(pruned.steps, [Step::Put(0), Step::Put(1), Step::Delete(2)], "what goes, goes last");
        assert_eq!(plan(&there, &there, true).steps, []);
    }

    #[test]
    fn a_pattern_is_free_before_it_is_given_away() {
        // A policy gets another name.
        let renamed = plan(&[("a-new", "p")], &[("z-old", "p")], true);
        assert_eq!(renamed.steps, [Step::Delete(1), Step::Put(0)]);
        // A chain: each gets what the next one had.
        let there = [("a", "1"), ("b", "2"), ("c", "3")];
        let chain = plan(&[("a", "2"), ("b", "3"), ("c", "4")], &there, false);
        assert_eq!(chain.steps, [Step::Put(2), Step::Put(1), Step::Put(0)]);
    }

    #[test]
    fn a_swap_takes_one_aside() {
        let swap = plan(&[("a", "2"), ("b", "1")], &[("a", "1"), ("b", "2")], false);
        assert_eq!(swap.steps, [Step::Aside(0), Step::Put(1), Step::Return(0)]);
        assert_eq!(swap.diff(), ["~ a  match: 1 -> 2  (deleted for a moment)", "~ b  match: 2 -> 1"]);
        let there = [("a", "1"), ("b", "2"), ("c", "3")];
        let round = plan(&[("a", "2"), ("b", "3"), ("c", "1")], &there, false);
        assert_eq!(round.steps, [Step::Aside(0), Step::Put(2), Step::Put(1), Step::Return(0)]);
    }

    #[test]
    fn a_pattern_of_a_policy_that_stays_is_a_conflict() {
        let conflict = Plan::new(rules(&[("a", "p")]), stored(&[("other", "p")]), false).unwrap_err();
        assert_eq!(
            conflict,
            ["a: its match \"p\" belongs to other, which the file does not name; delete that one, or use --prune"]
        );
    }

    #[test]
    fn where_room_is_needed_what_goes_goes_first() {
        let names: Vec<_> = (0..POLICIES_MAX).map(|at| format!("o{at}")).collect();
        let there: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
        let full = plan(&[("a", "a"), ("b", "b")], &there, true);
        assert_eq!(full.steps.len(), POLICIES_MAX + 2);
        assert_eq!(full.steps[POLICIES_MAX..], [Step::Put(0), Step::Put(1)]);
    }

    proptest! {
        /// From anywhere to anywhere, with every step allowed.
        #[test]
        fn every_plan_can_be_walked(
            from in prop::collection::btree_map("[a-h]", 0..12u8, 0..8),
            to in prop::collection::btree_map("[a-h]", 0..12u8, 0..8),
            prune: bool,
        ) {
            fn distinct(policies: &BTreeMap<String, u8>) -> Vec<(String, String)> {
                let by_pattern: BTreeMap<_, _> = policies.iter().map(|(name, pattern)| (pattern, name)).collect();
                by_pattern.into_iter().map(|(pattern, name)| (name.clone(), pattern.to_string())).collect()
            }
            fn borrowed(policies: &[(String, String)]) -> Vec<(&str, &str)> {
                policies.iter().map(|(name, pattern)| (name.as_str(), pattern.as_str())).collect()
            }
            let (from, to) = (distinct(&from), distinct(&to));
            let there = stored(&borrowed(&from));
            let wanted: BTreeMap<String, String> = to.iter().cloned().collect();
            if let Ok(plan) = Plan::new(rules(&borrowed(&to)), there.clone(), prune) {
                let reached = walk(&plan, &there);
                for (name, pattern) in &wanted {
                    prop_assert_eq!(reached.get(name), Some(pattern));
                }
                prop_assert_eq!(reached.len(), wanted.len() + plan.kept);
            } else {
                prop_assert!(!prune, "with nothing that stays there is no conflict");
            }
        }
    }
}
