//! Where requests wait for a place at the leader: one line a key, first come, first served. Requests for several keys have lines
//! of their own, one for each set of keys, so that they hold up nobody who wants only one of them.
//!
//! Whoever waits stands in line from the moment it comes, so the order of arrival is the order of the line. One task a line puts
//! its head to the cluster: a few requests in one command that stops at the first one refused, so nobody overtakes. Refused
//! for want of a place, the head tries again when the refusal said, or when something was given back.
//!
//! The room is this leader's own memory. When leadership is lost everybody is sent away with that word, and whoever holds the
//! request takes it to the next leader, under the same id, and says how long it has waited: lines form again in the old order.
//!
//! Invariants
//! - At most [`WAITERS_MAX`] wait.
//! - A permit that nobody is there to take any more is given back.

use super::forward::Reply;
use super::proposer::Proposer;
use super::queue::Decided;
use super::verdict::Verdict;
use crate::clock::{Deadline, Stopwatch};
use crate::limiter::{Denial, Key, Reason, Span, Time};
use crate::limits::{LEADER_WAIT_IN_LINE_MS, LEADER_WAIT_MS, REQUEST_TIMEOUT_MS, WAITERS_MAX};
use crate::metric_names;
use crate::state::{Acquire, Command, Outcome, Rule, Several, SeveralRule, Withdraw};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Most requests that one line puts to the cluster at once.
const TRIED_AT_ONCE_MAX: usize = 256;
/// Longest sleep of a line: it would wake by itself even if it missed a word.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// Shortest, so that a refusal that is due at once does not spin.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// When to try again after the proposer's queue was full.
const QUEUE_FULL_PAUSE: Span = Span::from_millis(5);
/// How long a line waits for its majority to come back, and when it tries again meanwhile.
const MAJORITY_WAIT: Duration = Duration::from_millis(LEADER_WAIT_IN_LINE_MS);
const MAJORITY_PAUSE: Span = Span::from_millis(50);

/// All lines.
pub(super) struct Waitroom {
    proposer: Arc<Proposer>,
    lines: Mutex<Lines>,
    /// What arrivals are measured on.
    opened: Stopwatch,
}

#[derive(Default)]
struct Lines {
    by_name: BTreeMap<Name, Line>,
    /// The lines for several keys: there are few of them.
    several: BTreeSet<Name>,
    waiting: usize,
    /// How many have ever come.
    come: u64,
}

/// The keys of a line, in order.
type Name = Arc<[Key]>;

/// Where one stands: when it first asked, in milliseconds since this room was opened or before that, and how many came to this
/// room before it.
type Number = (i64, u64);

fn name<'a>(keys: impl Iterator<Item = &'a Key>) -> Name {
    let mut keys: Vec<_> = keys.cloned().collect();
    keys.sort_unstable();
    keys.into()
}

fn name_of(acquire: &Acquire) -> Name {
    name(acquire.wanted().map(|wanted| &wanted.key))
}

impl Lines {
    /// All lines in which this key is waited for.
    fn of<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a Line> {
        let several = self.several.iter().filter(|name| name.contains(key)).filter_map(|name| self.by_name.get(name));
        self.by_name.get(std::slice::from_ref(key)).into_iter().chain(several)
    }

    fn waiter(&mut self, name: &Name, number: Number) -> Option<&mut Waiter> {
        self.by_name.get_mut(name)?.waiters.get_mut(&number)
    }

    /// One goes away; whether that took it out of its line.
    fn go(&mut self, name: &Name, number: Number) -> bool {
        let left = self.by_name.get_mut(name).and_then(|line| line.go(number)).is_some();
        self.count(0, usize::from(left));
        left
    }

    /// Takes one out of its line.
    fn take(&mut self, name: &Name, number: Number) -> Option<Waiter> {
        let waiter = self.by_name.get_mut(name)?.take(number)?;
        self.count(0, 1);
        Some(waiter)
    }

    /// What kept the head of a line from an answer, or nothing.
    fn meets(&mut self, name: &Name, obstacle: Option<Reply>) {
        if let Some(line) = self.by_name.get_mut(name) {
            line.obstacle = obstacle;
        }
    }

    /// Back into line after it was tried, and perhaps refused, unless it went away meanwhile.
    fn back(&mut self, name: &Name, number: Number, refusal: Option<Refusal>) {
        let Some(line) = self.by_name.get_mut(name) else { return };
        line.refusal = refusal.or(line.refusal.take());
        if let Some(waiter) = line.waiters.get_mut(&number) {
            waiter.tried = false;
            if waiter.gone {
                self.go(name, number);
            }
        }
    }

    fn count(&mut self, came: usize, went: usize) {
        self.waiting = self.waiting + came - went;
        metrics::gauge!(metric_names::WAITING).set(metric_names::gauge_value(self.waiting as u64));
    }
}

struct Line {
    /// In the order of arrival.
    waiters: BTreeMap<Number, Waiter>,
    /// Id, claim and number of those that can leave by them.
    requests: BTreeSet<(u128, u64, Number)>,
    /// What the head was told last: what those are told whose patience ends.
    refusal: Option<Refusal>,
    /// Why the head was told nothing the last time it was tried.
    obstacle: Option<Reply>,
    /// Something was given back, or the head has gone.
    stirred: Arc<Notify>,
}

impl Line {
    fn new(stirred: Arc<Notify>) -> Self {
        Self { waiters: BTreeMap::new(), requests: BTreeSet::new(), refusal: None, obstacle: None, stirred }
    }

    fn push(&mut self, number: Number, waiter: Waiter) {
        self.requests.extend(waiter.request(number));
        self.waiters.insert(number, waiter);
    }

    fn take(&mut self, number: Number) -> Option<Waiter> {
        let waiter = self.waiters.remove(&number)?;
        if let Some(request) = waiter.request(number) {
            self.requests.remove(&request);
        }
        Some(waiter)
    }

    /// One goes away: out of the line, or as soon as what the cluster is being asked for it is known.
    fn go(&mut self, number: Number) -> Option<Waiter> {
        let head = self.waiters.first_key_value().is_some_and(|(first, _)| *first == number);
        let waiter = self.waiters.get_mut(&number)?;
        if waiter.tried {
            waiter.gone = true;
            return None;
        }
        if head {
            self.stirred.notify_one();
        }
        self.take(number)
    }

    fn numbers_of(&self, id: u128, claim: u64) -> Vec<Number> {
        let (first, last) = ((i64::MIN, 0), (i64::MAX, u64::MAX));
        self.requests.range((id, claim, first)..=(id, claim, last)).map(|(_, _, number)| *number).collect()
    }
}

/// Why there was no decision, if there was none.
fn obstacle(decided: Option<&Decided>) -> Option<Reply> {
    match decided {
        None => Some(Reply::Overloaded),
        Some(Decided::NoQuorum) => Some(Reply::NoQuorum),
        Some(Decided::DiskFull) => Some(Reply::DiskFull),
        Some(Decided::NotLeading) => Some(Reply::NotLeading),
        Some(Decided::Verdict(_) | Decided::Unknown(_)) => None,
    }
}

/// Which key refused, and what it said.
#[derive(Clone)]
struct Refusal {
    key: Key,
    denial: Denial,
    rule: Option<Arc<Rule>>,
    at: Time,
    /// When the cluster was asked for it.
    asked: Stopwatch,
}

impl Refusal {
    /// As it is said to a request for these keys.
    fn told(self, keys: &[Key]) -> Verdict {
        let Self { key, denial, rule, at, .. } = self;
        let by = keys.iter().position(|own| *own == key).unwrap_or(0);
        Verdict { outcome: Outcome::Denied { by, denial, rule }, at }
    }
}

struct Waiter {
    acquire: Acquire,
    since: Stopwatch,
    /// Until when it waits; `None` for ever.
    until: Option<Deadline>,
    /// The cluster is being asked for it right now.
    tried: bool,
    /// It went away while it was being tried: what comes of that goes back.
    gone: bool,
    answer: oneshot::Sender<Reply>,
}

impl Waiter {
    fn request(&self, number: Number) -> Option<(u128, u64, Number)> {
        self.acquire.identity.map(|identity| (identity.id, self.acquire.claim, number))
    }
}

/// One that waits, held by whoever asked. Dropped, it leaves the line.
struct Place<'a> {
    room: &'a Waitroom,
    line: Name,
    number: Number,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.room.lines().go(&self.line, self.number);
    }
}

impl Place<'_> {
    /// Leaves the line unless the cluster is being asked right now; then that answer is waited for.
    fn leave(&self) -> bool {
        let mut lines = self.room.lines();
        let tried = lines.waiter(&self.line, self.number).is_some_and(|waiter| waiter.tried);
        !tried && lines.go(&self.line, self.number)
    }
}

impl Waitroom {
    pub(super) fn new(proposer: Arc<Proposer>) -> Arc<Self> {
        Arc::new(Self { proposer, lines: Mutex::default(), opened: Stopwatch::start() })
    }

    /// Stands in line until there is an answer, or until `until`, as one that has waited elsewhere `before`.
    pub(super) async fn wait(self: &Arc<Self>, acquire: Acquire, before: Duration, until: Option<Deadline>) -> Reply {
        let (sender, mut answer) = oneshot::channel();
        let line = name_of(&acquire);
        let keys: Vec<_> = acquire.wanted().map(|wanted| wanted.key.clone()).collect();
        let since = Stopwatch::start();
        let waiter = Waiter { acquire, since, until, tried: false, gone: false, answer: sender };
        let Some(number) = self.join(&line, before, waiter) else { return Reply::Overloaded };
        let place = Place { room: self, line, number };
        let gone = || Reply::Unknown("the line was given up".to_owned());
        let Some(until) = until else { return answer.await.unwrap_or_else(|_| gone()) };
        match tokio::time::timeout_at(until.instant(), &mut answer).await {
            Ok(answered) => answered.unwrap_or_else(|_| gone()),
            // One that is being tried right now gets the answer to that.
            Err(_) if place.leave() => self.out_of_patience(&place.line, &keys, since).await,
            Err(_) => answer.await.unwrap_or_else(|_| gone()),
        }
    }

    /// Takes a request out of its line.
    pub(super) fn leave(&self, withdraw: &Withdraw) {
        let name = name(withdraw.keys.iter());
        let mut lines = self.lines();
        let numbers = lines.by_name.get(&name).map(|line| line.numbers_of(withdraw.id, withdraw.claim));
        for number in numbers.into_iter().flatten() {
            lines.go(&name, number);
        }
    }

    /// Something was given back: the head of every line that waits for this key may try again.
    pub(super) fn stir(&self, key: &Key) {
        for line in self.lines().of(key) {
            line.stirred.notify_one();
        }
    }

    /// Every limit may have changed.
    pub(super) fn stir_all(&self) {
        for line in self.lines().by_name.values() {
            line.stirred.notify_one();
        }
    }

    /// How many wait for `key`, alone or with others, and the place of one request in its line, from 1.
    pub(super) fn standing(&self, key: &Key, waiter: Option<u128>) -> (u64, Option<u64>) {
        let named = |one: &Waiter| one.acquire.identity.is_some_and(|identity| Some(identity.id) == waiter);
        let (mut waiting, mut position) = (0, None);
        for line in self.lines().of(key) {
            waiting += line.waiters.len() as u64;
            position = position.or_else(|| line.waiters.values().position(named).map(|index| index as u64 + 1));
        }
        (waiting, position)
    }

    /// What is said to those whose patience ends while they stand in line `since` then: nothing was consumed.
    ///
    /// A denial is one of the register: the head was refused while this one waited; or it was before, and a majority confirms now that
    /// this is still the line.
    async fn out_of_patience(&self, line: &Name, keys: &[Key], since: Stopwatch) -> Reply {
        let obstacle = self.lines().by_name.get(line).and_then(|line| line.obstacle.clone());
        if let Some(obstacle) = obstacle {
            return obstacle;
        }
        let fresh = |refusal: &Refusal| refusal.asked.elapsed() <= since.elapsed();
        if let Some(refusal) = self.last_refusal(line).filter(fresh) {
            return Reply::Decided(refusal.told(keys));
        }
        if let Err(refused) = self.proposer.confirmed(Deadline::after(Duration::from_millis(LEADER_WAIT_MS))).await {
            return refused;
        }
        self.last_refusal(line).map_or(Reply::Overloaded, |refusal| Reply::Decided(refusal.told(keys)))
    }

    fn last_refusal(&self, line: &Name) -> Option<Refusal> {
        self.lines().by_name.get(line).and_then(|line| line.refusal.clone())
    }

    /// Whether somebody stands in line for `key` because there was no place.
    pub(super) fn is_blocked(&self, key: &Key) -> bool {
        let lines = self.lines();
        lines.waiting > 0 && lines.by_name.get(std::slice::from_ref(key)).is_some_and(|line| line.refusal.is_some())
    }

    /// What is said to those who come while others stand in line, and do not want to; `None` if nobody does any more.
    pub(super) fn refusal_of(&self, key: &Key) -> Option<Verdict> {
        Some(self.last_refusal(&name([key].into_iter()))?.told(std::slice::from_ref(key)))
    }

    fn join(self: &Arc<Self>, name: &Name, before: Duration, waiter: Waiter) -> Option<Number> {
        let mut lines = self.lines();
        if lines.waiting >= WAITERS_MAX {
            return None;
        }
        let millis = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
        let number = (millis(self.opened.elapsed()) - millis(before), lines.come);
        lines.come += 1;
        lines.count(1, 0);
        if let Some(line) = lines.by_name.get_mut(name) {
            line.push(number, waiter);
            return Some(number);
        }
        if name.len() > 1 {
            lines.several.insert(Arc::clone(name));
        }
        let stirred = Arc::new(Notify::new());
        let mut line = Line::new(Arc::clone(&stirred));
        line.push(number, waiter);
        lines.by_name.insert(Arc::clone(name), line);
        tokio::spawn(Arc::clone(self).serve(Arc::clone(name), stirred));
        Some(number)
    }

    /// Serves one line until it is empty.
    async fn serve(self: Arc<Self>, name: Name, stirred: Arc<Notify>) {
        let mut at_once = 1;
        let mut last_word = Stopwatch::start();
        while let Some(tried) = self.heads(&name, at_once) {
            let (count, asked) = (tried.len(), Stopwatch::start());
            let reply = self.put(tried.iter().map(|one| one.acquire.clone()).collect()).await;
            let obstacle = obstacle(reply.as_ref());
            self.lines().meets(&name, obstacle.clone());
            let Tried { granted, again_after } = match reply {
                Some(Decided::Verdict(Verdict { outcome: Outcome::Several(outcomes), at })) => {
                    last_word = Stopwatch::start();
                    self.settle(&name, (tried, asked), outcomes.into_iter().map(|outcome| Verdict { outcome, at }))
                }
                // Whoever is sent away comes back at once, and thousands who do so keep a leader from getting its majority back:
                // the line waits for that instead.
                Some(Decided::NoQuorum | Decided::DiskFull) if last_word.elapsed() < MAJORITY_WAIT => {
                    self.try_later(&name, &tried, (obstacle, MAJORITY_PAUSE))
                }
                None => self.try_later(&name, &tried, (obstacle, QUEUE_FULL_PAUSE)),
                Some(Decided::NotLeading) => self.send_away(&name, &Reply::NotLeading),
                Some(Decided::NoQuorum) => self.send_away(&name, &Reply::NoQuorum),
                Some(Decided::DiskFull) => self.send_away(&name, &Reply::DiskFull),
                Some(Decided::Unknown(why)) => {
                    let reply = Reply::Unknown(why);
                    for head in &tried {
                        self.answer(&name, head.number, reply.clone());
                    }
                    Tried::default()
                }
                Some(Decided::Verdict(_)) => {
                    self.send_away(&name, &Reply::Unknown("another outcome than was asked for".to_owned()))
                }
            };
            // As many as fitted last time and as many again: a line whose places come one by one asks one by one.
            at_once = if granted == count { (2 * count).min(TRIED_AT_ONCE_MAX) } else { granted.max(1) };
            if let Some(after) = again_after {
                let after = Duration::from_nanos(after.0).clamp(SLEEP_MIN, SLEEP_MAX);
                let _ = tokio::time::timeout(after, stirred.notified()).await;
            }
        }
    }

    /// The first of a line, marked as being tried; `None` ends the line.
    fn heads(&self, name: &Name, most: usize) -> Option<Vec<Head>> {
        let mut lines = self.lines();
        let line = lines.by_name.get_mut(name)?;
        if line.waiters.is_empty() {
            lines.by_name.remove(name);
            lines.several.remove(name);
            return None;
        }
        let heads = line.waiters.iter_mut().take(most).map(|(number, waiter)| {
            waiter.tried = true;
            let mut acquire = waiter.acquire.clone();
            // What is left of its patience, so that it gets no slot it would not wait for.
            let lead = acquire.terms.lead;
            acquire.terms.max_wait = waiter.until.map(|until| span(until.remaining()).max(lead));
            Head { number: *number, acquire, waited: span(waiter.since.elapsed()), until: waiter.until }
        });
        Some(heads.collect())
    }

    /// `None` if so much is queued that this has to come later.
    async fn put(&self, acquires: Vec<Acquire>) -> Option<Decided> {
        let after = |ms| Deadline::after(Duration::from_millis(ms));
        let command = Command::Several(Several { acquires, rule: SeveralRule::InLine });
        Some(self.proposer.submit(command)?.until(after(LEADER_WAIT_MS), after(REQUEST_TIMEOUT_MS)).await)
    }

    /// Answers those that are decided; the others go on waiting.
    fn settle(
        self: &Arc<Self>,
        name: &Name,
        (tried, asked): (Vec<Head>, Stopwatch),
        verdicts: impl Iterator<Item = Verdict>,
    ) -> Tried {
        let mut result = Tried::default();
        for (Head { number, acquire, waited, until }, mut verdict) in tried.into_iter().zip(verdicts) {
            let patient = until.is_none_or(|until| !until.passed());
            if let Outcome::Granted(grant) = &mut verdict.outcome {
                grant.had_waited(waited);
            }
            match &verdict.outcome {
                Outcome::Denied { by, denial, rule } if is_for_want_of_a_place(denial.reason) && patient => {
                    result.again_after = Some(denial.retry_after);
                    let refuser = acquire.wanted().nth(*by).unwrap_or(&acquire.first);
                    let (key, rule) = (refuser.key.clone(), rule.clone());
                    let refusal = Refusal { key, denial: *denial, rule, at: verdict.at, asked };
                    self.lines().back(name, number, Some(refusal));
                }
                Outcome::Skipped => self.lines().back(name, number, None),
                Outcome::Granted(_) => {
                    result.granted += 1;
                    if !self.answer(name, number, Reply::Decided(verdict)) {
                        self.give_back(&acquire);
                    }
                }
                _ => {
                    self.answer(name, number, Reply::Decided(verdict));
                }
            }
        }
        result
    }

    /// Takes one out of the line and answers it; whether somebody was there to hear it.
    fn answer(&self, name: &Name, number: Number, reply: Reply) -> bool {
        let waiter = self.lines().take(name, number);
        waiter.is_some_and(|waiter| !waiter.gone && waiter.answer.send(reply).is_ok())
    }

    /// Those that were tried were certainly not decided: they go on waiting, unless their patience has ended meanwhile.
    fn try_later(&self, name: &Name, tried: &[Head], (obstacle, after): (Option<Reply>, Span)) -> Tried {
        for Head { number, until, .. } in tried {
            match &obstacle {
                Some(obstacle) if until.is_some_and(|until| until.passed()) => {
                    self.answer(name, *number, obstacle.clone());
                }
                _ => self.lines().back(name, *number, None),
            }
        }
        Tried { granted: 0, again_after: Some(after) }
    }

    /// Sends the whole line away.
    fn send_away(&self, name: &Name, reply: &Reply) -> Tried {
        let line = {
            let mut lines = self.lines();
            let Some(line) = lines.by_name.get_mut(name) else { return Tried::default() };
            line.requests.clear();
            line.refusal = None;
            let waiters = std::mem::take(&mut line.waiters);
            lines.count(0, waiters.len());
            waiters
        };
        for waiter in line.into_values() {
            let _ = waiter.answer.send(reply.clone());
        }
        Tried::default()
    }

    /// Gives back what a request got that nobody waits for any more.
    fn give_back(self: &Arc<Self>, acquire: &Acquire) {
        let Some(identity) = acquire.identity else { return };
        let keys: Vec<_> = acquire.wanted().map(|wanted| wanted.key.clone()).collect();
        let withdraw = Withdraw { id: identity.id, claim: acquire.claim, keys };
        let Some(waiting) = self.proposer.submit(Command::Withdraw(withdraw)) else { return };
        let after = |ms| Deadline::after(Duration::from_millis(ms));
        let (room, keys) = (Arc::clone(self), name_of(acquire));
        tokio::spawn(async move {
            waiting.until(after(LEADER_WAIT_MS), after(REQUEST_TIMEOUT_MS)).await;
            for key in keys.iter() {
                room.stir(key);
            }
        });
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that is put to the cluster.
struct Head {
    number: Number,
    acquire: Acquire,
    /// How long it had been in line when it was put to the cluster.
    waited: Span,
    until: Option<Deadline>,
}

/// What came of putting the head of a line to the cluster.
#[derive(Default)]
struct Tried {
    granted: usize,
    /// Set if there was no place.
    again_after: Option<Span>,
}

/// Whether waiting could help.
const fn is_for_want_of_a_place(reason: Reason) -> bool {
    matches!(reason, Reason::ReservationsFull | Reason::WindowFull | Reason::InFlightFull)
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
