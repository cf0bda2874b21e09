//! Stored rules: which limit is in force for which keys.
//!
//! A pattern is a whole key, or a beginning followed by `*`. The most specific one that matches wins: a whole key before any
//! beginning, a longer beginning before a shorter one. No two rules have the same pattern, so there is always one that wins.
//! Every change has a revision of its own, counted over all rules, and is in force from its log entry on.

use crate::limiter::{Key, Limit, Overrides};
use crate::limits::{KEY_BYTES_MAX, POLICIES_MAX, POLICY_NAME_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// What a rule says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Which keys.
    pub pattern: Pattern,
    /// Their limit.
    pub limit: Limit,
    /// What a request may bring along in its place.
    pub overrides: Overrides,
}

/// Which keys a rule is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// This key.
    Exact(Arc<str>),
    /// Keys that begin like this: `github:*`, or `*` for all.
    Prefix(Arc<str>),
}

/// What is wrong with a pattern or a name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// Not a pattern.
    #[error("{0}")]
    Pattern(String),
    /// Not a name.
    #[error("a name of a policy has 1 to {POLICY_NAME_BYTES_MAX} letters, digits, '.', '_' or '-', this one is {0:?}")]
    Name(String),
}

impl Pattern {
    /// Reads a pattern: a key, a beginning and `*`, or `*`.
    pub fn new(text: &str) -> Result<Self, PolicyError> {
        let (prefix, stem) = text.strip_suffix('*').map_or((false, text), |stem| (true, stem));
        let wrong = |why: String| Err(PolicyError::Pattern(why));
        if stem.contains('*') {
            return wrong(format!("a pattern has one '*', at its end; {text:?} has another"));
        }
        if stem.is_empty() && !prefix {
            return wrong("a pattern has at least one byte".to_owned());
        }
        if stem.len() > KEY_BYTES_MAX {
            return wrong(format!("a pattern has at most {KEY_BYTES_MAX} bytes, this one has {}", stem.len()));
        }
        if let Some((at, found)) = stem.char_indices().find(|(_, c)| c.is_control()) {
            return wrong(format!(
                "a pattern has no control characters, this one has U+{:04X} at byte {at}",
                found as u32
            ));
        }
        Ok(if prefix { Self::Prefix(stem.into()) } else { Self::Exact(stem.into()) })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(key) => f.write_str(key),
            Self::Prefix(stem) => write!(f, "{stem}*"),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = PolicyError;
    fn try_from(text: String) -> Result<Self, PolicyError> {
        Self::new(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

/// Checks the name of a rule.
pub fn policy_name(text: &str) -> Result<Arc<str>, PolicyError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > POLICY_NAME_BYTES_MAX || !text.bytes().all(allowed) {
        return Err(PolicyError::Name(text.chars().take(POLICY_NAME_BYTES_MAX + 1).collect()));
    }
    Ok(text.into())
}

/// Only under this condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Whatever is stored.
    Always,
    /// Something is stored.
    Exists,
    /// This revision is stored.
    Revision(u64),
    /// Nothing is stored.
    Absent,
}

impl Condition {
    fn holds(self, found: Option<u64>) -> bool {
        match self {
            Self::Always => true,
            Self::Exists => found.is_some(),
            Self::Revision(wanted) => found == Some(wanted),
            Self::Absent => found.is_none(),
        }
    }
}

/// What answers say of the rule they came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// Its name.
    pub policy: Arc<str>,
    /// Its revision.
    pub revision: u64,
    /// The limit in force: the rule's own, with what the request was allowed to bring along.
    pub limit: Limit,
}

/// A rule as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its name.
    pub name: Arc<str>,
    /// What it says.
    pub policy: Policy,
    /// Of its last change.
    pub revision: u64,
}

/// One row of the table: what is stored, and what answers say of it, made once.
#[derive(Debug)]
struct Row {
    stored: Stored,
    rule: Arc<Rule>,
}

/// All rules. A clone is cheap: it is what snapshots are taken of.
#[derive(Debug, Clone, Default)]
pub(super) struct Policies {
    revision: u64,
    by_name: BTreeMap<Arc<str>, Arc<Row>>,
    exact: BTreeMap<Arc<str>, Arc<Row>>,
    prefixes: BTreeMap<Arc<str>, Arc<Row>>,
    /// How many prefixes there are of each length.
    lengths: BTreeMap<usize, usize>,
}

/// What came of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Put {
    Done { revision: u64, changed: bool },
    OtherRevision(Option<u64>),
    Conflict(Arc<str>),
    Full,
}

impl Policies {
    /// Of the last change of any rule.
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    /// All rules by name.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stored> {
        self.by_name.values().map(|row| &row.stored)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Stored> {
        self.by_name.get(name).map(|row| &row.stored)
    }

    /// The rule that is in force for `key`, and what it lets a request bring along.
    pub(super) fn find(&self, key: &Key) -> Option<(&Arc<Rule>, Overrides)> {
        if self.by_name.is_empty() {
            return None;
        }
        let text = key.as_str();
        let by_length = || {
            let fitting = self.lengths.range(..=text.len()).rev().map(|(length, _)| *length);
            fitting.filter_map(|length| text.get(..length)).find_map(|stem| self.prefixes.get(stem))
        };
        let row = self.exact.get(text).or_else(by_length)?;
        Some((&row.rule, row.stored.policy.overrides))
    }

    /// Stores a rule.
    pub(super) fn put(&mut self, name: &Arc<str>, policy: &Policy, condition: Condition) -> Put {
        let found = self.by_name.get(name);
        let found_revision = found.map(|row| row.stored.revision);
        if !condition.holds(found_revision) {
            return Put::OtherRevision(found_revision);
        }
        if let Some(same) = found.filter(|row| row.stored.policy == *policy) {
            return Put::Done { revision: same.stored.revision, changed: false };
        }
        if let Some(other) = self.with_pattern(&policy.pattern).filter(|row| row.stored.name != *name) {
            return Put::Conflict(Arc::clone(&other.stored.name));
        }
        if found.is_none() && self.by_name.len() >= POLICIES_MAX {
            return Put::Full;
        }
        self.remove(name);
        self.revision += 1;
        self.insert(Stored { name: Arc::clone(name), policy: policy.clone(), revision: self.revision });
        Put::Done { revision: self.revision, changed: true }
    }

    /// Removes a rule; the revision of that change, or what was found instead.
    pub(super) fn delete(&mut self, name: &str, condition: Condition) -> Result<u64, Option<u64>> {
        let found = self.get(name).map(|stored| stored.revision);
        if found.is_none() || !condition.holds(found) {
            return Err(found);
        }
        self.remove(name);
        self.revision += 1;
        Ok(self.revision)
    }

    /// Takes all rules of a snapshot; `None` if two of them have a name or a pattern in common, or a revision is too high.
    pub(super) fn restore(revision: u64, all: Vec<Stored>) -> Option<Self> {
        let mut policies = Self { revision, ..Self::default() };
        for stored in all {
            let known = policies.by_name.contains_key(&stored.name)
                || policies.with_pattern(&stored.policy.pattern).is_some()
                || stored.revision > revision;
            if known {
                return None;
            }
            policies.insert(stored);
        }
        Some(policies)
    }

    fn with_pattern(&self, pattern: &Pattern) -> Option<&Arc<Row>> {
        match pattern {
            Pattern::Exact(key) => self.exact.get(key),
            Pattern::Prefix(stem) => self.prefixes.get(stem),
        }
    }

    fn insert(&mut self, stored: Stored) {
        let rule = Rule { policy: Arc::clone(&stored.name), revision: stored.revision, limit: stored.policy.limit };
        let row = Arc::new(Row { stored, rule: Arc::new(rule) });
        match &row.stored.policy.pattern {
            Pattern::Exact(key) => {
                self.exact.insert(Arc::clone(key), Arc::clone(&row));
            }
            Pattern::Prefix(stem) => {
                self.prefixes.insert(Arc::clone(stem), Arc::clone(&row));
                *self.lengths.entry(stem.len()).or_default() += 1;
            }
        }
        self.by_name.insert(Arc::clone(&row.stored.name), row);
    }

    fn remove(&mut self, name: &str) {
        let Some(row) = self.by_name.remove(name) else { return };
        match &row.stored.policy.pattern {
            Pattern::Exact(key) => {
                self.exact.remove(key);
            }
            Pattern::Prefix(stem) => {
                self.prefixes.remove(stem);
                if let Some(count) = self.lengths.get_mut(&stem.len()) {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&stem.len());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Spacing, Span};

    fn limit(rate: &str) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, 10).unwrap())
    }

    fn policy(pattern: &str, rate: &str) -> Policy {
        Policy { pattern: Pattern::new(pattern).unwrap(), limit: limit(rate), overrides: Overrides::NONE }
    }

    fn put(policies: &mut Policies, name: &str, pattern: &str, rate: &str, condition: Condition) -> Put {
        policies.put(&policy_name(name).unwrap(), &policy(pattern, rate), condition)
    }

    fn found<'a>(policies: &'a Policies, key: &str) -> Option<&'a str> {
        policies.find(&Key::new(key).unwrap()).map(|(rule, _)| rule.policy.as_ref())
    }

    /// "Exact beats prefix beats star; longest wins."
    #[test]
    fn the_most_specific_wins() {
        let mut policies = Policies::default();
        assert_eq!(found(&policies, "github:a"), None);
        for (name, pattern) in
            [("all", "*"), ("github", "github:*"), ("git", "git*"), ("one", "github:a"), ("zürich", "github:ü*")]
        {
            let name = if name.is_ascii() { name } else { "umlaut" };
            assert!(matches!(put(&mut policies, name, pattern, "1/s", Condition::Always), Put::Done { .. }));
        }
        for (key, name) in [
            ("github:a", "one"),
            ("github:ab", "github"),
            ("github:", "github"),
            ("gitlab", "git"),
            ("gi", "all"),
            ("github:ünal", "umlaut"),
            ("github:*", "github"),
        ] {
            assert_eq!(found(&policies, key), Some(name), "{key}");
        }
        assert_eq!(policies.delete("github", Condition::Always), Ok(6));
        assert_eq!(found(&policies, "github:ab"), Some("git"));
        assert_eq!(policies.delete("github", Condition::Always), Err(None));
    }

    /// "Ties refused at `PUT`", and conditions.
    #[test]
    fn changes_have_conditions_and_revisions() {
        let mut policies = Policies::default();
        let done = |revision, changed| Put::Done { revision, changed };
        assert_eq!(put(&mut policies, "a", "k*", "1/s", Condition::Exists), Put::OtherRevision(None));
        assert_eq!(put(&mut policies, "a", "k*", "1/s", Condition::Absent), done(1, true));
        assert_eq!(put(&mut policies, "a", "k*", "1/s", Condition::Always), done(1, false), "the same again");
        assert_eq!(put(&mut policies, "b", "k*", "1/s", Condition::Always), Put::Conflict("a".into()));
        assert_eq!(put(&mut policies, "b", "k", "1/s", Condition::Always), done(2, true), "a key is not a beginning");
        assert_eq!(put(&mut policies, "a", "k*", "2/s", Condition::Revision(2)), Put::OtherRevision(Some(1)));
        assert_eq!(put(&mut policies, "a", "k*", "2/s", Condition::Revision(1)), done(3, true));
        assert_eq!(put(&mut policies, "a", "l*", "2/s", Condition::Absent), Put::OtherRevision(Some(3)));
        assert_eq!(put(&mut policies, "a", "l*", "2/s", Condition::Exists), done(4, true), "a pattern may move");
        assert_eq!((found(&policies, "kk"), found(&policies, "ll")), (None, Some("a")));
        assert_eq!(policies.delete("a", Condition::Revision(3)), Err(Some(4)));
        assert_eq!(policies.delete("a", Condition::Revision(4)), Ok(5));
        assert_eq!(put(&mut policies, "a", "l*", "2/s", Condition::Always), done(6, true), "revisions are not reused");
        let names: Vec<_> = policies.all().map(|stored| stored.name.as_ref()).collect();
        assert_eq!((names, policies.revision()), (vec!["a", "b"], 6));
    }

    #[test]
    fn patterns_and_names_are_checked() {
        for (pattern, why) in [("", "at least one"), ("a*b*", "another"), ("*a", "one '*'"), ("a\n*", "control")] {
            assert!(Pattern::new(pattern).unwrap_err().to_string().contains(why), "{pattern}");
        }
        assert!(Pattern::new(&"x".repeat(257)).is_err());
        for pattern in ["*", "a*", "a"] {
            assert_eq!(Pattern::new(pattern).unwrap().to_string(), pattern);
        }
        for name in ["", "a b", "ü", &"x".repeat(65)] {
            assert!(policy_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_restore_trusts_nothing() {
        let stored = |name: &str, pattern: &str, revision| Stored {
            name: name.into(),
            policy: policy(pattern, "1/s"),
            revision,
        };
        let all = vec![stored("a", "k", 1), stored("b", "k*", 2)];
        assert_eq!(found(&Policies::restore(2, all).unwrap(), "kk"), Some("b"));
        assert!(Policies::restore(2, vec![stored("a", "k", 1), stored("a", "l", 2)]).is_none());
        assert!(Policies::restore(2, vec![stored("a", "k", 1), stored("b", "k", 2)]).is_none());
        assert!(Policies::restore(2, vec![stored("a", "k", 3)]).is_none());
    }
}
