//! What goes wrong: which misfortunes a history has, how often, and what each of them does.
//!
//! Each history leaves some of them out altogether: faults hide one another (a frozen clock forgives everything), and what
//! needs perfect clocks and two quick elections to go wrong would be lost in a mix of everything.

use crate::clocks::NodeClock;
use crate::cluster::Link;
use crate::history::{Event, History, note};
use crate::rng::{MS, Rng};
use crate::stats::Count;

/// What may go wrong at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Campaign,
    Freeze,
    Pause,
    Drift,
    Slew,
    Restart,
    Reboot,
    Purge,
    Links,
}

const FAULTS: [Fault; 9] = [
    Fault::Campaign,
    Fault::Freeze,
    Fault::Pause,
    Fault::Drift,
    Fault::Slew,
    Fault::Restart,
    Fault::Reboot,
    Fault::Purge,
    Fault::Links,
];

#[derive(Debug)]
pub struct Mood {
    /// Faults come at least this often.
    pub pace_ns: u64,
    /// How often an entry is not proposed right after it was stamped, in a hundred.
    pub stalls_percent: u64,
    /// How many units of a limit lie between two requests at most. A quiet cluster is where late deliveries show: a node that
    /// gets entry after entry late has each one soon replaced by the next.
    pub quiet: u64,
    weights: [u64; FAULTS.len()],
}

impl Mood {
    pub fn random(rng: &mut Rng) -> Self {
        let mut weights = [0; FAULTS.len()];
        for weight in &mut weights {
            *weight = if rng.percent(50) { rng.range(1, 4) } else { 0 };
        }
        weights[Fault::Campaign as usize] = rng.range(3, 12);
        let pace_ns = rng.pick(&[400 * MS, 1_000 * MS, 2_000 * MS, 5_000 * MS]);
        Self { pace_ns, stalls_percent: rng.pick(&[0, 2, 30]), quiet: rng.pick(&[1, 1, 4, 8]), weights }
    }

    pub const fn has(&self, fault: Fault) -> bool {
        self.weights[fault as usize] > 0
    }

    pub fn pick(&self, rng: &mut Rng) -> Fault {
        let mut ticket = rng.below(self.weights.iter().sum());
        for (fault, weight) in FAULTS.into_iter().zip(self.weights) {
            if ticket < weight {
                return fault;
            }
            ticket -= weight;
        }
        unreachable!("a ticket below the sum of all weights")
    }
}

impl History {
    /// Something goes wrong, more often than not with a leader.
    pub fn fault(&mut self) {
        if !self.open() {
            return;
        }
        let delay_ns = self.rng.span(self.mood.pace_ns / 4, self.mood.pace_ns);
        self.after(delay_ns, Event::Fault);
        let leaders: Vec<_> = (0..self.nodes.len()).filter(|id| self.nodes[*id].leads).collect();
        let anyone = self.rng.index(self.nodes.len());
        let id = if leaders.is_empty() || self.rng.percent(50) { anyone } else { self.rng.pick(&leaders) };
        match self.mood.pick(&mut self.rng) {
            Fault::Campaign => self.campaign(anyone),
            Fault::Freeze => self.freeze(id, false),
            Fault::Pause => self.freeze(id, true),
            Fault::Drift => self.drift(id),
            Fault::Slew => self.slew(id),
            Fault::Restart => self.restart(id, false),
            Fault::Reboot => self.restart(id, true),
            Fault::Purge => self.purge(id),
            Fault::Links => {
                for to in 0..self.nodes.len() {
                    self.links[id][to] = Link::random(&mut self.rng);
                }
            }
        }
    }

    /// The clocks stand still for a while; with `paused`, so does the node.
    fn freeze(&mut self, id: usize, paused: bool) {
        self.stats.add(if paused { Count::Pauses } else { Count::Freezes });
        let long = self.rng.percent(30);
        let span_ns = self.rng.span(100 * MS, if long { 8_000 * MS } else { 1_000 * MS });
        note!(self, "node {id} freezes for {} ms, paused: {paused}", span_ns / MS);
        let node = &mut self.nodes[id];
        node.clock.freeze(self.now_ns);
        node.freeze += 1;
        if paused {
            node.paused_until_ns = self.now_ns + span_ns;
        }
        let freeze = node.freeze;
        self.after(span_ns, Event::Thaw { node: id, freeze });
    }

    pub fn thaw(&mut self, id: usize, freeze: u32) {
        let node = &mut self.nodes[id];
        if node.freeze == freeze {
            node.clock.thaw(self.now_ns);
        }
    }

    fn drift(&mut self, id: usize) {
        self.stats.add(Count::RateChanges);
        self.nodes[id].clock.change_rate(self.now_ns, &mut self.rng);
    }

    fn slew(&mut self, id: usize) {
        self.stats.add(Count::Slews);
        self.nodes[id].clock.slew(self.now_ns, &mut self.rng);
    }

    /// The process ends and starts again; with `reboot`, on other clocks.
    fn restart(&mut self, id: usize, reboot: bool) {
        self.stats.add(if reboot { Count::Reboots } else { Count::Restarts });
        note!(self, "node {id} goes down, reboot: {reboot}");
        self.nodes[id].crash();
        if reboot {
            self.next_clock_id += 1;
            self.nodes[id].clock = NodeClock::new(self.next_clock_id, self.now_ns, &mut self.rng);
            if self.mood.has(Fault::Drift) {
                self.nodes[id].clock.change_rate(self.now_ns, &mut self.rng);
            }
        }
        let (delay_ns, boot) = (self.rng.span(10 * MS, 2_000 * MS), self.nodes[id].boot);
        self.after(delay_ns, Event::Start { node: id, boot });
    }

    pub fn start(&mut self, id: usize, boot: u32) {
        if self.nodes[id].boot == boot {
            self.nodes[id].up = true;
            note!(self, "node {id} is up again: {:?}", self.read(id));
        }
    }

    fn purge(&mut self, id: usize) {
        let commit = self.nodes[id].commit;
        if commit > 0 {
            let index = self.rng.index(commit) + 1;
            self.nodes[id].log.purge(&self.tree, index, self.rule);
            self.stats.add(Count::Purges);
        }
    }
}
