//! What the oracle knows of one key: every permit that was not given back, since the key was last as good as fresh.
//!
//! Each kind of limit is decided from that list, without any arithmetic of the code under test: where that keeps `next` and
//! holes, this looks for a gap between all permits; where that keeps counts of cells, this counts; where that divides, this
//! multiplies or searches.

use quorate::limiter::{Limit, Rate, Reason, Terms};
use quorate::limits::{COST_MAX, HORIZON_NS_MAX};

/// One permit that was granted and not given back.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) permit: u64,
    pub(crate) slot: u64,
    pub(crate) cost: u64,
    /// By which it was granted.
    pub(crate) limit: Limit,
    /// What it takes of the time of a spacing limit or a bucket.
    pub(crate) takes: Option<(u64, u64)>,
    /// When its lease ends.
    pub(crate) ends: Option<u64>,
}

/// What is asked of one key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) cost: u64,
    pub(crate) terms: &'a Terms,
}

/// One key.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    pub(crate) given: Vec<Given>,
    /// Of the last grant.
    pub(crate) limit: Limit,
    pub(crate) last_permit: u64,
    /// The instant from which on it is looked whether the key may leave.
    pub(crate) looked_at: u64,
}

/// The figures of a spacing limit or a bucket, read off its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) interval: u128,
    /// Between two slots, besides the interval.
    pub(crate) between: u128,
    pub(crate) start_window: u128,
    pub(crate) burst: Option<u128>,
    pub(crate) max_reserved: u128,
    /// The interval at the beginning and how long it takes to the end.
    ramp: Option<(u128, u128)>,
}

/// The shortest whole interval of which `count` fill the period.
pub(crate) fn interval(rate: Rate) -> u128 {
    let (count, per) = (u128::from(rate.count()), u128::from(rate.per().0));
    let mut interval = per / count;
    while interval * count < per {
        interval += 1;
    }
    interval
}

impl Figures {
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        match limit {
            Limit::Spacing(spacing) => Some(Self {
                interval: interval(spacing.rate()),
                between: u128::from(spacing.start_window().0),
                start_window: u128::from(spacing.start_window().0),
                burst: None,
                max_reserved: u128::from(spacing.max_reserved()),
                ramp: spacing.ramp().map(|ramp| (interval(ramp.from), u128::from(ramp.over.0))),
            }),
            Limit::Bucket(bucket) => Some(Self {
                interval: interval(bucket.rate()),
                between: 0,
                start_window: u128::from(bucket.start_window().0),
                burst: Some(u128::from(bucket.burst())),
                max_reserved: u128::from(bucket.max_reserved()),
                ramp: bucket.ramp().map(|ramp| (interval(ramp.from), u128::from(ramp.over.0))),
            }),
            Limit::Window(_) | Limit::Concurrency(_) => None,
        }
    }

    /// The distance of two slots at the full rate.
    pub(crate) const fn unit(&self) -> u128 {
        self.interval + self.between
    }

    /// Whether the rate is the same all the time.
    pub(crate) const fn is_steady(&self) -> bool {
        self.ramp.is_none()
    }

    fn unit_max(&self) -> u128 {
        self.ramp.map_or(self.interval, |(slow, _)| slow) + self.between
    }

    /// "The rate grows linearly, in 65536 steps; a permit's interval is the one at its slot. Both round the slow way."
    fn interval_at(&self, began: Option<u64>, slot: u64) -> u128 {
        const STEPS: u128 = 1 << 16;
        let Some((slowest, over)) = self.ramp else { return self.interval };
        let elapsed = u128::from(slot.saturating_sub(began.unwrap_or(slot)));
        let step = last_that(STEPS, |step| step * over <= elapsed * STEPS);
        // A rate of `(STEPS - step)` parts slow and `step` parts fast: the shortest interval that is no faster.
        let (parts, whole) = (self.interval * (STEPS - step) + slowest * step, slowest * self.interval * STEPS);
        slowest - last_that(slowest - self.interval, |less| (slowest - less) * parts >= whole)
    }
}

/// The largest number up to `most` for which something holds that holds for 0 and stops holding once.
fn last_that(most: u128, holds: impl Fn(u128) -> bool) -> u128 {
    let (mut yes, mut no) = (0, most + 1);
    while no - yes > 1 {
        let middle = yes + (no - yes) / 2;
        if holds(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    yes
}

pub(crate) fn ns(wide: u128) -> u64 {
    u64::try_from(wide).expect("scripts stay within the end of time")
}

impl Past {
    pub(crate) const fn new(limit: Limit) -> Self {
        Self { given: Vec::new(), limit, last_permit: 0, looked_at: 0 }
    }

    /// Permits whose slots lie ahead; what is in flight is not reserved.
    pub(crate) fn ahead(&self, now: u64) -> Vec<u64> {
        let mut ahead: Vec<_> = self
            .given
            .iter()
            .filter(|given| given.ends.is_none() && given.slot > now)
            .map(|given| given.slot)
            .collect();
        ahead.sort_unstable();
        ahead
    }

    pub(crate) fn in_flight(&self, now: u64) -> u64 {
        self.given.iter().filter(|given| given.ends.is_some_and(|ends| ends > now)).map(|given| given.cost).sum()
    }

    /// The instant from which on the key is as good as a fresh one.
    pub(crate) fn idle_at(&self) -> u64 {
        let ends = self.given.iter().map(|given| match &given.limit {
            Limit::Window(window) => {
                let (cell, per) = (window.resolution().0, window.rate().per().0);
                (given.slot / cell + 1) * cell + if window.is_aligned() { 0 } else { per }
            }
            limit => {
                let rest = Figures::of(limit).and_then(|figures| figures.ramp).map_or(0, |(_, over)| ns(over));
                given.ends.or(given.takes.map(|(_, to)| to + rest)).unwrap_or(0)
            }
        });
        ends.max().unwrap_or(0)
    }

    /// Whether no state could grant this.
    pub(crate) fn is_never(asked: &Asked<'_>) -> bool {
        let Asked { limit, cost, terms } = *asked;
        let longest = if terms.free_now_only { 0 } else { terms.max_wait.map_or(u64::MAX, |wait| wait.0) };
        let by_kind = match limit {
            Limit::Window(window) => cost > window.count(),
            Limit::Concurrency(concurrency) => cost > concurrency.max(),
            Limit::Spacing(_) | Limit::Bucket(_) => Figures::of(limit).is_some_and(|figures| {
                let too_far = u128::from(terms.lead.0) > figures.max_reserved * figures.unit_max();
                u128::from(cost) * figures.unit_max() > u128::from(HORIZON_NS_MAX)
                    || figures.burst.map_or(too_far, |burst| u128::from(cost) > burst)
            }),
        };
        cost == 0 || cost > COST_MAX || by_kind || terms.lead.0 > longest
    }

    /// The earliest slot from `from` on; `None` while too many are in flight.
    pub(crate) fn earliest(&self, asked: &Asked<'_>, now: u64, from: u64) -> Option<u64> {
        match asked.limit {
            Limit::Concurrency(concurrency) => (self.in_flight(now) + asked.cost <= concurrency.max()).then_some(from),
            Limit::Window(_) => Some(self.window(asked, from)),
            Limit::Spacing(_) | Limit::Bucket(_) => Some(self.gap(asked, from).0),
        }
    }

    /// The first gap between all permits that fits one more: its slot, where the gap begins and where the permit ends.
    fn gap(&self, asked: &Asked<'_>, from: u64) -> (u64, u64, u64) {
        let figures = Figures::of(asked.limit).expect("a kind of rate");
        let cost = u128::from(asked.cost);
        let began = self.given.iter().map(|given| given.slot).min();
        let taken: Vec<_> = self.given.iter().filter_map(|given| given.takes).collect();
        let mut begins: Vec<_> = taken.iter().map(|(_, to)| *to).chain([0]).collect();
        begins.sort_unstable();
        for begin in begins {
            if taken.iter().any(|(from, to)| *from <= begin && begin < *to) {
                continue;
            }
            let end = taken.iter().map(|(from, _)| *from).filter(|from| *from >= begin).min().unwrap_or(u64::MAX);
            // A permit of a bucket may start while the others of its burst still take their time.
            let early = figures.burst.map_or(0, |burst| ns((burst - cost) * figures.interval));
            let slot = from.max(begin.saturating_sub(early));
            let length = cost * (figures.interval_at(began, slot) + figures.between);
            let to = ns(u128::from(begin.max(slot)) + length);
            // "Under a start window nobody takes a hole."
            if to <= end && (figures.start_window == 0 || end == u64::MAX) {
                return (slot, begin, to);
            }
        }
        unreachable!("after all of them there is room")
    }

    fn window(&self, asked: &Asked<'_>, from: u64) -> u64 {
        let Limit::Window(window) = asked.limit else { unreachable!("a window") };
        let (width, cells) = (window.resolution().0, window.rate().per().0 / window.resolution().0);
        let cell_of = |slot: u64| slot / width;
        let fits = |at: u64| {
            let (mut whole, mut oldest) = (0, 0);
            for given in &self.given {
                let (there, here) = (cell_of(given.slot), cell_of(at));
                if window.is_aligned() {
                    whole += if there == here { given.cost } else { 0 };
                } else if there + cells > here && there < here + cells {
                    whole += given.cost;
                } else if there + cells == here {
                    oldest += given.cost;
                }
            }
            let covered = (cell_of(at) + 1) * width - at;
            let room = window.count().checked_sub(whole + asked.cost);
            room.is_some_and(|room| u128::from(room) * u128::from(width) >= u128::from(oldest) * u128::from(covered))
        };
        // Within a cell it only gets better.
        let mut first = from;
        loop {
            let last = (cell_of(first) + 1) * width - 1;
            if fits(first) {
                return first;
            }
            if fits(last) {
                let too_soon = last_that(u128::from(last - first), |later| !fits(first + ns(later)));
                return first + ns(too_soon) + 1;
            }
            // On to the next cell for which anything is different.
            let cells =
                self.given.iter().flat_map(|given| [0, 1, cells, cells + 1].map(|later| cell_of(given.slot) + later));
            let next = cells.map(|cell| cell * width).filter(|begin| *begin > last).min();
            first = next.expect("after all of them there is room");
        }
    }

    /// The slot of a request that comes alone at `at`, or the rule that refuses it.
    pub(crate) fn judge(&self, asked: &Asked<'_>, at: u64) -> Result<u64, Reason> {
        let Asked { limit, terms, .. } = *asked;
        let from = at + terms.lead.0;
        let slot = self.earliest(asked, at, from).ok_or(Reason::InFlightFull)?;
        let too_long = terms.max_wait.is_some_and(|wait| u128::from(slot) > u128::from(at) + u128::from(wait.0));
        let ahead = self.ahead(at).len() as u128;
        let Some(figures) = Figures::of(limit) else {
            let Limit::Window(window) = limit else { return Ok(slot) };
            let reserves = !terms.free_now_only && terms.max_wait.is_some();
            let refused = !reserves || too_long || ahead >= u128::from(window.count());
            return if slot > from && refused { Err(Reason::WindowFull) } else { Ok(slot) };
        };
        // A bucket that has the tokens reserves nothing by a lead.
        let begin = if figures.burst.is_some() { from } else { at };
        let too_far = match figures.ramp {
            None => u128::from(slot) > u128::from(begin) + figures.max_reserved * figures.unit(),
            Some(_) => slot > begin && ahead >= figures.max_reserved,
        };
        match slot {
            slot if slot == at => Ok(slot),
            _ if terms.free_now_only => Err(Reason::NotFreeNow),
            _ if too_far => Err(Reason::ReservationsFull),
            _ if too_long => Err(Reason::WouldWaitTooLong),
            slot => Ok(slot),
        }
    }

    /// How long until a request that is refused now is granted if nobody else comes: the first of the instants at which
    /// anything changes for it.
    pub(crate) fn retry_after(&self, asked: &Asked<'_>, now: u64) -> u64 {
        let lead = asked.terms.lead.0;
        let slot = self.earliest(asked, now, now + lead);
        let reach = Figures::of(asked.limit).map_or(0, |figures| ns(figures.max_reserved * figures.unit()));
        let wait = asked.terms.max_wait.map_or(0, |wait| wait.0);
        let mut instants: Vec<_> = [0, lead, reach, wait, reach.saturating_add(lead)]
            .into_iter()
            .filter_map(|sooner| slot?.checked_sub(sooner))
            .chain(self.given.iter().flat_map(|given| given.ends.into_iter().chain([given.slot])))
            .filter(|at| *at > now)
            .collect();
        instants.sort_unstable();
        let spaced_ramp = Figures::of(asked.limit).filter(|figures| figures.ramp.is_some() && figures.burst.is_none());
        if let Some(figures) = spaced_ramp.filter(|_| lead > 0) {
            // "A hole that is free at a lead from now may be gone when a place frees up; who is told to come then may be told to
            // wait again": it is told when a place frees up, and when the slot that it sees now is near enough.
            let freed = instants.iter().find(|at| (self.ahead(**at).len() as u128) < figures.max_reserved);
            let freed = if (self.ahead(now).len() as u128) < figures.max_reserved { None } else { freed };
            let near = asked.terms.max_wait.and_then(|wait| slot?.checked_sub(wait.0));
            return near.max(freed.copied()).unwrap_or(now).saturating_sub(now);
        }
        let is_ramp = Figures::of(asked.limit).is_some_and(|figures| figures.ramp.is_some());
        if let Some(slot) = slot.filter(|_| is_ramp && asked.terms.free_now_only) {
            // "On a ramp a hole that is too short may do later, when permits take less; nobody waits for that."
            return slot - now;
        }
        let granted = instants.into_iter().find(|at| self.judge(asked, *at).is_ok());
        granted.expect("a request that is not impossible is granted some time") - now
    }

    /// Enters a permit.
    pub(crate) fn enter(&mut self, asked: &Asked<'_>, now: u64, slot: u64, permit: u64) {
        let takes = Figures::of(asked.limit).map(|figures| {
            let (found, begin, to) = self.gap(asked, slot);
            assert_eq!(found, slot, "the slot fits");
            // A lead takes the time before it along, unless it is a bucket's or another limit made the request wait.
            let leaves_gap = slot > now + asked.terms.lead.0 || figures.burst.is_some() && slot > now;
            (if leaves_gap { begin.max(slot) } else { begin }, to)
        });
        let ends =
            if let Limit::Concurrency(concurrency) = asked.limit { Some(slot + concurrency.lease().0) } else { None };
        self.given.push(Given { permit, slot, cost: asked.cost, limit: *asked.limit, takes, ends });
        (self.limit, self.last_permit) = (*asked.limit, permit);
    }

    /// Takes a permit out that lies ahead or is in flight; whether there was one.
    pub(crate) fn give_back(&mut self, permit: u64, now: u64) -> bool {
        let before = self.given.len();
        self.given.retain(|given| given.permit != permit || given.ends.unwrap_or(given.slot) <= now);
        self.given.len() < before
    }
}
