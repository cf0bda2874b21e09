//! One history: a cluster, its workers and its misfortunes on one line of real time, all from one seed.

use crate::cluster::{Link, Message, Node};
use crate::faults::{Fault, Mood};
use crate::log::{LeaderId, Tree};
use crate::oracle::{Key, Oracle, Ordered, Violation};
use crate::rng::{MS, Rng};
use crate::rule::Rule;
use crate::stats::{Count, Stats};
use crate::workers::{Answer, Worker};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests and faults come until here.
const HORIZON_NS: u64 = 10_000 * MS;
/// Whatever is still on its way then is lost.
const END_NS: u64 = 16_000 * MS;

/// Something that happens at an instant of real time.
#[derive(Clone, Copy)]
pub enum Event {
    /// A worker asks for the first time, and the next worker is on its way.
    Ask {
        key: usize,
    },
    /// A worker sends its request, for the first time or again.
    Send {
        request: usize,
    },
    /// A request reaches a node.
    Arrive {
        request: Option<usize>,
        node: usize,
    },
    /// The node's proposer hands the entry that it has stamped to Raft.
    Propose {
        node: usize,
        boot: u32,
    },
    /// A message reaches a node.
    Deliver {
        node: usize,
        message: Message,
    },
    /// A leader tells its followers how far it is.
    Beat {
        node: usize,
        leader: LeaderId,
    },
    /// Somebody looks whether anybody leads.
    LookForLeader,
    Campaign {
        node: usize,
    },
    Win {
        node: usize,
        leader: LeaderId,
        boot: u32,
    },
    Fault,
    Thaw {
        node: usize,
        freeze: u32,
    },
    Start {
        node: usize,
        boot: u32,
    },
    /// A node is about to answer.
    Reply {
        node: usize,
        boot: u32,
        request: usize,
        index: usize,
    },
    /// An answer reaches the worker.
    Answered {
        request: usize,
        answer: Answer,
    },
}

/// The whole world.
pub struct History {
    pub rule: Rule,
    pub mood: Mood,
    pub rng: Rng,
    pub now_ns: u64,
    pub nodes: Vec<Node>,
    /// `links[from][to]`.
    pub links: Vec<Vec<Link>>,
    pub tree: Tree,
    pub oracle: Oracle,
    pub workers: Vec<Worker>,
    pub requests: Vec<Ordered>,
    pub stats: Stats,
    pub next_clock_id: u64,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    events: Vec<Event>,
    trace: Option<Vec<String>>,
}

/// Notes what happened, if anybody wants to know.
macro_rules! note {
    ($history:expr, $($text:tt)*) => {
        if $history.traced() {
            let line = format!($($text)*);
            $history.write_down(&line);
        }
    };
}
pub(crate) use note;

impl History {
    /// Runs the history of this seed to its end.
    pub fn run(seed: u64, rule: Rule, trace: bool) -> Self {
        let mut history = Self::new(seed, rule, trace);
        while let Some(Reverse((at_ns, event))) = history.queue.pop() {
            if at_ns > END_NS {
                break;
            }
            history.now_ns = at_ns;
            history.happen(history.events[event]);
        }
        history.oracle.check_starts(&mut history.stats);
        history
    }

    pub fn violations(&self) -> &[Violation] {
        &self.oracle.violations
    }

    pub fn trace(&self) -> String {
        self.trace.as_deref().unwrap_or_default().join("\n")
    }

    fn new(seed: u64, rule: Rule, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let size = if rng.percent(80) { 3 } else { 5 };
        let mood = Mood::random(&mut rng);
        let mut nodes: Vec<_> = (0..size).map(|id| Node::new(id as u64, &mut rng)).collect();
        if mood.has(Fault::Drift) {
            for node in &mut nodes {
                node.clock.change_rate(0, &mut rng);
            }
        }
        let links = (0..size).map(|_| (0..size).map(|_| Link::random(&mut rng)).collect()).collect();
        let keys: Vec<_> = (0..rng.range(1, 2)).map(|_| Key::random(&mut rng)).collect();
        let mut history = Self {
            rule,
            mood,
            now_ns: 0,
            nodes,
            links,
            tree: Tree::default(),
            oracle: Oracle::new(keys),
            workers: Vec::new(),
            requests: Vec::new(),
            stats: Stats::new(),
            next_clock_id: size as u64,
            queue: BinaryHeap::with_capacity(64),
            events: Vec::with_capacity(1_024),
            trace: trace.then(Vec::new),
            rng,
        };
        history.stats.add(Count::Histories);
        for node in 0..size {
            note!(history, "node {node}: {:?}", history.nodes[node].clock.read(0));
        }
        for key in 0..history.oracle.keys.len() {
            note!(history, "key {key}: {:?}", history.oracle.keys[key].spacing);
            history.after(0, Event::Ask { key });
        }
        history.after(0, Event::LookForLeader);
        history.after(100 * MS, Event::Fault);
        note!(history, "{:?}", history.mood);
        history
    }

    /// Lets something happen this much later.
    pub fn after(&mut self, delay_ns: u64, event: Event) {
        self.queue.push(Reverse((self.now_ns + delay_ns, self.events.len())));
        self.events.push(event);
    }

    /// Whether new requests and faults still come.
    pub const fn open(&self) -> bool {
        self.now_ns < HORIZON_NS
    }

    pub const fn traced(&self) -> bool {
        self.trace.is_some()
    }

    pub fn write_down(&mut self, line: &str) {
        let now_ns = self.now_ns;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>9}.{:03} ms  {line}", now_ns / MS, now_ns % MS / 1_000));
        }
    }

    fn happen(&mut self, event: Event) {
        // A paused node does nothing; what reaches it waits in its sockets.
        if let Some(paused_ns) = Self::node_of(&event).map(|node| self.nodes[node].paused_until_ns)
            && paused_ns > self.now_ns
        {
            return self.after(paused_ns - self.now_ns, event);
        }
        match event {
            Event::Ask { key } => self.ask(key),
            Event::Send { request } => self.send(request),
            Event::Arrive { request, node } => self.arrive(request, node),
            Event::Propose { node, boot } => self.propose(node, boot),
            Event::Deliver { node, message } => self.deliver(node, message),
            Event::Beat { node, leader } => self.beat(node, leader),
            Event::LookForLeader => self.look_for_leader(),
            Event::Campaign { node } => self.campaign(node),
            Event::Win { node, leader, boot } => self.win(node, leader, boot),
            Event::Fault => self.fault(),
            Event::Thaw { node, freeze } => self.thaw(node, freeze),
            Event::Start { node, boot } => self.start(node, boot),
            Event::Reply { node, boot, request, index } => self.reply(node, boot, request, index),
            Event::Answered { request, answer } => self.answered(request, answer),
        }
    }

    /// The node that would have to do something about it.
    const fn node_of(event: &Event) -> Option<usize> {
        match event {
            Event::Arrive { node, .. }
            | Event::Propose { node, .. }
            | Event::Deliver { node, .. }
            | Event::Beat { node, .. }
            | Event::Campaign { node }
            | Event::Win { node, .. }
            | Event::Reply { node, .. } => Some(*node),
            _ => None,
        }
    }
}
