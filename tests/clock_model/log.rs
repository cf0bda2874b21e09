//! Logs as Raft keeps them: entries form a tree, and a node's log is one path from its root.

use crate::rule::Rule;
use quorate::clock::{Reading, Timeline};
use quorate::limiter::Time;

/// A leader: the term and the node, ordered as votes are. One term may see several, as in openraft's default mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaderId {
    pub term: u64,
    pub node: usize,
}

/// The number of an entry in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryId(usize);

/// What a proposer writes into an entry, and what only the oracle knows.
#[derive(Debug, Clone, Copy)]
pub struct Stamped {
    /// Whose timeline the stamp was read on.
    pub leader: LeaderId,
    pub stamp: Time,
    /// The real time of stamping: the `s` of the lemma.
    pub real_ns: u64,
    /// The request it decides; a tick has none.
    pub request: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The leader that appended it: half of its log id.
    pub leader: LeaderId,
    pub index: usize,
    before: Option<EntryId>,
    /// A new leader's first entry has none.
    pub command: Option<Stamped>,
}

/// All entries that ever were, on whatever node.
#[derive(Default)]
pub struct Tree(Vec<Entry>);

impl Tree {
    pub fn get(&self, id: EntryId) -> &Entry {
        &self.0[id.0]
    }

    /// The command of an entry if apply would accept it: stamped by the leader that also appended it.
    pub fn accepted(&self, id: EntryId) -> Option<&Stamped> {
        let entry = self.get(id);
        entry.command.as_ref().filter(|command| command.leader == entry.leader)
    }

    fn add(&mut self, leader: LeaderId, before: Option<EntryId>, command: Option<Stamped>) -> EntryId {
        let index = before.map_or(0, |before| self.get(before).index + 1);
        self.0.push(Entry { leader, index, before, command });
        EntryId(self.0.len() - 1)
    }
}

#[derive(Clone, Copy)]
struct Line {
    entry: EntryId,
    /// The sidecar: this node's clocks when it appended the entry.
    obs: Option<Reading>,
}

/// One node's log, with its sidecars.
#[derive(Default)]
pub struct Log {
    lines: Vec<Line>,
    /// Entries before this index live in a snapshot only.
    purged: usize,
    /// The last stamp before that index and the observation that belongs to it.
    snapshot: Option<(Time, Reading)>,
    /// Observations by index, whoever they belonged to: for the rule that does not delete them.
    relics: Vec<Option<Reading>>,
}

impl Log {
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    pub fn last(&self) -> Option<EntryId> {
        self.lines.last().map(|line| line.entry)
    }

    pub const fn purged(&self) -> usize {
        self.purged
    }

    /// What this node read when it appended the entry at `index`, if that is still known.
    pub fn observed(&self, index: usize) -> Option<Reading> {
        self.lines[index].obs
    }

    pub fn at(&self, index: usize) -> Option<EntryId> {
        self.lines.get(index).map(|line| line.entry)
    }

    /// Raft's order of logs: the one with the later last entry, then the longer one, is more up to date.
    pub fn rank(&self, tree: &Tree) -> (Option<LeaderId>, usize) {
        (self.last().map(|last| tree.get(last).leader), self.len())
    }

    /// A leader appends an entry of its own.
    pub fn append(
        &mut self,
        tree: &mut Tree,
        leader: LeaderId,
        command: Option<Stamped>,
        obs: Reading,
        rule: Rule,
    ) -> EntryId {
        let entry = tree.add(leader, self.last(), command);
        self.push(entry, obs, rule);
        entry
    }

    /// Makes this log agree with the leader's up to `tip`. Says how many entries had to go.
    pub fn follow(&mut self, tree: &Tree, tip: EntryId, obs: Reading, rule: Rule) -> usize {
        let missing = self.missing(tree, tip);
        let Some(&first) = missing.last() else { return 0 };
        let keep = tree.get(first).index;
        let truncated = self.len() - keep;
        assert!(keep >= self.purged, "the model truncates below its snapshot");
        self.lines.truncate(keep);
        for entry in missing.into_iter().rev() {
            self.push(entry, obs, rule);
        }
        truncated
    }

    /// The entries of the path to `tip` that are not here, last one first.
    fn missing(&self, tree: &Tree, tip: EntryId) -> Vec<EntryId> {
        let mut missing = Vec::new();
        let mut next = Some(tip);
        while let Some(entry) = next.filter(|entry| self.at(tree.get(*entry).index) != Some(*entry)) {
            missing.push(entry);
            next = tree.get(entry).before;
        }
        missing
    }

    fn push(&mut self, entry: EntryId, obs: Reading, rule: Rule) {
        let mut obs = obs;
        if rule == Rule::ObservationOutlivesEntry {
            let index = self.lines.len();
            self.relics.resize(self.relics.len().max(index + 1), None);
            obs = *self.relics[index].get_or_insert(obs);
        }
        self.lines.push(Line { entry, obs: Some(obs) });
    }

    /// Replaces everything up to `tip`, which is committed, by a snapshot whose last stamp is `stamp`.
    pub fn install(&mut self, tree: &Tree, tip: EntryId, last: Option<(Time, Reading)>) {
        let missing = self.missing(tree, tip);
        if let Some(&first) = missing.last() {
            self.lines.truncate(tree.get(first).index);
            self.lines.extend(missing.into_iter().rev().map(|entry| Line { entry, obs: None }));
        }
        self.purged = tree.get(tip).index + 1;
        self.snapshot = last;
    }

    /// Throws away the entries before `index`, and keeps what the clock needs of them.
    pub fn purge(&mut self, tree: &Tree, index: usize, rule: Rule) {
        if index > self.purged {
            self.snapshot = self.last_stamped_before(tree, index, rule);
            self.purged = index;
        }
    }

    /// The stamp and observation that a new leader continues from.
    pub fn last_stamped(&self, tree: &Tree, rule: Rule) -> Option<(Time, Reading)> {
        self.last_stamped_before(tree, self.len(), rule)
    }

    fn last_stamped_before(&self, tree: &Tree, index: usize, rule: Rule) -> Option<(Time, Reading)> {
        self.stamped(tree, index, rule).next().map(|(_, last)| last).or(self.snapshot)
    }

    /// The stamped entries that are still here, last one first.
    fn stamped(&self, tree: &Tree, end: usize, rule: Rule) -> impl Iterator<Item = (LeaderId, (Time, Reading))> {
        let stale_too = matches!(rule, Rule::NoLeaderCheck | Rule::StaleEntryAsBase);
        self.lines[self.purged..end].iter().rev().filter_map(move |line| {
            let accepted = tree.accepted(line.entry);
            let command = if stale_too { accepted.or(tree.get(line.entry).command.as_ref()) } else { accepted };
            let (command, obs) = (command?, line.obs?);
            Some((tree.get(line.entry).leader, (command.stamp, obs)))
        })
    }

    /// What a node does when it has won an election. The sound rule is one call of the real thing.
    pub fn rebase(&self, tree: &Tree, now: Reading, rule: Rule) -> Timeline {
        let sound = Timeline::rebase(self.last_stamped(tree, rule), now);
        let latest = |of: Option<LeaderId>| {
            self.stamped(tree, self.len(), rule)
                .filter(|(leader, _)| of.is_none_or(|of| of == *leader))
                .map(|(_, seen)| Timeline::rebase(Some(seen), now))
                .fold(sound, |best, other| if other.at(now) > best.at(now) { other } else { best })
        };
        match rule {
            Rule::LatestKnown => latest(None),
            Rule::LatestOfLastLeader => {
                self.stamped(tree, self.len(), rule).next().map_or(sound, |(leader, _)| latest(Some(leader)))
            }
            Rule::AnyClock => {
                let last = self.last_stamped(tree, rule);
                Timeline::rebase(last.map(|(stamp, obs)| (stamp, Reading { clock_id: now.clock_id, ..obs })), now)
            }
            _ => sound,
        }
    }
}
