//! Does the harm: one task a kind of fault, each on its own schedule, and puts everything right again.
//!
//! Invariants
//! - What was really injected is written down, with its beginning and its end; what could not be is not counted.
//! - Whatever a fault changed it undoes itself, also when the run ends in the middle of it.

use super::cluster::{Body, Cluster, Node};
use super::disk;
use super::fault::Kind;
use super::leader::Leaders;
use super::members::Operator;
use super::power::Volume;
use super::proxy::WORKERS;
use super::rng::Rng;
use super::schedule::{Draw, Schedule};
use super::ticks::now_ns;
use crate::failpoint;
use rustix::process::Signal;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Faults at once: more would leave nothing to be seen between them.
const AT_ONCE_MAX: usize = 4;
/// Most faults wait for a cluster that works: breaking what is broken shows nothing. Some do not, so that elections are struck
/// as well.
const WORKS_WITHIN: Duration = Duration::from_secs(6);
const STRIKES_ANYWAY_PERCENT: u64 = 20;
/// The first fault of a kind comes so many times sooner, so that short runs have some of each.
const FIRST_SOONER: u32 = 4;
/// How long an EIO or a failpoint gets to bring its node down.
const DOWN_WITHIN: Duration = Duration::from_secs(6);

/// Points in the code that every node passes all the time.
const FREQUENT: [&str; 3] = ["append", "sync", "apply"];

/// A fault that was injected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Injected {
    /// Its kind, by name.
    pub kind: &'static str,
    /// The nodes it struck.
    pub nodes: Vec<u64>,
    /// Its beginning.
    pub at_ns: u64,
    /// Its end.
    pub until_ns: u64,
    /// What it was, for people.
    pub what: String,
}

/// Everything the faults share.
#[derive(Debug, Clone)]
pub(super) struct Injector {
    pub(super) cluster: Cluster,
    pub(super) leaders: Leaders,
    pub(super) seed: u64,
    pub(super) hold_max: Duration,
    /// Voters, when nothing is being changed.
    voters: usize,
    records: Arc<Mutex<Vec<Injected>>>,
    places: Arc<Semaphore>,
}

impl Injector {
    pub(super) fn new(cluster: Cluster, leaders: Leaders, seed: u64, hold_max: Duration) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE_MAX));
        let voters = cluster.members().len();
        Self { cluster, leaders, seed, hold_max, voters, records: Arc::default(), places }
    }

    pub(super) fn records(&self) -> Vec<Injected> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.records().iter().filter(|record| record.kind == kind.name()).count() as u64
    }

    /// Injects faults of these kinds until `stop` turns true, and returns when all of them are over: with what went wrong with it.
    pub(super) async fn run(&self, kinds: &[Kind], stop: &watch::Receiver<bool>) -> Vec<String> {
        let mut tasks = JoinSet::new();
        for kind in kinds.iter().copied() {
            let (injector, mut stop) = (self.clone(), stop.clone());
            tasks.spawn(async move {
                for (number, mut draw) in Schedule::new(injector.seed, kind, injector.hold_max).enumerate() {
                    let gap = if number == 0 { draw.gap / FIRST_SOONER } else { draw.gap };
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => return,
                        () = sleep(gap) => {}
                    }
                    if !draw.dice.percent(STRIKES_ANYWAY_PERCENT) {
                        injector.works().await;
                    }
                    // An operator does no harm, and waits for nobody who does.
                    let places = u32::from(kind != Kind::Members);
                    let Ok(_place) = injector.places.acquire_many(places).await else { return };
                    if *stop.borrow() {
                        return;
                    }
                    injector.inject(kind, draw).await;
                }
            });
        }
        let mut broken = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            broken.extend(ended.err().map(|error| format!("injecting broke: {error}")));
        }
        broken
    }

    /// Waits for a leader, within reason.
    async fn works(&self) {
        let until = crate::clock::Deadline::after(WORKS_WITHIN);
        while !self.leaders.somebody_leads() && !until.passed() {
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// One fault, from its beginning to its end.
    pub(super) async fn inject(&self, kind: Kind, draw: Draw) {
        let at_ns = now_ns();
        let done = match kind {
            Kind::Kill => self.kill_leader(&draw).await,
            Kind::Crash => self.crash(draw).await,
            Kind::Pause => self.pause(draw).await,
            Kind::Partition => self.partition(draw).await,
            Kind::Delay => self.delay(draw).await,
            Kind::HalfOpen => self.half_open(&draw).await,
            Kind::Answers => self.answers(draw).await,
            Kind::Clock | Kind::ClockFast => self.clock(kind, draw),
            Kind::Wall => self.wall(draw).await,
            Kind::SlowDisk => self.slow_disk(draw).await,
            Kind::DiskError => self.disk_error(draw).await,
            Kind::Power => self.power(draw).await,
            Kind::Failpoint => self.failpoint(draw).await,
            Kind::Members => self.members(draw).await,
        };
        if let Some((nodes, what)) = done {
            let record = Injected { kind: kind.name(), nodes, at_ns, until_ns: now_ns(), what };
            self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        }
    }

    fn leader(&self) -> Option<&Node> {
        self.leaders.current().and_then(|id| self.cluster.node(id))
    }

    /// One that belongs to the cluster: what happens to others shows nothing.
    fn any(&self, dice: &mut Rng) -> &Node {
        let members = self.cluster.members();
        let at = usize::try_from(dice.below(members.len() as u64)).unwrap_or(0);
        members.get(at).copied().unwrap_or(&self.cluster.nodes[0])
    }

    /// The leader as a rule, else any node.
    fn mostly_leader(&self, dice: &mut Rng) -> &Node {
        let any = self.any(dice);
        if dice.percent(70) { self.leader().unwrap_or(any) } else { any }
    }

    async fn kill_leader(&self, draw: &Draw) -> Done {
        let node = self.leader()?;
        let mut body = node.try_hold()?;
        if !body.kill() {
            return None;
        }
        let id = body.id();
        sleep(draw.hold).await;
        back_up(&mut body);
        Some((vec![id], format!("leader {id} killed, back after {:?}", draw.hold)))
    }

    async fn crash(&self, mut draw: Draw) -> Done {
        let count = match draw.dice.below(20) {
            0..12 => 1,
            12..17 => 2,
            _ => self.cluster.members().len(),
        };
        let (ids, mut bodies) = self.hold_some(&mut draw.dice, count).await;
        let killed = bodies.iter_mut().filter_map(|body| body.kill().then_some(())).count();
        sleep(draw.hold).await;
        bodies.iter_mut().for_each(back_up);
        if killed == 0 {
            return None;
        }
        let what = format!("{} killed at once, back after {:?}", names(&ids), draw.hold);
        Some((ids, what))
    }

    /// Takes hold of so many nodes, in the order of their places: whoever takes several does so in that order.
    async fn hold_some(&self, dice: &mut Rng, count: usize) -> (Vec<u64>, Vec<OwnedMutexGuard<Body>>) {
        let mut nodes = self.cluster.members();
        while nodes.len() > count {
            let at = usize::try_from(dice.below(nodes.len() as u64)).unwrap_or(0);
            nodes.remove(at);
        }
        let mut bodies = Vec::new();
        for node in nodes {
            bodies.push(node.hold().await);
        }
        (bodies.iter().map(|body| body.id()).collect(), bodies)
    }

    async fn pause(&self, mut draw: Draw) -> Done {
        let node = self.mostly_leader(&mut draw.dice);
        let id = node.id();
        let was_leader = self.leaders.current() == Some(id);
        // Held only for the signal: a paused node may be killed, and then there is nothing to wake up.
        let pid = {
            let body = node.try_hold()?;
            body.signal(Signal::STOP).then(|| body.pid())?
        };
        sleep(draw.hold).await;
        let body = node.hold().await;
        if body.pid() == pid {
            body.signal(Signal::CONT);
        }
        let whom = if was_leader { "leader" } else { "node" };
        Some((vec![id], format!("{whom} {id} stopped for {:?}", draw.hold)))
    }

    async fn partition(&self, mut draw: Draw) -> Done {
        let (places, dice) = (self.cluster.places(), &mut draw.dice);
        let late = dice.percent(50);
        let (leader, leads) = self.leader().map(|node| (node.place, node.id()))?;
        let others = |one: u64| places.iter().copied().filter(move |place| *place != one);
        let followers: Vec<u64> = others(leader).collect();
        if followers.is_empty() {
            return None;
        }
        let follower = *dice.pick(&followers);
        let follows = self.cluster.id_at(follower)?;
        // Cuts are made road by road: what a caller sends, and what comes back to it.
        let mut cuts: Vec<(u64, u64, bool, bool)> = Vec::new();
        let both_ways =
            |one: u64| others(one).flat_map(move |other| [(one, other, true, true), (other, one, true, true)]);
        let (nodes, what) = match dice.below(5) {
            0 => {
                cuts.extend(both_ways(leader));
                (vec![leads], format!("leader {leads} alone"))
            }
            1 => {
                cuts.extend(both_ways(follower));
                (vec![follows], format!("follower {follows} alone"))
            }
            2 => {
                cuts.extend(
                    others(leader).flat_map(|other| [(leader, other, false, true), (other, leader, true, false)]),
                );
                (vec![leads], format!("leader {leads} hears nobody"))
            }
            3 => {
                cuts.extend(
                    others(leader).flat_map(|other| [(leader, other, true, false), (other, leader, false, true)]),
                );
                (vec![leads], format!("nobody hears leader {leads}"))
            }
            _ => {
                let next = |at: usize| places[(at + 1) % places.len()];
                cuts.extend(places.iter().enumerate().flat_map(|(at, place)| [(*place, next(at), true, true)]));
                let ids = places.iter().filter_map(|place| self.cluster.id_at(*place)).collect();
                (ids, "a ring: nobody reaches the next".to_owned())
            }
        };
        for (from, to, there, back) in &cuts {
            self.cluster.roads.change(*from, *to, |road| {
                (road.cut_there, road.cut_back, road.late) = (*there, *back, late);
            });
        }
        sleep(draw.hold).await;
        for (from, to, ..) in &cuts {
            self.cluster.roads.change(*from, *to, |road| (road.cut_there, road.cut_back) = (false, false));
        }
        let after = if late { "what was held up arrives late" } else { "what was held up is lost" };
        Some((nodes, format!("{what} for {:?}, {after}", draw.hold)))
    }

    async fn delay(&self, mut draw: Draw) -> Done {
        let node = self.mostly_leader(&mut draw.dice);
        let (id, place) = (node.id(), node.place);
        let (delay_ms, jitter_ms) = if draw.dice.percent(70) { (75, 50) } else { (500, 100) };
        let with_workers = draw.dice.percent(40);
        let mut roads: Vec<(u64, u64)> = Vec::new();
        for other in self.cluster.nodes.iter().map(|node| node.place).filter(|other| *other != place) {
            roads.extend([(place, other), (other, place)]);
        }
        if with_workers {
            roads.push((WORKERS, place));
        }
        let set = |delay, jitter| {
            for (from, to) in &roads {
                self.cluster.roads.change(*from, *to, |road| (road.delay_ms, road.jitter_ms) = (delay, jitter));
            }
        };
        set(delay_ms, jitter_ms);
        sleep(draw.hold).await;
        set(0, 0);
        Some((vec![id], format!("{delay_ms} ± {jitter_ms} ms around node {id} for {:?}", draw.hold)))
    }

    async fn half_open(&self, draw: &Draw) -> Done {
        let node = self.leader()?;
        let mut body = node.try_hold()?;
        let id = body.id();
        let others = self.cluster.nodes.iter().map(|node| node.place).filter(|place| *place != node.place);
        let callers: Vec<u64> = others.chain([WORKERS]).collect();
        let set = |half_open| {
            for from in &callers {
                self.cluster.roads.change(*from, node.place, |road| road.half_open = half_open);
            }
        };
        set(true);
        let killed = body.kill();
        sleep(draw.hold).await;
        back_up(&mut body);
        set(false);
        killed.then(|| (vec![id], format!("leader {id} killed, its connections stay open {:?}", draw.hold)))
    }

    async fn answers(&self, mut draw: Draw) -> Done {
        let all = draw.dice.percent(40);
        let one = self.any(&mut draw.dice).place;
        let nodes = self.cluster.members().into_iter().filter(|node| all || node.place == one);
        let (ids, places): (Vec<u64>, Vec<u64>) = nodes.map(|node| (node.id(), node.place)).unzip();
        if places.is_empty() {
            return None;
        }
        let set = |lost| {
            for place in &places {
                self.cluster.roads.change(WORKERS, *place, |road| road.answers_lost = lost);
            }
        };
        set(true);
        sleep(draw.hold).await;
        set(false);
        let what = format!("answers of {} to workers lost for {:?}", names(&ids), draw.hold);
        Some((ids, what))
    }

    fn clock(&self, kind: Kind, mut draw: Draw) -> Done {
        let node = self.any(&mut draw.dice);
        let mut body = node.try_hold()?;
        if !matches!(body.clock, super::clocks::ClockFace::Rated { .. }) {
            return None;
        }
        let ppm = match (kind, draw.dice.below(3)) {
            (Kind::ClockFast, _) => draw.dice.between(1_010_000, 2_000_000),
            (_, 0) => draw.dice.between(500_000, 999_000),
            (_, 1) => draw.dice.between(999_500, 1_000_500),
            _ => *draw.dice.pick(&[999_500, 1_000_500, 500_000]),
        };
        body.kill();
        body.clock.set_rate(ppm);
        back_up(&mut body);
        let id = body.id();
        Some((vec![id], format!("clocks of node {id} at {}.{:06}", ppm / 1_000_000, ppm % 1_000_000)))
    }

    async fn wall(&self, mut draw: Draw) -> Done {
        let stepped = |body: &Body| match &body.clock {
            super::clocks::ClockFace::Wall { file, .. } => Some(file.clone()),
            _ => None,
        };
        let mut nodes = self.cluster.nodes.iter();
        let (node, file) = nodes.find_map(|node| Some((node.id(), stepped(&*node.try_hold()?)?)))?;
        let hours = draw.dice.between(1, 2_000);
        let sign = if draw.dice.percent(50) { '+' } else { '-' };
        std::fs::write(&file, format!("{sign}{hours}h\n")).ok()?;
        sleep(draw.hold).await;
        std::fs::write(&file, "+0\n").ok()?;
        Some((vec![node], format!("wall clock of node {node} {sign}{hours} h for {:?}", draw.hold)))
    }

    async fn slow_disk(&self, mut draw: Draw) -> Done {
        let node = self.mostly_leader(&mut draw.dice);
        let delay_ms = draw.dice.between(100, 2_000);
        let (id, pid) = node.try_hold().and_then(|body| Some((body.id(), body.pid()?)))?;
        let slow = disk::Injection::slow(pid, delay_ms).await?;
        sleep(draw.hold).await;
        slow.end().await;
        Some((vec![id], format!("syncs of node {id} take {delay_ms} ms more for {:?}", draw.hold)))
    }

    async fn disk_error(&self, mut draw: Draw) -> Done {
        let node = self.mostly_leader(&mut draw.dice);
        let mut body = node.try_hold()?;
        // A tracer that ends at once could not attach, or the node it was attached to has stopped already.
        let broken = disk::Injection::error(body.pid()?).await;
        let stopped = if broken.is_some() { ends(&mut body).await } else { !body.is_running() };
        if let Some(broken) = broken {
            broken.end().await;
        }
        // If it has not stopped, no sync happened in all that time, or it is still at it: it must not end later, with nobody there
        // who starts it again.
        body.kill();
        sleep(draw.hold).await;
        back_up(&mut body);
        let id = body.id();
        stopped
            .then(|| (vec![id], format!("a sync of node {id} failed: it stopped, and is back after {:?}", draw.hold)))
    }

    async fn power(&self, mut draw: Draw) -> Done {
        let count = match draw.dice.below(3) {
            0 => 1,
            1 => 2,
            _ => self.cluster.members().len(),
        };
        let (ids, mut bodies) = self.hold_some(&mut draw.dice, count).await;
        // Without power nobody says anything: file systems that are shut down under a process tell it of syncs that they did not do.
        for body in &bodies {
            body.freeze().await;
        }
        let cut = |body: &OwnedMutexGuard<Body>| body.volume.as_ref().is_some_and(|volume| volume.cut().is_ok());
        let cuts = bodies.iter().filter(|body| cut(body)).count();
        sleep(draw.hold).await;
        for body in &mut bodies {
            body.kill();
        }
        let restored = tokio::task::spawn_blocking(move || {
            for body in &mut bodies {
                // A node without its file system must not start: it would find an empty directory.
                body.volume.as_mut().map_or(Ok(()), Volume::restore)?;
                back_up(body);
            }
            Ok::<(), std::io::Error>(())
        });
        if let Err(error) = restored.await.ok()? {
            return Some((ids, format!("the power does not come back: {error}")));
        }
        (cuts == ids.len()).then(|| {
            let what = format!("power of {} cut", names(&ids));
            (ids, what)
        })
    }

    async fn failpoint(&self, mut draw: Draw) -> Done {
        let node = self.any(&mut draw.dice);
        let mut body = node.try_hold()?;
        // Many points are met only by a leader, or hardly ever; those that every node meets all the time come more often.
        let often = draw.dice.percent(60);
        let point = if often { *draw.dice.pick(&FREQUENT) } else { *draw.dice.pick(&failpoint::POINTS) };
        // Rare points are met at once, frequent ones after a while.
        let skip = if FREQUENT.contains(&point) { draw.dice.between(5, 150) } else { 0 };
        body.kill();
        body.failpoints = Some(format!("{point}={skip}*off->return"));
        body.spawn().ok()?;
        let died = ends(&mut body).await;
        body.kill();
        sleep(draw.hold).await;
        back_up(&mut body);
        let id = body.id();
        died.then(|| (vec![id], format!("node {id} died at `{point}`")))
    }

    async fn members(&self, mut draw: Draw) -> Done {
        Operator::of(&self.cluster, self.voters)?.step(&mut draw.dice).await
    }
}

/// Whom it struck and what it was; `None` if nothing was injected.
type Done = Option<(Vec<u64>, String)>;

fn back_up(body: &mut OwnedMutexGuard<Body>) {
    if let Err(error) = body.spawn() {
        tracing::error!(%error, "a node does not start again");
    }
}

/// Waits for a process to end by itself.
async fn ends(body: &mut OwnedMutexGuard<Body>) -> bool {
    let until = crate::clock::Deadline::after(DOWN_WITHIN);
    while !until.passed() {
        if !body.is_running() {
            return true;
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

fn names(ids: &[u64]) -> String {
    let all: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("{} {}", if ids.len() == 1 { "node" } else { "nodes" }, all.join(", "))
}
