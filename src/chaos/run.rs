//! A run from its first process to its verdict.
//!
//! Warm up, so that load is known to flow; faults, two to four at once; everything put right; serving again within ten
//! seconds; workers stopped; every node in the same state; then the histories are judged.

use super::clocks::ClockFace;
use super::cluster::{Cluster, Recipe};
use super::fault::Kind;
use super::floor;
use super::helpers::{self, Target, Workers};
use super::history::{self, Arrival, Event};
use super::inject::{Injected, Injector};
use super::judge::{self, Finding, Starts};
use super::leader::Leaders;
use super::load::{self, Promise};
use super::operations::Operations;
use super::power::{self, Volume};
use super::replays::Replays;
use super::report::{self, Report};
use super::ticks::{now_ns, ns};
use super::tools::Tools;
use super::windows;
use crate::api::{AcquireRequest, DigestResponse, Wait};
use crate::clock::Deadline;
use crate::limits::DRIFT_PPM;
use crate::progress::Progress;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long all nodes get to form a cluster.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Load before the first fault; longer if the workers take their time to start.
const WARM_UP: Duration = Duration::from_secs(2);
const WARM_UP_MAX: Duration = Duration::from_secs(20);
/// Invariant V.
const SERVES_WITHIN: Duration = Duration::from_secs(10);
/// How long the nodes get to come to the same state once nothing is asked of them.
const EQUAL_WITHIN: Duration = Duration::from_secs(30);
/// A run that has not injected enough goes on for so many times its length, or so long if that is longer.
const STRETCH: u32 = 3;
const STRETCH_MIN: Duration = Duration::from_secs(60);
/// Clocks that run fast on purpose are at most that fast, in parts per million.
const FASTEST_PPM: u64 = 2_001_000;

/// What a run is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program that nodes, workers and target run.
    pub program: PathBuf,
    /// Histories, logs, data and the report go here. Nothing may be in it.
    pub out: PathBuf,
    /// How long faults are injected.
    pub duration: Duration,
    /// Decides everything that can be decided.
    pub seed: u64,
    /// What is injected.
    pub faults: Vec<Kind>,
    /// Nodes.
    pub nodes: u64,
    /// Workers in all.
    pub workers: u32,
    /// Processes they are in.
    pub processes: u32,
    /// Longest pause, partition and so on.
    pub hold_max: Duration,
    /// Goes on until so many were injected, within reason; at least one of each kind.
    pub at_least: BTreeMap<Kind, u64>,
    /// Goes on until there were so many answers, within reason.
    pub answers_at_least: u64,
    /// Answers a second, before and during the faults, below which a run proves nothing.
    pub floor_per_second: u64,
    /// More arguments for every node.
    pub node_args: Vec<String>,
}

/// Runs a plan. An error means that there is nothing to judge.
pub async fn run(plan: &Plan, progress: &mut Progress) -> Result<Report, String> {
    run_until(plan, progress, std::future::pending()).await
}

/// Runs a plan unless `interrupted` comes true before there is something to judge: then everything is put right and taken down, and
/// there is no verdict.
pub async fn run_until(
    plan: &Plan,
    progress: &mut Progress,
    interrupted: impl Future<Output = &'static str>,
) -> Result<Report, String> {
    let tools = Tools::find();
    let (kinds, missing) = possible(plan, &tools);
    for line in &missing {
        progress.say(&format!("not injected: {line}"));
    }
    if kinds.is_empty() || plan.duration.is_zero() {
        return Err("nothing would be injected, and a run without faults proves nothing".to_owned());
    }
    let unusable = |error: io::Error| format!("cannot use {}: {error}", plan.out.display());
    power::remove_left_behind(plan.out.parent().unwrap_or(Path::new(".")));
    std::fs::create_dir_all(&plan.out).map_err(unusable)?;
    if std::fs::read_dir(&plan.out).map_err(unusable)?.next().is_some() {
        return Err(format!(
            "{} is not empty: the histories of two runs would mix; take another directory (--out) or remove it",
            plan.out.display()
        ));
    }
    let _running = power::Running::note(&plan.out).map_err(unusable)?;
    let mut interrupted = pin!(interrupted);
    let no_verdict = |by: &str| format!("interrupted by {by}: everything was taken down, there is no verdict");
    let stage = tokio::select! {
        stage = Stage::set(plan, &kinds, &tools) => stage?,
        by = &mut interrupted => return Err(no_verdict(by)),
    };
    progress.say(&format!(
        "{} nodes, {} workers in {} processes, seed {}; logs and histories in {}",
        plan.nodes,
        plan.workers,
        plan.processes,
        plan.seed,
        plan.out.display()
    ));
    let judged = tokio::select! {
        judged = stage.play(plan, &kinds, progress) => judged,
        // What was under way is dropped: it lets go of its nodes, and workers and target end with it.
        by = &mut interrupted => Err(no_verdict(by)),
    };
    stage.cluster.stop().await;
    let (events, arrivals, scene) = judged?;
    progress.say(&format!("judging {} events", events.len()));
    let plan_of_report = plan.clone();
    tokio::task::spawn_blocking(move || verdict(&plan_of_report, &kinds, &events, &arrivals, &scene, missing))
        .await
        .map_err(|error| format!("the judge failed: {error}"))
}

/// What can be injected, and what cannot and why.
fn possible(plan: &Plan, tools: &Tools) -> (Vec<Kind>, Vec<String>) {
    let mut missing = Vec::new();
    let few = |kind: Kind| (plan.nodes < kind.nodes_min()).then(|| "needs at least two nodes".to_owned());
    let kinds = plan.faults.iter().copied().filter(|kind| match few(*kind).or_else(|| tools.missing(*kind)) {
        None => true,
        Some(why) => {
            missing.push(format!("{kind}: {why}"));
            false
        }
    });
    (kinds.collect(), missing)
}

/// Everything that runs.
struct Stage {
    cluster: Cluster,
    leaders: Leaders,
    injector: Injector,
}

/// What was seen besides the histories.
struct Scene {
    began_ns: u64,
    first_fault_ns: u64,
    ended_ns: u64,
    injected: Vec<Injected>,
    changes: Vec<super::leader::Change>,
    serves: Result<Duration, String>,
    equal: Result<String, String>,
    replays: Replays,
    /// What went wrong with injecting itself.
    broken: Vec<String>,
    /// Everybody who ever lived at each place.
    residents: Vec<Vec<u64>>,
}

impl Stage {
    async fn set(plan: &Plan, kinds: &[Kind], tools: &Tools) -> Result<Self, String> {
        let mut volumes: Vec<Option<Volume>> = Vec::new();
        let waiting = u64::from(kinds.contains(&Kind::Members));
        let places = plan.nodes + waiting;
        for number in 1..=places {
            let wanted = kinds.contains(&Kind::Power);
            let volume = wanted.then(|| Volume::create(&plan.out, number)).transpose();
            volumes.push(volume.map_err(|error| format!("cannot make a file system: {error}"))?);
        }
        let recipe = Recipe {
            program: &plan.program,
            dir: &plan.out,
            count: plan.nodes,
            waiting,
            seed: plan.seed,
            extra: &plan.node_args,
            clocks: faces(plan, places, kinds, tools)?,
            volumes,
        };
        let cluster = Cluster::start(recipe).await.map_err(|error| format!("cannot start the nodes: {error}"))?;
        if let Err(error) = cluster.ready(READY_WITHIN).await {
            cluster.stop().await;
            return Err(error);
        }
        let leaders = Leaders::watch(&cluster);
        let injector = Injector::new(cluster.clone(), leaders.clone(), plan.seed, plan.hold_max);
        Ok(Self { cluster, leaders, injector })
    }

    async fn play(
        &self,
        plan: &Plan,
        kinds: &[Kind],
        progress: &mut Progress,
    ) -> Result<(Vec<Event>, Vec<Arrival>, Scene), String> {
        let target = Target::start(&plan.program, &plan.out).await.map_err(|error| format!("no target: {error}"))?;
        let crew = helpers::Crew { seed: plan.seed, workers: plan.workers, processes: plan.processes };
        let mut workers = Workers::start(&plan.program, &plan.out, &self.cluster.urls(), target.address, &crew)
            .map_err(|error| format!("no workers: {error}"))?;
        let began_ns = now_ns();
        self.watch(plan, kinds, &workers, WARM_UP, began_ns, progress).await;
        let late = Deadline::after(WARM_UP_MAX);
        while workers.answers() < plan.floor_per_second * WARM_UP.as_secs() && !late.passed() {
            self.watch(plan, kinds, &workers, WARM_UP, began_ns, progress).await;
        }
        let first_fault_ns = now_ns();

        let (stop, stops) = watch::channel(false);
        let faults = self.injector.run(kinds, &stops);
        let clock = async {
            self.watch(plan, kinds, &workers, plan.duration, began_ns, progress).await;
            let stretch = Deadline::after((plan.duration * STRETCH).max(STRETCH_MIN));
            while !stretch.passed() && !self.enough(plan, kinds, &workers) {
                self.watch(plan, kinds, &workers, Duration::from_secs(1), began_ns, progress).await;
            }
            stop.send_replace(true);
        };
        let (broken, ()) = tokio::join!(faults, clock);

        let serves = self.serves(plan).await;
        self.watch(plan, kinds, &workers, Duration::from_secs(1), began_ns, progress).await;
        let ended_ns = now_ns();
        workers.stop().await;
        let events: Vec<Event> = workers.histories().map_err(|error| format!("no histories: {error}"))?;
        let replays = Replays::ask(&self.cluster, &events, plan.seed).await;
        let equal = self.equal().await;
        target.stop().await;
        let arrivals = history::read(&target.history).map_err(|error| format!("no arrivals: {error}"))?;
        let scene = Scene {
            began_ns,
            first_fault_ns,
            ended_ns,
            injected: self.injector.records(),
            changes: self.leaders.changes(),
            serves,
            equal,
            replays,
            broken,
            residents: self.cluster.residents(),
        };
        Ok((events, arrivals, scene))
    }

    fn enough(&self, plan: &Plan, kinds: &[Kind], workers: &Workers) -> bool {
        let wanted = wanted(plan, kinds);
        kinds.iter().all(|kind| self.injector.count(*kind) >= wanted.of(*kind)) && workers.answers() >= wanted.answers
    }

    /// Lets time pass and shows what happens in it.
    async fn watch(
        &self,
        plan: &Plan,
        kinds: &[Kind],
        workers: &Workers,
        span: Duration,
        began_ns: u64,
        progress: &mut Progress,
    ) {
        let until = Deadline::after(span);
        while !until.passed() {
            sleep(until.remaining().min(Duration::from_millis(500))).await;
            let seconds = now_ns().saturating_sub(began_ns) / 1_000_000_000;
            let faults: Vec<String> = kinds
                .iter()
                .map(|kind| (kind, self.injector.count(*kind)))
                .filter(|(_, count)| *count > 0)
                .map(|(kind, count)| format!("{kind} {count}"))
                .collect();
            let leader = self.leaders.current().map_or_else(|| "nobody".to_owned(), |id| id.to_string());
            progress.now(&format!(
                "{seconds:>5} s of {}  {:>8} answers  leader {leader}  {}",
                plan.duration.as_secs() + WARM_UP.as_secs(),
                workers.answers(),
                faults.join("  ")
            ));
        }
    }

    /// Invariant V: every node grants again, asked through its proxy, soon after the last fault.
    async fn serves(&self, plan: &Plan) -> Result<Duration, String> {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(3)).build().map_err(|e| e.to_string())?;
        let began = now_ns();
        // Who belongs to the cluster by now; where nobody came or went, that is everybody.
        if plan.faults.contains(&Kind::Members) && self.cluster.agreed(SERVES_WITHIN).await.is_none() {
            return Err("most nodes do not agree on who belongs to the cluster".to_owned());
        }
        for node in self.cluster.members() {
            for attempt in 0_u64.. {
                let request = AcquireRequest {
                    limit: Some(crate::api::Limit::Text("1000/s".to_owned())),
                    request_id: Some(format!("serves-{}-{}-{attempt}", plan.seed, node.id())),
                    wait: Wait::Client,
                    ..AcquireRequest::new("serves")
                };
                let answer = http.post(format!("{}/acquire", node.url)).json(&request).send().await;
                if answer.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                if now_ns() > began + ns(SERVES_WITHIN) {
                    return Err(format!("node {} does not serve; its log is {}", node.id(), node.log().display()));
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(Duration::from_nanos(now_ns() - began))
    }

    /// Invariant E.
    async fn equal(&self) -> Result<String, String> {
        let until = Deadline::after(EQUAL_WITHIN);
        loop {
            let mut digests: Vec<(u64, DigestResponse)> = Vec::new();
            for node in self.cluster.members() {
                digests.extend(self.cluster.get(node, "/cluster/digest").await.map(|digest| (node.id(), digest)));
            }
            let all = digests.len() == self.cluster.members().len();
            if all && digests.iter().all(|(_, digest)| digest.applied == digests[0].1.applied) {
                let same = digests.iter().all(|(_, digest)| digest.digest == digests[0].1.digest);
                let seen = format!("{} nodes at entry {}", digests.len(), digests[0].1.applied);
                return if same { Ok(seen) } else { Err(format!("states differ: {digests:?}")) };
            }
            if until.passed() {
                return Err(format!("nodes do not come to the same entry: {digests:?}"));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Plan {
    /// The line that runs it again, in a directory below this one's.
    fn again(&self) -> String {
        let names: Vec<_> = self.faults.iter().map(|kind| kind.name()).collect();
        format!(
            "quorate chaos --for {}ms --seed {} --nodes {} --workers {} --processes {} --longest {}ms --floor {} --faults {} --out {}",
            self.duration.as_millis(),
            self.seed,
            self.nodes,
            self.workers,
            self.processes,
            self.hold_max.as_millis(),
            self.floor_per_second,
            names.join(","),
            self.out.join("again").display()
        )
    }
}

/// How each node sees time: with wall clocks to step and rates to change, the first node gets the former.
fn faces(plan: &Plan, places: u64, kinds: &[Kind], tools: &Tools) -> Result<Vec<ClockFace>, String> {
    let (rates, wall) = (kinds.contains(&Kind::Clock) || kinds.contains(&Kind::ClockFast), kinds.contains(&Kind::Wall));
    let Some(library) = tools.faketime.as_deref().filter(|_| rates || wall) else {
        return Ok((1..=places).map(|_| ClockFace::True).collect());
    };
    let face = |id: u64| {
        if wall && (!rates || id == 1) {
            let file = plan.out.join(format!("wall{id}"));
            std::fs::write(&file, "+0\n").map_err(|error| format!("{}: {error}", file.display()))?;
            return Ok(ClockFace::Wall { library: library.to_owned(), file });
        }
        Ok(ClockFace::rated(library))
    };
    (1..=places).map(face).collect()
}

const fn wanted<'a>(plan: &'a Plan, kinds: &'a [Kind]) -> floor::Wanted<'a> {
    floor::Wanted { kinds, at_least: &plan.at_least, answers: plan.answers_at_least, per_second: plan.floor_per_second }
}

fn verdict(
    plan: &Plan,
    kinds: &[Kind],
    events: &[Event],
    arrivals: &[Arrival],
    scene: &Scene,
    missing: Vec<String>,
) -> Report {
    let keys = load::keys();
    let fast = scene.injected.iter().any(|fault| fault.kind == Kind::ClockFast.name());
    let rate_ppm = if fast { FASTEST_PPM } else { 1_000_000 + DRIFT_PPM };
    let operations = Operations::sort_out(events, &keys, rate_ppm);
    let starts = Starts::look(arrivals, &keys);
    let spaced = if fast { Err("clocks ran faster than is promised to be survived") } else { Ok(()) };
    let seconds = report::millis(scene.ended_ns - scene.began_ns) / 1_000.0;
    let of = |test: fn(&Promise) -> bool| keys.iter().filter(|key| test(&key.promise)).count();
    let spaced_keys = of(|promise| matches!(promise, Promise::Spacing { .. }));
    let windows = of(|promise| matches!(promise, Promise::Window { .. }));
    let one = |result: &Result<String, String>| result.clone().err().into_iter().collect::<Vec<_>>();
    let serves =
        scene.serves.clone().map(|after| format!("every node granted {} ms after the last fault", after.as_millis()));
    let findings = vec![
        judge::linearizable(&operations, &keys),
        starts.finding(spaced).on_at_least(spaced_keys, starts.pairs, "pairs of spaced starts"),
        windows::finding(&operations, &keys, windows),
        judge::unique(&operations, &starts, &scene.replays),
        judge::monotone(&operations.granted, rate_ppm).on_at_least(
            operations.spaced.div_ceil(2).max(1),
            operations.stamps(),
            "stamps",
        ),
        Finding::new(
            'E',
            "all nodes in the same state at the same entry",
            &one(&scene.equal),
            scene.equal.clone().unwrap_or_default(),
        ),
        Finding::new(
            'V',
            "serves again within ten seconds of the last fault",
            &one(&serves),
            serves.clone().unwrap_or_default(),
        ),
        floor::finding(
            &wanted(plan, kinds),
            &floor::Seen {
                faults_from_ns: scene.first_fault_ns,
                injected: &scene.injected,
                answers_ns: floor::answers_ns(events),
                broken: &scene.broken,
            },
        ),
    ];
    let mut faults: BTreeMap<&'static str, u64> = BTreeMap::new();
    for fault in &scene.injected {
        *faults.entry(fault.kind).or_default() += 1;
    }
    Report {
        held: findings.iter().all(|finding| finding.held != Some(false)),
        seed: plan.seed,
        again: plan.again(),
        nodes: plan.nodes,
        residents: scene.residents.clone(),
        workers: (plan.workers, plan.processes),
        seconds,
        faults,
        missing,
        load: report::load(&operations, seconds),
        failover: report::failovers(&operations, &scene.injected),
        series: report::series(events, scene.began_ns, scene.ended_ns),
        timeline: report::timeline(&scene.injected, scene.began_ns),
        leaders: report::leaders(&scene.changes, scene.began_ns),
        starts,
        findings,
    }
}
