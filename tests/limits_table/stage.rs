//! A state machine with a clock that the test sets: exact instants, no waiting.

use quorate::limiter::{Key, Limit, Reason, Span, Terms, Time};
use quorate::limits::KEYS_DEFAULT;
use quorate::state::{Acquire, Applied, Batch, Command, Grant, Held, LeaderId, Machine, Outcome, Stamp, Wanted};

const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

/// So many milliseconds, in nanoseconds.
pub(crate) const fn ms(millis: u64) -> u64 {
    millis * 1_000_000
}

/// So many seconds, in nanoseconds.
pub(crate) const fn sec(secs: u64) -> u64 {
    secs * 1_000_000_000
}

/// The slot of a grant, or why there is none and after how long there would be; all in nanoseconds.
pub(crate) type Answer = Result<u64, (Reason, u64)>;

/// One key under one limit, or several keys that are asked together.
pub(crate) struct Stage {
    machine: Machine,
    now: Time,
    wanted: Vec<(Key, Limit)>,
}

impl Stage {
    /// A fresh cluster, and a key for each limit.
    pub(crate) fn new(limits: &[Limit]) -> Self {
        let key = |index: usize| Key::new(&format!("key {index}")).expect("a key");
        let wanted = limits.iter().enumerate().map(|(index, limit)| (key(index), *limit)).collect();
        Self { machine: Machine::default(), now: Time::ZERO, wanted }
    }

    /// Sets the clock.
    pub(crate) fn at(&mut self, ns: u64) -> &mut Self {
        assert!(Time(ns) >= self.now, "time does not go back");
        self.now = Time(ns);
        self
    }

    /// From now on the requests bring this limit.
    pub(crate) fn change(&mut self, limit: Limit) -> &mut Self {
        self.wanted[0].1 = limit;
        self
    }

    /// Puts one command to the machine.
    pub(crate) fn command(&mut self, command: Command) -> Outcome {
        let stamp = Stamp { leader: LEADER, time: self.now };
        match self.machine.apply(LEADER, &Batch { stamp, keys_max: KEYS_DEFAULT, commands: vec![command] }) {
            Applied::Decided { mut outcomes, .. } => outcomes.remove(0),
            other => panic!("{other}"),
        }
    }

    /// Asks for a permit of every key.
    pub(crate) fn outcome(&mut self, cost: u64, terms: Terms) -> Outcome {
        let mut wanted = self.wanted.iter().map(|(key, limit)| Wanted { key: key.clone(), limit: Some(*limit), cost });
        let Wanted { key, limit, cost } = wanted.next().expect("a limit");
        let mut acquire = Acquire::one(key, limit, cost, terms);
        acquire.more = wanted.collect();
        self.command(Command::Acquire(acquire))
    }

    pub(crate) fn grant(&mut self, cost: u64, terms: Terms) -> Result<Grant, (Reason, u64)> {
        match self.outcome(cost, terms) {
            Outcome::Granted(grant) => Ok(grant),
            Outcome::Denied { denial, .. } => Err((denial.reason, denial.retry_after.0)),
            other => panic!("neither granted nor denied: {other:?}"),
        }
    }

    pub(crate) fn asks(&mut self, cost: u64, terms: Terms) -> Answer {
        self.grant(cost, terms).map(|grant| grant.slot.0)
    }

    /// One permit, with `wait: "client"` and nothing else said.
    pub(crate) fn ask(&mut self) -> Answer {
        self.asks(1, Terms::default())
    }

    /// One permit that is free now, or none: `wait: "none"`.
    pub(crate) fn now_only(&mut self) -> Answer {
        self.asks(1, now_only())
    }

    /// One permit within `ns`: `max_wait_ms`.
    pub(crate) fn within(&mut self, ns: u64) -> Answer {
        self.asks(1, within(ns))
    }

    /// How many of `tries` requests start at this very instant.
    pub(crate) fn at_once(&mut self, tries: usize) -> usize {
        (0..tries).filter(|_| self.now_only().is_ok()).count()
    }

    /// Slots of so many requests that are all granted.
    pub(crate) fn slots(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.ask().expect("granted")).collect()
    }

    /// The number of the last permit.
    pub(crate) fn permit(&self) -> u64 {
        self.machine.permits()
    }

    pub(crate) fn release(&mut self, permit: u64) -> bool {
        let key = self.wanted[0].0.clone();
        match self.command(Command::Release(Held { key, permit })) {
            Outcome::Released(released) => released,
            other => panic!("{other:?}"),
        }
    }

    /// How long the lease runs from now on, if it still did.
    pub(crate) fn renew(&mut self, permit: u64) -> Option<u64> {
        let key = self.wanted[0].0.clone();
        match self.command(Command::Renew(Held { key, permit })) {
            Outcome::Renewed { lease, .. } => Some(lease.0),
            Outcome::NoPermit => None,
            other => panic!("{other:?}"),
        }
    }

    /// Another cluster in the same state: what would be, without its happening.
    pub(crate) fn fork(&self) -> Self {
        let mut bytes = Vec::new();
        self.machine.freeze().write(&mut bytes).expect("bytes in memory");
        let machine = Machine::read(&mut bytes.as_slice()).expect("what was just written");
        Self { machine, now: self.now, wanted: self.wanted.clone() }
    }
}

pub(crate) fn now_only() -> Terms {
    Terms { free_now_only: true, ..Terms::default() }
}

pub(crate) fn within(ns: u64) -> Terms {
    Terms { max_wait: Some(Span(ns)), ..Terms::default() }
}

/// Random numbers that are the same every time.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The steps of `SplitMix64`: every seed is good.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From nothing up to, but without, `end`.
    pub(crate) const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
