//! Where requests wait for a place at the leader: one line a key, first come, first served. Requests for several keys have lines
//! of their own, one for each set of keys, so that they hold up nobody who wants only one of them.
//!
//! Whoever waits stands in line from the moment it comes, so the order of arrival is the order of the line. One task a line puts
//! its head to the cluster: a few requests in one command that stops at the first one refused, so nobody overtakes. Refused
//! for want of a place, the head tries again when the refusal said, or when something was given back.
//!
//! The room is this leader's own memory. When leadership is lost everybody is sent away with that word, and whoever holds the
//! request takes it to the next leader, under the same id.
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
use crate::limits::{LEADER_WAIT_MS, REQUEST_TIMEOUT_MS, WAITERS_MAX};
use crate::metric_names;
use crate::state::{Acquire, Command, Outcome, Rule, Several, SeveralRule, Withdraw};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Most requests that one line puts to the cluster at once.
const TRIED_AT_ONCE_MAX: usize = 256;
/// Longest sleep of a line: it would wake by itself even if it missed a word.
const SLEEP_MAX: Duration = Duration::from_secs(5);
/// Shortest, so that a refusal that is due at once does not spin.
const SLEEP_MIN: Duration = Duration::from_micros(200);

const IN_LINE: u8 = 0;
const TRIED: u8 = 1;
const GONE: u8 = 2;
/// Gone while it was being tried: what comes of that goes back.
const TRIED_AND_GONE: u8 = 3;

/// All lines.
pub(super) struct Waitroom {
    proposer: Arc<Proposer>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    by_name: BTreeMap<Name, Line>,
    /// The lines for several keys: there are few of them.
    several: BTreeSet<Name>,
    waiting: usize,
}

/// The keys of a line, in order.
type Name = Arc<[Key]>;

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
}

struct Line {
    waiters: VecDeque<Waiter>,
    /// What the head was told last: what those are told whose patience ends.
    refusal: Option<Refusal>,
    /// Something was given back, or the head has gone.
    stirred: Arc<Notify>,
}

/// Which key refused, and what it said.
#[derive(Clone)]
struct Refusal {
    key: Key,
    denial: Denial,
    rule: Option<Arc<Rule>>,
    at: Time,
}

struct Waiter {
    acquire: Acquire,
    since: Stopwatch,
    /// Until when it waits; `None` for ever.
    until: Option<Deadline>,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Reply>,
}

/// One that waits, held by whoever asked. Dropped, it leaves the line.
struct Place<'a> {
    room: &'a Waitroom,
    line: Name,
    state: Arc<AtomicU8>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if go(&self.state) {
            self.room.tidy(&self.line);
        }
    }
}

impl Place<'_> {
    /// Leaves the line unless the cluster is being asked right now; then that answer is waited for.
    fn leave(&self) -> bool {
        let left = self.state.compare_exchange(IN_LINE, GONE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if left {
            self.room.tidy(&self.line);
        }
        left
    }
}

impl Waitroom {
    pub(super) fn new(proposer: Arc<Proposer>) -> Arc<Self> {
        Arc::new(Self { proposer, lines: Mutex::default() })
    }

    /// Stands in line until there is an answer, or until `until`.
    pub(super) async fn wait(self: &Arc<Self>, acquire: Acquire, until: Option<Deadline>) -> Reply {
        let (sender, mut answer) = oneshot::channel();
        let line = name_of(&acquire);
        let keys: Vec<_> = acquire.wanted().map(|wanted| wanted.key.clone()).collect();
        let state = Arc::new(AtomicU8::new(IN_LINE));
        if !self.join(
            &line,
            Waiter { acquire, since: Stopwatch::start(), until, state: Arc::clone(&state), answer: sender },
        ) {
            return Reply::Overloaded;
        }
        let place = Place { room: self, line, state };
        let gone = || Reply::Unknown("the line was given up".to_owned());
        let Some(until) = until else { return answer.await.unwrap_or_else(|_| gone()) };
        match tokio::time::timeout_at(until.instant(), &mut answer).await {
            Ok(answered) => answered.unwrap_or_else(|_| gone()),
            // One that is being tried right now gets the answer to that.
            Err(_) if place.leave() => Reply::Decided(self.refusal(&place.line, &keys)),
            Err(_) => answer.await.unwrap_or_else(|_| gone()),
        }
    }

    /// Takes a request out of its line.
    pub(super) fn leave(&self, withdraw: &Withdraw) {
        let name = name(withdraw.keys.iter());
        {
            let lines = self.lines();
            let Some(line) = lines.by_name.get(&name) else { return };
            for waiter in &line.waiters {
                let same = waiter.acquire.claim == withdraw.claim
                    && waiter.acquire.identity.is_some_and(|identity| identity.id == withdraw.id);
                if same {
                    go(&waiter.state);
                }
            }
        }
        self.tidy(&name);
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
            position = position.or_else(|| line.waiters.iter().position(named).map(|index| index as u64 + 1));
        }
        (waiting, position)
    }

    /// What is said to those whose patience ends while they stand in line: nothing was consumed.
    fn refusal(&self, line: &Name, keys: &[Key]) -> Verdict {
        let Some(refusal) = self.lines().by_name.get(line).and_then(|line| line.refusal.clone()) else {
            let denial = Denial { reason: Reason::WouldWaitTooLong, retry_after: Span::from_millis(1) };
            return Verdict { outcome: Outcome::Denied { by: 0, denial, rule: None }, at: Time::ZERO };
        };
        let Refusal { key, denial, rule, at } = refusal;
        let by = keys.iter().position(|own| *own == key).unwrap_or(0);
        Verdict { outcome: Outcome::Denied { by, denial, rule }, at }
    }

    /// Whether somebody stands in line for `key` because there was no place.
    pub(super) fn is_blocked(&self, key: &Key) -> bool {
        let lines = self.lines();
        lines.waiting > 0 && lines.by_name.get(std::slice::from_ref(key)).is_some_and(|line| line.refusal.is_some())
    }

    /// What is said to those who come while others stand in line, and do not want to.
    pub(super) fn refusal_of(&self, key: &Key) -> Verdict {
        self.refusal(&name([key].into_iter()), std::slice::from_ref(key))
    }

    fn join(self: &Arc<Self>, name: &Name, waiter: Waiter) -> bool {
        let mut lines = self.lines();
        if lines.waiting >= WAITERS_MAX {
            return false;
        }
        lines.waiting += 1;
        show(lines.waiting);
        if let Some(line) = lines.by_name.get_mut(name) {
            line.waiters.push_back(waiter);
            return true;
        }
        if name.len() > 1 {
            lines.several.insert(Arc::clone(name));
        }
        let stirred = Arc::new(Notify::new());
        let waiters = VecDeque::from([waiter]);
        lines.by_name.insert(Arc::clone(name), Line { waiters, refusal: None, stirred: Arc::clone(&stirred) });
        tokio::spawn(Arc::clone(self).serve(Arc::clone(name), stirred));
        true
    }

    /// Drops those who have gone, and wakes the line if that changed its head.
    fn tidy(&self, name: &Name) {
        let mut lines = self.lines();
        let Some(line) = lines.by_name.get_mut(name) else { return };
        let before = line.waiters.len();
        let head_went = line.waiters.front().is_some_and(is_gone);
        line.waiters.retain(|waiter| !is_gone(waiter));
        let left = before - line.waiters.len();
        if head_went {
            line.stirred.notify_one();
        }
        lines.waiting -= left;
        show(lines.waiting);
    }

    /// Serves one line until it is empty.
    async fn serve(self: Arc<Self>, name: Name, stirred: Arc<Notify>) {
        let mut at_once = 1;
        while let Some(tried) = self.heads(&name, at_once) {
            let count = tried.len();
            let reply = self.put(tried.iter().map(|one| one.acquire.clone()).collect()).await;
            let Tried { granted, again_after } = match reply {
                Decided::Verdict(Verdict { outcome: Outcome::Several(outcomes), at }) => {
                    self.settle(&name, tried, outcomes.into_iter().map(|outcome| Verdict { outcome, at }))
                }
                other => {
                    self.send_away(&name, &other);
                    Tried::default()
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
        loop {
            let mut lines = self.lines();
            let line = lines.by_name.get_mut(name)?;
            let mut heads = Vec::new();
            for waiter in line.waiters.iter().take(most) {
                if waiter.answer.is_closed() {
                    waiter.state.store(GONE, Ordering::Release);
                }
                if waiter.state.compare_exchange(IN_LINE, TRIED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    let mut acquire = waiter.acquire.clone();
                    // What is left of its patience, so that it gets no slot it would not wait for.
                    let lead = acquire.terms.lead;
                    acquire.terms.max_wait = waiter.until.map(|until| span(until.remaining()).max(lead));
                    let (until, waited) = (waiter.until, span(waiter.since.elapsed()));
                    heads.push(Head { acquire, waited, until, state: Arc::clone(&waiter.state) });
                }
            }
            if !heads.is_empty() {
                return Some(heads);
            }
            let before = line.waiters.len();
            line.waiters.retain(|waiter| !is_gone(waiter));
            let left = before - line.waiters.len();
            if line.waiters.is_empty() {
                lines.by_name.remove(name);
                lines.several.remove(name);
            }
            lines.waiting -= left;
            show(lines.waiting);
        }
    }

    async fn put(&self, acquires: Vec<Acquire>) -> Decided {
        let after = |ms| Deadline::after(Duration::from_millis(ms));
        let command = Command::Several(Several { acquires, rule: SeveralRule::InLine });
        match self.proposer.submit(command) {
            Some(waiting) => waiting.until(after(LEADER_WAIT_MS), after(REQUEST_TIMEOUT_MS)).await,
            None => Decided::NoQuorum,
        }
    }

    /// Answers those that are decided; the others go on waiting.
    fn settle(self: &Arc<Self>, name: &Name, tried: Vec<Head>, verdicts: impl Iterator<Item = Verdict>) -> Tried {
        let mut result = Tried::default();
        for (Head { acquire, waited, until, state }, mut verdict) in tried.into_iter().zip(verdicts) {
            let patient = until.is_none_or(|until| !until.passed());
            if let Outcome::Granted(grant) = &mut verdict.outcome {
                grant.had_waited(waited);
            }
            match &verdict.outcome {
                Outcome::Denied { by, denial, rule } if is_for_want_of_a_place(denial.reason) && patient => {
                    result.again_after = Some(denial.retry_after);
                    back_into_line(&state);
                    let refuser = acquire.wanted().nth(*by).unwrap_or(&acquire.first);
                    let (key, rule) = (refuser.key.clone(), rule.clone());
                    if let Some(line) = self.lines().by_name.get_mut(name) {
                        line.refusal = Some(Refusal { key, denial: *denial, rule, at: verdict.at });
                    }
                }
                Outcome::Skipped => back_into_line(&state),
                Outcome::Granted(_) => {
                    result.granted += 1;
                    let wanted = state.load(Ordering::Acquire) == TRIED;
                    if !self.answer(name, &state, Reply::Decided(verdict)) || !wanted {
                        self.give_back(&acquire);
                    }
                }
                _ => {
                    self.answer(name, &state, Reply::Decided(verdict));
                }
            }
        }
        result
    }

    /// Takes one out of the line and answers it; whether somebody was there to hear it.
    fn answer(&self, name: &Name, state: &Arc<AtomicU8>, reply: Reply) -> bool {
        let waiter = {
            let mut lines = self.lines();
            let Some(line) = lines.by_name.get_mut(name) else { return false };
            let at = line.waiters.iter().position(|waiter| Arc::ptr_eq(&waiter.state, state));
            let waiter = at.and_then(|at| line.waiters.remove(at));
            lines.waiting -= usize::from(waiter.is_some());
            show(lines.waiting);
            waiter
        };
        waiter.is_some_and(|waiter| waiter.answer.send(reply).is_ok())
    }

    /// Sends the whole line away. Those that were tried may have been decided; the others certainly were not.
    fn send_away(&self, name: &Name, decided: &Decided) {
        let line = {
            let mut lines = self.lines();
            let Some(line) = lines.by_name.get_mut(name) else { return };
            let waiters = std::mem::take(&mut line.waiters);
            lines.waiting -= waiters.len();
            show(lines.waiting);
            waiters
        };
        for waiter in line {
            let tried = waiter.state.load(Ordering::Acquire) == TRIED;
            let reply = match decided {
                Decided::Unknown(why) if tried => Reply::Unknown(why.clone()),
                // What became of the head is not known, as a rule because leadership was lost; the others were not even tried.
                Decided::NotLeading | Decided::Unknown(_) => Reply::NotLeading,
                Decided::NoQuorum => Reply::NoQuorum,
                Decided::Verdict(_) => Reply::Unknown("another outcome than was asked for".to_owned()),
            };
            let _ = waiter.answer.send(reply);
        }
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
    acquire: Acquire,
    /// How long it had been in line when it was put to the cluster.
    waited: Span,
    until: Option<Deadline>,
    state: Arc<AtomicU8>,
}

/// What came of putting the head of a line to the cluster.
#[derive(Default)]
struct Tried {
    granted: usize,
    /// Set if there was no place.
    again_after: Option<Span>,
}

/// Marks one as gone; whether the cluster was not being asked for it at that moment.
fn go(state: &AtomicU8) -> bool {
    let change = |from, to| state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if change(IN_LINE, GONE) {
        return true;
    }
    // It may have come back into line in between.
    !change(TRIED, TRIED_AND_GONE) && change(IN_LINE, GONE)
}

/// Back into line after it was tried, or gone for good.
fn back_into_line(state: &AtomicU8) {
    if state.compare_exchange(TRIED, IN_LINE, Ordering::AcqRel, Ordering::Acquire).is_err() {
        state.store(GONE, Ordering::Release);
    }
}

fn is_gone(waiter: &Waiter) -> bool {
    waiter.state.load(Ordering::Acquire) == GONE
}

/// Whether waiting could help.
const fn is_for_want_of_a_place(reason: Reason) -> bool {
    matches!(reason, Reason::ReservationsFull | Reason::WindowFull | Reason::InFlightFull)
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

fn show(waiting: usize) {
    metrics::gauge!(metric_names::WAITING).set(metric_names::gauge_value(waiting as u64));
}
