//! All state of an agent, and what happens to it: a request comes, a block arrives, time passes.
//!
//! No clock and no network here: every call brings its instant and says what to do. One request after the other goes through
//! it, under one lock, and none of it waits.

use super::ask::{Lease, Which, has_slots, is_bucket};
use super::block::{Ns, Pace, Slot, Stock, Taken, Terms, most_ahead};
use super::ids::{Ids, Known};
use super::meters::Meters;
use super::options::Options;
use crate::api::{AcquireResponse, Code, Limit, Millis, Problem, Reason};
use crate::limits::BATCH_REQUESTS_MAX;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::sync::oneshot;

/// A shelf that nobody has asked of for so long is forgotten.
const FORGET_AFTER_NS: Ns = 60_000_000_000;
/// How long a key whose limit has no slots is passed on before it is looked at again.
const PASS_FOR_NS: Ns = 10_000_000_000;
/// A site that has not asked for four slots in a row no longer needs what is held for it; within these bounds.
const IDLE_SLOTS: u64 = 4;
const IDLE_NS_MIN: Ns = 50_000_000;
const IDLE_NS_MAX: Ns = 1_000_000_000;
/// Rounds in which a waiting worker gets a slot that is of no use to it; then it is told so. Without a bound it would burn slots
/// for ever.
const ROUNDS_MAX: u32 = 3;
/// The round trip as long as none was measured.
const ROUND_TRIP_NS_FIRST: Ns = 20_000_000;

/// The grant as the cluster worded it.
pub(super) type Grant = Arc<AcquireResponse>;

/// What a worker gets.
#[derive(Debug)]
pub(super) enum Reply {
    /// A slot, first seen then, and whether it had it before.
    Granted(Slot<Grant>, Ns, bool),
    Problem(Box<Problem>),
    /// Put it to the cluster.
    Pass,
}

/// What comes of a request.
#[derive(Debug)]
pub(super) enum Step {
    Now(Reply),
    /// The reply comes with a block.
    Wait(oneshot::Receiver<Reply>),
}

/// A block to be asked for.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) which: Arc<Which>,
    pub(super) limit: Option<Limit>,
    /// Those who wait; each is one request.
    pub(super) waiting: Vec<Wanted>,
    /// So many more, to be held.
    pub(super) extra: usize,
    /// The slots of a bucket are asked for this far apart.
    pub(super) stagger: Option<Ns>,
    /// How often the machine had slept by then.
    sleeps: u64,
}

/// What is asked for one who waits.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    ticket: u64,
    /// As they are by now.
    pub(super) terms: Terms,
    pub(super) worker: Option<String>,
}

/// One result of a block.
pub(super) type Outcome = Result<Slot<Grant>, Box<Problem>>;

/// Slots to be given back, all of one key, the newest first.
#[derive(Debug)]
pub(super) struct Back {
    pub(super) key: String,
    pub(super) permits: Vec<u64>,
}

struct Waiter {
    ticket: u64,
    terms: Terms,
    worker: Option<String>,
    arrived: Ns,
    /// When a request under its id last came: the deadline counts from there.
    first: Ns,
    id: Option<String>,
    /// Slots that came for it and were of no use.
    rounds: u32,
    /// More than one where the same request was sent again meanwhile.
    senders: Vec<oneshot::Sender<Reply>>,
}

/// Everything about one key under one limit.
struct Shelf {
    limit: Option<Limit>,
    stock: Stock<Grant>,
    pace: Pace,
    waiting: VecDeque<Waiter>,
    /// A block is on its way.
    asking: bool,
    /// Between two slots of the limit; of a bucket, between two requests.
    distance: Option<Ns>,
    bucket: bool,
    /// Mean time between two requests.
    gap: Ns,
    last_request: Option<Ns>,
    /// How long after the one before, or after its slot, that request came.
    since_busy: Option<Ns>,
    /// The last request, or the last slot that was handed out, whichever is later: until then whoever has it is busy.
    busy_until: Ns,
    pass_until: Ns,
}

/// All of it.
pub(super) struct Desk {
    options: Options,
    meters: Meters,
    shelves: HashMap<Arc<Which>, Shelf>,
    ids: Ids<Arc<Which>, Grant>,
    round_trip: Option<Ns>,
    tickets: u64,
    held: usize,
    waiting: usize,
    sleeps: u64,
    closing: bool,
}

impl Desk {
    pub(super) fn new(options: Options, meters: Meters) -> Self {
        Self {
            options,
            meters,
            shelves: HashMap::new(),
            ids: Ids::default(),
            round_trip: None,
            tickets: 0,
            held: 0,
            waiting: 0,
            sleeps: 0,
            closing: false,
        }
    }

    /// A request comes. The block, if there is one, is to be asked for.
    pub(super) fn acquire(&mut self, lease: &Lease, now: Ns) -> (Step, Option<Block>) {
        let refused = |code, detail: &str| {
            let problem = Problem::new(code, detail).about(&lease.which.key).retry_after(SECOND);
            (Step::Now(Reply::Problem(Box::new(problem))), None)
        };
        if self.closing {
            return refused(Code::ShuttingDown, "this agent is on its way down");
        }
        if let Some(id) = lease.id.as_deref() {
            match self.ids.find(id, &lease.which, now) {
                Known::New => {}
                Known::Granted(slot, first) => return (Step::Now(Reply::Granted(slot, first, true)), None),
                Known::Passed => return (Step::Now(Reply::Pass), None),
                Known::Waits => {
                    if let Some(receiver) = self.join(&lease.which, id, now) {
                        return (Step::Wait(receiver), None);
                    }
                }
                Known::Reused => {
                    let detail =
                        "the request id was used for another key or limit; every request needs an id of its own";
                    let problem = Problem::new(Code::RequestIdReused, detail).about(&lease.which.key);
                    return (Step::Now(Reply::Problem(Box::new(problem))), None);
                }
            }
        }
        if !self.shelves.contains_key(&lease.which) && self.shelves.len() >= self.options.keys_max {
            return refused(Code::TooManyKeys, "this agent knows as many keys as it may; idle ones are forgotten");
        }
        if lease.id.is_some() && !self.ids.has_room(now) {
            return refused(Code::Overloaded, "this agent remembers as many request ids as it may");
        }
        let row = self.shelves.entry(Arc::clone(&lease.which)).or_insert_with(|| Shelf::new(lease.limit.clone()));
        if row.pass_until > now {
            return (Step::Now(self.passed_on(lease, now)), None);
        }
        row.asked(now);
        let dead = row.drop_dead(now);
        self.held -= dead;
        self.meters.wasted.increment(dead as u64);
        let step = match row.stock.take(now, now, &lease.terms) {
            Taken::Slot(slot) => {
                row.pace.used();
                row.handed(&slot);
                self.held -= 1;
                self.meters.handed_out.increment(1);
                if let Some(id) = &lease.id {
                    self.ids.grant(id, Arc::clone(&lease.which), (slot.grant.permit, &slot), now, now);
                }
                Step::Now(Reply::Granted(slot, now, false))
            }
            Taken::NotFree(wait) => Step::Now(denied(&lease.which, Reason::NotFreeNow, wait)),
            Taken::TooFar(over) => Step::Now(denied(&lease.which, Reason::WouldWaitTooLong, over)),
            // What is free now only the cluster knows.
            Taken::Nothing if lease.terms.now_only => return (Step::Now(self.passed_on(lease, now)), None),
            Taken::Nothing if self.waiting >= self.options.waiting_max => {
                return refused(Code::Overloaded, "as many workers wait at this agent as may");
            }
            Taken::Nothing => {
                let (sender, receiver) = oneshot::channel();
                self.tickets += 1;
                self.waiting += 1;
                row.waiting.push_back(Waiter {
                    ticket: self.tickets,
                    terms: lease.terms,
                    worker: lease.worker.clone(),
                    arrived: now,
                    first: now,
                    id: lease.id.clone(),
                    rounds: 0,
                    senders: vec![sender],
                });
                if let Some(id) = &lease.id {
                    self.ids.waits(id, Arc::clone(&lease.which), now);
                }
                Step::Wait(receiver)
            }
        };
        (step, self.next_block(&lease.which, now))
    }

    /// The same request comes once more while it waits: both get the same.
    fn join(&mut self, which: &Arc<Which>, id: &str, now: Ns) -> Option<oneshot::Receiver<Reply>> {
        let row = self.shelves.get_mut(which)?;
        let waiter = row.waiting.iter_mut().find(|waiter| waiter.id.as_deref() == Some(id))?;
        let (sender, receiver) = oneshot::channel();
        waiter.senders.push(sender);
        waiter.first = now;
        Some(receiver)
    }

    /// The request is for the cluster, and so are its retries.
    fn passed_on(&mut self, lease: &Lease, now: Ns) -> Reply {
        if let Some(id) = &lease.id {
            self.ids.pass(id, Arc::clone(&lease.which), now);
        }
        Reply::Pass
    }

    /// What was put to the cluster under this id certainly came to nothing.
    pub(super) fn passed_in_vain(&mut self, id: &str) {
        self.ids.drop(id);
    }

    /// The machine has slept, and the clock stood still: nothing that was reserved before then is of any use.
    pub(super) fn woke_up(&mut self) -> Vec<Back> {
        self.sleeps += 1;
        self.held = 0;
        let shelves = self.shelves.iter_mut();
        shelves.filter_map(|(which, row)| Back::new(&which.key, &row.stock.take_all())).collect()
    }

    /// The next block of a shelf, if one is due and none on its way.
    fn next_block(&mut self, which: &Arc<Which>, now: Ns) -> Option<Block> {
        let round_trip = self.round_trip.unwrap_or(ROUND_TRIP_NS_FIRST);
        let room = u32::try_from(self.options.slots_max.saturating_sub(self.held)).unwrap_or(u32::MAX);
        let row = self.shelves.get_mut(which)?;
        if row.asking || row.waiting.is_empty() && (self.closing || !row.pace.runs_low(row.stock.len())) {
            return None;
        }
        let age_max = u64::try_from(self.options.age_max.as_nanos()).unwrap_or(u64::MAX);
        let most = most_ahead(round_trip, row.distance, age_max, self.options.block_max).min(room);
        let soon = !row.waiting.is_empty() && row.came_soon(round_trip);
        let ahead = if self.closing { 0 } else { row.pace.round(soon, most) };
        // One place at least is for those who wait.
        let extra = ahead.saturating_sub(row.stock.len()).min(BATCH_REQUESTS_MAX - 1);
        let waiting: Vec<_> =
            row.waiting.iter().take(BATCH_REQUESTS_MAX - extra).map(|waiter| waiter.wanted(now)).collect();
        if waiting.is_empty() && extra == 0 {
            return None;
        }
        row.asking = true;
        let stagger = row.bucket.then_some(row.gap.max(1));
        let (which, limit, sleeps) = (Arc::clone(which), row.limit.clone(), self.sleeps);
        Some(Block { which, limit, waiting, extra, stagger, sleeps })
    }

    /// A block has come, or has not: one outcome for each of its requests, those of the waiting first; or one for all.
    /// Slots that nobody here can use are to be given back; the next block, if there is one, is to be asked for.
    pub(super) fn settle(
        &mut self,
        block: &Block,
        outcomes: Result<Vec<Outcome>, Box<Problem>>,
        now: Ns,
    ) -> (Option<Back>, Option<Block>) {
        let Some(row) = self.shelves.get_mut(&block.which) else { return (None, None) };
        row.asking = false;
        let mut problems: HashMap<u64, Box<Problem>> = HashMap::new();
        let mut back = Vec::new();
        match outcomes {
            Ok(outcomes) => {
                let tickets = block.waiting.iter().map(|wanted| Some(wanted.ticket)).chain(std::iter::repeat(None));
                let mut slots = Vec::new();
                for (outcome, ticket) in outcomes.into_iter().zip(tickets) {
                    match (outcome, ticket) {
                        (Ok(slot), _) => slots.push(slot),
                        (Err(problem), Some(ticket)) => drop(problems.insert(ticket, problem)),
                        (Err(_), None) => {}
                    }
                }
                row.learn(&slots, now);
                if block.sleeps == self.sleeps {
                    self.held += slots.len();
                    for slot in slots {
                        row.stock.add(slot);
                    }
                } else {
                    // The machine slept while they were on their way.
                    back = slots;
                }
            }
            Err(problem) => problems.extend(block.waiting.iter().map(|wanted| (wanted.ticket, problem.clone()))),
        }
        self.serve(block, &mut problems, now);
        if let Some(row) = self.shelves.get_mut(&block.which).filter(|row| row.pass_until > now) {
            // What is no line of slots is not held ahead, and a lease has to be given back even though it has begun.
            let rest = row.stock.take_all();
            self.held -= rest.len();
            back.extend(rest);
        }
        (Back::new(&block.which.key, &back), self.next_block(&block.which, now))
    }

    /// Hands slots to those who wait, first come, first served; tells the others what came of it.
    fn serve(&mut self, block: &Block, problems: &mut HashMap<u64, Box<Problem>>, now: Ns) {
        let which = &block.which;
        let Some(row) = self.shelves.get_mut(which) else { return };
        let dead = row.drop_dead(now);
        self.held -= dead;
        self.meters.wasted.increment(dead as u64);
        // Those who wait are asked for in order: up to this one a slot or a problem has come.
        let asked_up_to = block.waiting.last().map_or(0, |wanted| wanted.ticket);
        let mut still = VecDeque::new();
        for mut waiter in std::mem::take(&mut row.waiting) {
            let is_gone = waiter.senders.iter().all(oneshot::Sender::is_closed);
            let taken = if is_gone { Taken::Nothing } else { row.stock.take(now, waiter.arrived, &waiter.terms) };
            if let Taken::Slot(slot) = taken {
                row.handed(&slot);
                self.held -= 1;
                self.waiting -= 1;
                self.meters.handed_out.increment(1);
                if let Some(id) = &waiter.id {
                    self.ids.grant(id, Arc::clone(which), (slot.grant.permit, &slot), waiter.first, now);
                }
                let first = waiter.first;
                // Only the first to ask can be sure that the deadline is its own.
                waiter.tell(|again| Reply::Granted(slot.clone(), first, again));
                continue;
            }
            if waiter.ticket <= asked_up_to {
                waiter.rounds += 1;
            }
            let reply = if is_gone {
                None
            } else if let Some(problem) = problems.remove(&waiter.ticket) {
                Some(Reply::Problem(problem))
            } else if waiter.rounds >= ROUNDS_MAX {
                Some(match taken {
                    Taken::TooFar(over) => denied(which, Reason::WouldWaitTooLong, over),
                    _ => Reply::Problem(Box::new(no_use(which))),
                })
            } else {
                still.push_back(waiter);
                continue;
            };
            self.waiting -= 1;
            if let Some(id) = &waiter.id {
                self.ids.drop(id);
            }
            if let Some(Reply::Problem(problem)) = reply {
                waiter.tell(|_| Reply::Problem(problem.clone()));
            }
        }
        row.waiting = still;
    }

    /// A worker that had no id has gone before it got its slot: somebody else may have it. A lease is to be given back.
    pub(super) fn take_back(&mut self, which: &Arc<Which>, slot: Slot<Grant>) -> Option<Back> {
        if has_slots(slot.grant.limit.as_ref())
            && let Some(row) = self.shelves.get_mut(which)
        {
            self.held += 1;
            row.stock.add(slot);
            return None;
        }
        Back::new(&which.key, &[slot])
    }

    /// Time passes: what has died is dropped, what an idle site holds is to be given back, who is long gone is forgotten.
    pub(super) fn tick(&mut self, now: Ns) -> Vec<Back> {
        let way = self.round_trip.unwrap_or(ROUND_TRIP_NS_FIRST);
        let mut all = Vec::new();
        let (mut held, mut dead) = (0, 0);
        self.shelves.retain(|which, row| {
            dead += row.drop_dead(now);
            if row.is_idle(now) && !row.stock.is_empty() {
                let back = row.stock.give_back(now, 0, way);
                row.pace.lost(back.len());
                all.extend(Back::new(&which.key, &back));
            }
            held += row.stock.len();
            !row.is_forgotten(now)
        });
        self.held = held;
        self.meters.wasted.increment(dead as u64);
        self.meters.sizes(held, self.shelves.len(), self.waiting);
        all
    }

    /// From now on nothing is granted and nothing reserved; all that is held and lies ahead is to be given back.
    pub(super) fn close(&mut self, now: Ns) -> Vec<Back> {
        self.closing = true;
        let mut all = Vec::new();
        for (which, row) in &mut self.shelves {
            let dead = row.drop_dead(now);
            let back = row.stock.give_back(now, 0, 0);
            let rest = row.stock.len();
            row.stock = Stock::default();
            self.meters.wasted.increment((dead + rest) as u64);
            all.extend(Back::new(&which.key, &back));
        }
        self.held = 0;
        all
    }

    /// Whether blocks are on their way.
    pub(super) fn is_asking(&self) -> bool {
        self.shelves.values().any(|row| row.asking)
    }

    /// A worker gives a permit back. False if it was never handed out: it is not the worker's to give.
    pub(super) fn release(&mut self, key: &str, permit: u64) -> bool {
        let holds = |row: &Shelf| row.stock.iter().any(|slot| slot.grant.permit == permit);
        if self.shelves.iter().any(|(which, row)| which.key == key && holds(row)) {
            return false;
        }
        self.ids.forget(permit);
        true
    }

    /// How long an exchange with the cluster took.
    pub(super) fn took(&mut self, round_trip: Ns) {
        self.round_trip = Some(self.round_trip.map_or(round_trip, |mean| (mean / 8) * 7 + round_trip / 8));
    }
}

const SECOND: Millis = Millis::up_from_ns(1_000_000_000);

fn denied(which: &Which, reason: Reason, retry_after: Ns) -> Reply {
    let retry_after = Millis::up_from_ns(retry_after);
    let detail = match reason {
        Reason::NotFreeNow => format!("no permit is free now; the next one of this site is in {retry_after} ms"),
        _ => format!(
            "the next slot of this site lies farther ahead than max_wait_ms; in {retry_after} ms it no longer will"
        ),
    };
    Reply::Problem(Box::new(Problem::denied(&which.key, reason, retry_after, detail)))
}

/// What a worker is told whose slots were all of no use.
fn no_use(which: &Which) -> Problem {
    let detail = format!(
        "{ROUNDS_MAX} permits in a row could no longer be used when they came: the start window of the limit is shorter than \
         the way between this agent and the cluster"
    );
    Problem::new(Code::Expired, detail).about(&which.key)
}

impl Back {
    fn new(key: &str, slots: &[Slot<Grant>]) -> Option<Self> {
        let permits: Vec<_> = slots.iter().map(|slot| slot.grant.permit).collect();
        (!permits.is_empty()).then(|| Self { key: key.to_owned(), permits })
    }
}

impl Waiter {
    /// What is asked for it now.
    fn wanted(&self, now: Ns) -> Wanted {
        let waited = now.saturating_sub(self.arrived);
        let terms = Terms {
            lead: self.terms.lead.saturating_sub(waited),
            max_wait: self.terms.wait_left(self.arrived, now),
            ..self.terms
        };
        Wanted { ticket: self.ticket, terms, worker: self.worker.clone() }
    }

    /// Tells everybody who sent it; the reply is told whether somebody else sent it before.
    fn tell(self, reply: impl Fn(bool) -> Reply) {
        for (number, sender) in self.senders.into_iter().enumerate() {
            // Whoever has gone has gone.
            let _ = sender.send(reply(number > 0));
        }
    }
}

impl Shelf {
    fn new(limit: Option<Limit>) -> Self {
        Self {
            bucket: is_bucket(limit.as_ref()),
            limit,
            stock: Stock::default(),
            pace: Pace::default(),
            waiting: VecDeque::new(),
            asking: false,
            distance: None,
            gap: IDLE_NS_MAX,
            last_request: None,
            since_busy: None,
            busy_until: 0,
            pass_until: 0,
        }
    }

    /// Somebody asks.
    fn asked(&mut self, now: Ns) {
        if let Some(last) = self.last_request {
            let gap = now.saturating_sub(last).min(IDLE_NS_MAX);
            self.gap = (self.gap / 4) * 3 + gap / 4;
            self.since_busy = Some(now.saturating_sub(last.max(self.busy_until)));
        }
        self.last_request = Some(now);
    }

    /// Whether the last request came so soon after the one before it, or after its slot, that a slot held ahead would have been
    /// used.
    fn came_soon(&self, round_trip: Ns) -> bool {
        let near = round_trip.saturating_mul(2).saturating_add(self.distance.unwrap_or(0).saturating_mul(2));
        self.since_busy.is_some_and(|since| since <= near)
    }

    /// A slot goes to a worker, who is busy until it has come.
    fn handed(&mut self, slot: &Slot<Grant>) {
        self.busy_until = self.busy_until.max(slot.start);
    }

    fn drop_dead(&mut self, now: Ns) -> usize {
        let dead = self.stock.drop_dead(now);
        self.pace.lost(dead);
        dead
    }

    /// Learns what the limit is like from slots that it gave in one go.
    fn learn(&mut self, slots: &[Slot<Grant>], now: Ns) {
        if let Some(slot) = slots.first() {
            let limit = slot.grant.limit.as_ref();
            self.bucket = is_bucket(limit);
            if !has_slots(limit) {
                self.pass_until = now.saturating_add(PASS_FOR_NS);
            }
        }
        let apart = slots.windows(2).map(|pair| pair[1].grant.slot_ms.ns().saturating_sub(pair[0].grant.slot_ms.ns()));
        let smallest = apart.filter(|apart| *apart > 0).min();
        self.distance = if self.bucket { Some(self.gap.max(1)) } else { smallest.or(self.distance) };
    }

    fn is_idle(&self, now: Ns) -> bool {
        let patience = self.distance.unwrap_or(0).saturating_mul(IDLE_SLOTS).clamp(IDLE_NS_MIN, IDLE_NS_MAX);
        let last = self.last_request.unwrap_or(0).max(self.busy_until);
        self.waiting.is_empty() && !self.asking && now > last.saturating_add(patience)
    }

    fn is_forgotten(&self, now: Ns) -> bool {
        // Not the slot that was handed out last: a slot a day ahead would keep its shelf for a day.
        let last = self.last_request.unwrap_or(0).max(self.pass_until);
        self.stock.is_empty() && self.waiting.is_empty() && !self.asking && now > last.saturating_add(FORGET_AFTER_NS)
    }
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
