//! The nodes: enough of Raft to elect, replicate, truncate and commit, and the proposer that stamps.
//!
//! Votes and acknowledgements follow Raft's rules to the letter, because the lemma leans on them: a candidate wins with a
//! quorum whose logs are no more up to date than its own, a node follows no leader below its vote, and a leader commits
//! only entries of its own. Everything else (when, how late, in what order) is up to chance.

use crate::clocks::NodeClock;
use crate::history::{Event, History, note};
use crate::log::{EntryId, LeaderId, Log, Stamped};
use crate::rng::{MS, Rng, STEP_NS};
use crate::rule::Rule;
use crate::stats::Count;
use quorate::clock::{Reading, Timeline};
use std::collections::VecDeque;

/// The largest cluster of the model.
const SIZE_MAX: usize = 5;
/// A delivery that takes longer than this counts as late.
const LATE_NS: u64 = 500 * MS;

pub struct Node {
    pub clock: NodeClock,
    pub freeze: u32,
    pub paused_until_ns: u64,
    /// Durable: the highest leader or candidate this node has agreed to.
    vote: LeaderId,
    /// Durable.
    pub log: Log,
    /// Counts the lives of the process: what was in memory in an earlier one is gone.
    pub boot: u32,
    pub up: bool,
    /// Whether it leads under its vote, as far as it knows.
    pub leads: bool,
    /// The timeline of its last election.
    pub timeline: Option<(LeaderId, Timeline)>,
    /// How many entries of the log it knows to be committed.
    pub commit: usize,
    matched: [usize; SIZE_MAX],
    /// Stamped, not yet in the log.
    stamped: Option<Stamped>,
    /// Waiting for the proposer.
    queue: VecDeque<Option<usize>>,
    /// Entries that somebody waits for an answer to.
    waiting: Vec<(EntryId, usize)>,
}

impl Node {
    pub fn new(clock_id: u64, rng: &mut Rng) -> Self {
        Self {
            clock: NodeClock::new(clock_id, 0, rng),
            freeze: 0,
            paused_until_ns: 0,
            vote: LeaderId { term: 0, node: 0 },
            log: Log::default(),
            boot: 0,
            up: true,
            leads: false,
            timeline: None,
            commit: 0,
            matched: [0; SIZE_MAX],
            stamped: None,
            queue: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    /// Loses everything that is not on disk.
    pub fn crash(&mut self) {
        self.boot += 1;
        self.up = false;
        self.leads = false;
        self.timeline = None;
        self.commit = self.log.purged();
        self.stamped = None;
        self.queue.clear();
        self.waiting.clear();
    }

    /// Agrees to a leader or candidate; whoever led before does not any more.
    fn agree(&mut self, to: LeaderId) {
        if to > self.vote {
            self.vote = to;
            self.leads = false;
            // The requests that waited are sent elsewhere; the entry that was just stamped is past recall.
            self.queue.clear();
        }
    }
}

/// One direction between two nodes.
#[derive(Clone, Copy)]
pub struct Link {
    lag_ns: u64,
    loss_percent: u64,
}

impl Link {
    pub fn random(rng: &mut Rng) -> Self {
        let lag_ns = match rng.below(20) {
            0..15 => rng.span(0, 5 * MS),
            15..18 => rng.span(5 * MS, 300 * MS),
            _ => rng.span(300 * MS, 8_000 * MS),
        };
        Self { lag_ns, loss_percent: rng.pick(&[0, 0, 0, 0, 0, 5, 30, 100]) }
    }
}

#[derive(Clone, Copy)]
pub enum Message {
    /// The leader's log up to `tip`, and how many of its entries are committed.
    Append { leader: LeaderId, tip: EntryId, commit: usize, sent_ns: u64 },
    /// The state after the committed entries up to `tip`, with the sender's own observation of the last stamp.
    Snapshot { leader: LeaderId, tip: EntryId, obs: Option<Reading> },
    /// The follower has the leader's log up to here.
    Ack { leader: LeaderId, from: usize, len: usize },
    /// The follower has agreed to somebody else.
    Higher { vote: LeaderId },
}

impl History {
    pub fn read(&self, node: usize) -> Reading {
        let reading = self.nodes[node].clock.read(self.now_ns);
        if self.rule == Rule::MonotonicOnly { Reading { raw_ns: reading.mono_ns, ..reading } } else { reading }
    }

    /// Somebody notices that nobody leads.
    pub fn look_for_leader(&mut self) {
        if !self.nodes.iter().any(|node| node.up && node.leads) {
            let id = self.rng.index(self.nodes.len());
            self.after(0, Event::Campaign { node: id });
        }
        let delay_ns = self.rng.span(100 * MS, 700 * MS);
        self.after(delay_ns, Event::LookForLeader);
    }

    /// Asks a random part of the cluster for its votes.
    pub fn campaign(&mut self, candidate: usize) {
        if !self.nodes[candidate].up || self.nodes[candidate].leads {
            return;
        }
        let reached: Vec<_> = (0..self.nodes.len())
            .filter(|id| {
                let node = &self.nodes[*id];
                *id != candidate && node.up && node.paused_until_ns <= self.now_ns && self.rng.percent(80)
            })
            .collect();
        let highest = reached.iter().map(|id| self.nodes[*id].vote).fold(self.nodes[candidate].vote, LeaderId::max);
        let same_term = highest.term > 0 && candidate > highest.node && self.rng.percent(30);
        let term = if same_term { highest.term } else { highest.term + 1 };
        let leader = LeaderId { term, node: candidate };
        let rank = self.nodes[candidate].log.rank(&self.tree);
        let voters: Vec<_> = reached.into_iter().filter(|id| self.nodes[*id].log.rank(&self.tree) <= rank).collect();
        for voter in &voters {
            self.nodes[*voter].agree(leader);
        }
        self.nodes[candidate].agree(leader);
        note!(self, "node {candidate} campaigns as {leader:?}, votes of {voters:?}");
        if voters.len() + 1 > self.nodes.len() / 2 {
            if same_term {
                self.stats.add(Count::SameTermFailovers);
            }
            let delay_ns = if self.rng.percent(70) { self.rng.span(0, 10 * MS) } else { self.rng.span(0, 300 * MS) };
            self.after(delay_ns, Event::Win { node: candidate, leader, boot: self.nodes[candidate].boot });
        }
    }

    /// The quorum's votes are in: the log is fixed now, so this is where time starts anew.
    pub fn win(&mut self, id: usize, leader: LeaderId, boot: u32) {
        if self.nodes[id].boot != boot || self.nodes[id].vote != leader {
            return;
        }
        self.stats.add(Count::Failovers);
        let now = self.read(id);
        let node = &mut self.nodes[id];
        let timeline = node.log.rebase(&self.tree, now, self.rule);
        node.timeline = Some((leader, timeline));
        node.leads = true;
        node.matched = [0; SIZE_MAX];
        node.log.append(&mut self.tree, leader, None, now, self.rule);
        note!(self, "node {id} leads as {leader:?} from {} at {}", timeline.base(), timeline.at(now));
        self.beat(id, leader);
    }

    /// A request reaches a node, which stamps it if it leads.
    pub fn arrive(&mut self, request: Option<usize>, id: usize) {
        let node = &mut self.nodes[id];
        if node.up && node.leads {
            node.queue.push_back(request);
            self.stamp(id);
        }
    }

    /// The one proposer of a node: stamps the next request right before it proposes it. Or not quite right before.
    fn stamp(&mut self, id: usize) {
        while self.nodes[id].leads && self.nodes[id].stamped.is_none() {
            let Some(request) = self.nodes[id].queue.pop_front() else { return };
            let now = self.read(id);
            let (leader, timeline) = self.nodes[id].timeline.as_mut().expect("a leader has a timeline");
            let stamp = if self.rule == Rule::OneBase { timeline.at(now) } else { timeline.stamp(now) };
            let leader = *leader;
            note!(self, "node {id} stamps request {request:?} with {stamp} as {leader:?}");
            self.nodes[id].stamped = Some(Stamped { leader, stamp, real_ns: self.now_ns, request });
            let boot = self.nodes[id].boot;
            if !self.rng.percent(self.mood.stalls_percent) {
                self.propose_now(id);
            } else if self.rng.percent(60) {
                let delay_ns = self.rng.span(0, 50 * MS);
                self.after(delay_ns, Event::Propose { node: id, boot });
            } else {
                let long = self.rng.percent(30);
                let delay_ns = self.rng.span(40 * MS, if long { 4_000 * MS } else { 400 * MS });
                self.after(delay_ns, Event::Propose { node: id, boot });
                if self.rng.percent(60) {
                    // Leadership lost and regained between stamping and appending, to the node that is farthest behind.
                    let other = self.slowest_but(id);
                    let quarter_ns = delay_ns / 4 / STEP_NS * STEP_NS;
                    self.after(quarter_ns, Event::Campaign { node: other });
                    self.after(3 * quarter_ns, Event::Campaign { node: id });
                }
            }
        }
    }

    /// The node whose time would be earliest if it led now, of those that could.
    fn slowest_but(&self, id: usize) -> usize {
        let rank_of = |id: usize| self.nodes[id].log.rank(&self.tree);
        let time_of = |id: usize| {
            let now = self.read(id);
            self.nodes[id].log.rebase(&self.tree, now, self.rule).at(now)
        };
        let size = self.nodes.len();
        let electable = |other: usize| (0..size).filter(|voter| rank_of(*voter) <= rank_of(other)).count() > size / 2;
        let others = (0..size).filter(|other| *other != id && electable(*other));
        others.min_by_key(|other| time_of(*other)).unwrap_or((id + 1) % size)
    }

    pub fn propose(&mut self, id: usize, boot: u32) {
        if self.nodes[id].boot == boot {
            self.propose_now(id);
            self.stamp(id);
        }
    }

    /// Appends the stamped entry under whatever leader id the node has *now*.
    fn propose_now(&mut self, id: usize) {
        let obs = self.read(id);
        let node = &mut self.nodes[id];
        let Some(command) = node.stamped.take().filter(|_| node.leads) else { return };
        let leader = node.vote;
        let entry = node.log.append(&mut self.tree, leader, Some(command), obs, self.rule);
        if let Some(request) = command.request {
            node.waiting.push((entry, request));
        }
        let index = self.tree.get(entry).index;
        note!(self, "node {id} appends entry {index} as {leader:?}, stamped {} by {:?}", command.stamp, command.leader);
        self.broadcast(id);
        if command.leader != leader && self.rng.percent(50) {
            // The stale entry is the last one in this log: a good moment for the next election.
            let (other, delay_ns) = (self.rng.index(self.nodes.len()), self.rng.span(3 * MS, 20 * MS));
            self.after(delay_ns, Event::Campaign { node: other });
        }
    }

    pub fn beat(&mut self, id: usize, leader: LeaderId) {
        if self.nodes[id].leads && self.nodes[id].vote == leader {
            self.broadcast(id);
            let delay_ns = self.rng.span(150 * MS, 600 * MS);
            self.after(delay_ns, Event::Beat { node: id, leader });
        }
    }

    fn broadcast(&mut self, id: usize) {
        let node = &self.nodes[id];
        let (leader, commit) = (node.vote, node.commit);
        let tip = node.log.last().expect("a leader has an entry of its own");
        for to in (0..self.nodes.len()).filter(|to| *to != id) {
            let behind = commit > self.nodes[id].matched[to] + 3;
            let message = if behind && self.rng.percent(30) {
                let tip = self.nodes[id].log.at(commit - 1).expect("a leader has what is committed");
                let obs = self.nodes[id].log.observed(commit - 1);
                Message::Snapshot { leader, tip, obs }
            } else {
                Message::Append { leader, tip, commit, sent_ns: self.now_ns }
            };
            self.transmit(id, to, message);
        }
        self.advance(id);
    }

    fn transmit(&mut self, from: usize, to: usize, message: Message) {
        let link = self.links[from][to];
        if !self.rng.percent(link.loss_percent) {
            let delay_ns = link.lag_ns + self.rng.span(0, 2 * MS);
            self.after(delay_ns, Event::Deliver { node: to, message });
        }
    }

    pub fn deliver(&mut self, id: usize, message: Message) {
        if !self.nodes[id].up {
            return;
        }
        match message {
            Message::Append { leader, tip, commit, sent_ns } => {
                if self.follows(id, leader) {
                    if self.now_ns - sent_ns > LATE_NS {
                        self.stats.add(Count::LateDeliveries);
                    }
                    self.follow(id, leader, tip, commit);
                }
            }
            Message::Snapshot { leader, tip, obs } => {
                if self.follows(id, leader) {
                    self.install(id, leader, tip, obs);
                }
            }
            Message::Ack { leader, from, len } => {
                let node = &mut self.nodes[id];
                if node.leads && node.vote == leader {
                    node.matched[from] = node.matched[from].max(len);
                    self.advance(id);
                }
            }
            Message::Higher { vote } => self.nodes[id].agree(vote),
        }
    }

    /// Whether the node listens to this leader; tells it so if not.
    fn follows(&mut self, id: usize, leader: LeaderId) -> bool {
        let vote = self.nodes[id].vote;
        if leader < vote {
            self.transmit(id, leader.node, Message::Higher { vote });
            return false;
        }
        self.nodes[id].agree(leader);
        true
    }

    fn follow(&mut self, id: usize, leader: LeaderId, tip: EntryId, commit: usize) {
        let obs = self.read(id);
        let before = self.nodes[id].log.len();
        let truncated = self.nodes[id].log.follow(&self.tree, tip, obs, self.rule);
        let len = self.tree.get(tip).index + 1;
        if truncated > 0 {
            self.stats.add(Count::Truncations);
            note!(self, "node {id} truncates {truncated} entries");
        }
        if before != len {
            note!(self, "node {id} follows {leader:?} up to entry {}", len - 1);
        }
        let node = &mut self.nodes[id];
        node.commit = node.commit.max(commit.min(len));
        self.answer_waiting(id);
        self.transmit(id, leader.node, Message::Ack { leader, from: id, len });
    }

    fn install(&mut self, id: usize, leader: LeaderId, tip: EntryId, sent: Option<Reading>) {
        let len = self.tree.get(tip).index + 1;
        if len > self.nodes[id].commit {
            self.stats.add(Count::Snapshots);
            let mut obs = self.read(id);
            if let (Rule::ObservationOfSender, Some(sent)) = (self.rule, sent) {
                obs = Reading { clock_id: obs.clock_id, ..sent };
            }
            let stamp = self.oracle.last_stamp(len);
            self.nodes[id].log.install(&self.tree, tip, stamp.map(|stamp| (stamp, obs)));
            self.nodes[id].commit = len;
            note!(self, "node {id} installs a snapshot of {len} entries, last stamp {stamp:?}");
            self.answer_waiting(id);
        }
        self.transmit(id, leader.node, Message::Ack { leader, from: id, len });
    }

    /// Commits what a quorum has, if it ends in an entry of this leader's own.
    fn advance(&mut self, id: usize) {
        let (size, node) = (self.nodes.len(), &self.nodes[id]);
        let mut lens = node.matched;
        lens[id] = node.log.len();
        lens[..size].sort_unstable();
        let quorum = lens[(size - 1) / 2];
        let own = quorum.checked_sub(1).and_then(|last| node.log.at(last)).map(|last| self.tree.get(last).leader);
        if own == Some(node.vote) && quorum > node.commit {
            self.nodes[id].commit = quorum;
            self.answer_waiting(id);
        }
    }

    /// Applies what the node knows to be committed and answers those who waited for it.
    fn answer_waiting(&mut self, id: usize) {
        let commit = self.nodes[id].commit;
        for index in self.oracle.committed.len()..commit {
            let entry = self.nodes[id].log.at(index).expect("a node has what it knows to be committed");
            self.oracle.apply(&self.tree, entry, &mut self.requests, self.rule, &mut self.stats);
            note!(self, "entry {index} is committed: {:?}", self.tree.get(entry).command);
        }
        let agreed = commit.checked_sub(1).map(|last| (self.nodes[id].log.at(last), self.oracle.committed[last]));
        assert!(
            agreed.is_none_or(|(here, there)| here == Some(there)),
            "the model's Raft committed two entries at once"
        );
        let mut waiting = std::mem::take(&mut self.nodes[id].waiting);
        waiting.retain(|(entry, request)| {
            let index = self.tree.get(*entry).index;
            // A stale entry decided nothing: its worker hears of an error, or nothing at all, and sends again.
            if index < commit && self.oracle.committed[index] == *entry && self.decides(*entry) {
                let delay_ns = if self.rng.percent(85) { 0 } else { self.rng.span(0, 1_500 * MS) };
                self.after(delay_ns, Event::Reply { node: id, boot: self.nodes[id].boot, request: *request, index });
            }
            index >= commit
        });
        self.nodes[id].waiting = waiting;
    }

    fn decides(&self, entry: EntryId) -> bool {
        self.rule == Rule::NoLeaderCheck || self.tree.accepted(entry).is_some()
    }
}
