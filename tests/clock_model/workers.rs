//! The workers: they ask, lose answers, ask again, and start somewhere within what they were allowed.

use crate::clocks::WorkerClock;
use crate::history::{Event, History, note};
use crate::oracle::Ordered;
use crate::rng::MS;
use crate::rule::Rule;
use crate::stats::Count;
use quorate::limiter::{Span, Terms};

/// How often a worker sends the same request at most.
const SENDS_MAX: u32 = 4;

pub struct Worker {
    clock: WorkerClock,
    /// Real time of the first send: the worker's own clock starts there.
    sent_ns: u64,
    resent_ns: u64,
    sends: u32,
    /// Has its answer.
    done: bool,
}

/// What a granted answer tells a worker.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// `S - T_r`: to be waited for from the moment the answer is here.
    wait: Span,
    /// `(S - T_p) + W'`: not to be exceeded from the first send.
    start_before: Span,
}

impl History {
    /// A new worker asks, and another one will.
    pub fn ask(&mut self, key: usize) {
        if !self.open() {
            return;
        }
        let spacing = &self.oracle.keys[key].spacing;
        let (unit_ns, reserved) = (spacing.unit().0, spacing.max_reserved());
        let lead = if reserved > 0 && self.rng.percent(15) { Span(self.rng.range(1, unit_ns)) } else { Span::ZERO };
        let cost = if self.rng.percent(90) { 1 } else { self.rng.range(2, 3) };
        self.requests.push(Ordered { key, cost, terms: Terms { lead, ..Terms::default() }, grant: None });
        let clock = WorkerClock::new(&mut self.rng);
        self.workers.push(Worker { clock, sent_ns: self.now_ns, resent_ns: self.now_ns, sends: 0, done: false });
        self.send(self.requests.len() - 1);
        let delay_ns = self.rng.span(0, self.mood.quiet * unit_ns);
        self.after(delay_ns, Event::Ask { key });
        if self.rng.percent(15) {
            // An idle leader's tick.
            let node = self.likely_leader();
            self.after(0, Event::Arrive { request: None, node });
        }
    }

    /// Sends, and will send again if no answer comes.
    pub fn send(&mut self, request: usize) {
        let worker = &mut self.workers[request];
        if worker.done || worker.sends == SENDS_MAX {
            return;
        }
        if worker.sends > 0 {
            self.stats.add(Count::Retries);
        }
        worker.sends += 1;
        worker.resent_ns = self.now_ns;
        let node = self.likely_leader();
        note!(self, "request {request} goes to node {node}, key {}", self.requests[request].key);
        let slow = self.rng.percent(20);
        let delay_ns = self.rng.span(0, if slow { 1_000 * MS } else { 2 * MS });
        self.after(delay_ns, Event::Arrive { request: Some(request), node });
        let hasty = self.rng.percent(60);
        let patience_ns = self.rng.span(10 * MS, if hasty { 200 * MS } else { 1_500 * MS });
        self.after(patience_ns, Event::Send { request });
    }

    /// One of the nodes that believe they lead; there may be several.
    fn likely_leader(&mut self) -> usize {
        let from = self.rng.index(self.nodes.len());
        let mut around = (from..self.nodes.len()).chain(0..from);
        around.find(|id| self.nodes[*id].leads).unwrap_or(from)
    }

    /// The node answers: this is the moment at which it reads `T_r`.
    pub fn reply(&mut self, id: usize, boot: u32, request: usize, index: usize) {
        let Some((_, timeline)) = self.nodes[id].timeline.filter(|_| self.nodes[id].boot == boot) else { return };
        let read = timeline.at(self.read(id));
        self.oracle.check_reading(index, read, self.now_ns);
        let Ordered { key, grant: Some(grant), .. } = self.requests[request] else {
            self.workers[request].done = true;
            return;
        };
        let limit = self.oracle.keys[key].limit();
        if limit.expires_at(grant.slot).is_some_and(|end| read > end) {
            self.stats.add(Count::AnswersExpired);
            self.workers[request].done = true;
            return;
        }
        let mut start_before = limit.start_before(grant.slot, grant.stamp).expect("every key has a window");
        if self.rule == Rule::WholeWindow {
            start_before = grant.slot.since(grant.stamp).plus(self.oracle.keys[key].spacing.start_window());
        }
        let answer = Answer { wait: grant.slot.since(read), start_before };
        note!(self, "node {id} answers request {request} at {read}: {grant:?}");
        if self.rng.percent(20) {
            self.stats.add(Count::AnswersLost);
            return;
        }
        let slow = self.rng.percent(20);
        let delay_ns = self.rng.span(0, if slow { 1_500 * MS } else { 2 * MS });
        self.after(delay_ns, Event::Answered { request, answer });
    }

    /// The worker knows its slot, and starts if it still may.
    pub fn answered(&mut self, request: usize, answer: Answer) {
        let worker = &mut self.workers[request];
        if worker.done {
            return;
        }
        worker.done = true;
        if worker.sends > 1 {
            self.stats.add(Count::RetriesAnswered);
        }
        let from_ns = if self.rule == Rule::DeadlineFromRetry { worker.resent_ns } else { worker.sent_ns };
        let earliest = worker.clock.earliest(self.now_ns, answer.wait.0);
        let latest = worker.clock.latest(from_ns, self.now_ns, answer.start_before.0);
        let Some(latest) = latest.filter(|latest| *latest >= earliest) else {
            self.stats.add(Count::Discards);
            note!(self, "request {request} discards its permit: {answer:?}");
            return;
        };
        let start = match self.rng.below(5) {
            0 | 1 => earliest,
            2 | 3 => latest,
            _ => self.rng.range(earliest, latest),
        };
        self.stats.add(Count::Starts);
        let key = self.requests[request].key;
        note!(self, "request {request} on key {key} starts at {start} ns, from {earliest} to {latest}");
        self.oracle.keys[key].starts.push(start);
    }
}
