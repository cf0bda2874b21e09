//! A run from its first process to its verdict.
//!
//! Warm up, so that load is known to flow; faults, two to four at once; everything put right; serving again within ten
//! seconds; workers stopped; every node in the same state; then the histories are judged.

use super::clocks::ClockFace;
use super::cluster::{Cluster, Recipe};
use super::fault::Kind;
use super::helpers::{self, Target, Workers};
use super::history::{self, Arrival, Event, Grant, Outcome};
use super::inject::{Injected, Injector};
use super::judge::{self, Finding, Starts};
use super::leader::Leaders;
use super::load;
use super::operations::{Granted, Operations};
use super::power::Volume;
use super::report::{self, Report};
use super::ticks::{now_ns, ns};
use super::tools::Tools;
use crate::api::{AcquireRequest, AcquireResponse, DigestResponse, Millis, Wait};
use crate::clock::Deadline;
use crate::progress::Progress;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long all nodes get to form a cluster.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Load before the first fault.
const WARM_UP: Duration = Duration::from_secs(2);
/// Invariant V.
const SERVES_WITHIN: Duration = Duration::from_secs(10);
/// How long the nodes get to come to the same state once nothing is asked of them.
const EQUAL_WITHIN: Duration = Duration::from_secs(30);
/// Permits that are asked for once more at the end.
const ASKED_AGAIN: usize = 120;
/// A run that has not injected enough goes on for at most so many times its length.
const STRETCH_MAX: u32 = 4;

/// What a run is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program that nodes, workers and target run.
    pub program: PathBuf,
    /// Histories, logs, data and the report go here.
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
    /// Goes on until so many were injected, within reason.
    pub at_least: BTreeMap<Kind, u64>,
    /// Goes on until there were so many answers, within reason.
    pub answers_at_least: u64,
    /// Answers a second below which a run proves nothing.
    pub floor_per_second: u64,
    /// More arguments for every node.
    pub node_args: Vec<String>,
}

/// Runs a plan. An error means that there is nothing to judge.
pub async fn run(plan: &Plan, progress: &mut Progress) -> Result<Report, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    std::fs::create_dir_all(&plan.out).map_err(failed("cannot use the directory for the report"))?;
    let tools = Tools::find();
    let (kinds, missing) = possible(&plan.faults, &tools);
    for line in &missing {
        progress.say(&format!("not injected: {line}"));
    }
    let stage = Stage::set(plan, &kinds, &tools).await?;
    progress.say(&format!(
        "{} nodes, {} workers in {} processes, seed {}; logs and histories in {}",
        plan.nodes,
        plan.workers,
        plan.processes,
        plan.seed,
        plan.out.display()
    ));
    let judged = stage.play(plan, &kinds, progress).await;
    stage.cluster.stop().await;
    let (events, arrivals, scene) = judged?;
    progress.say(&format!("judging {} events", events.len()));
    let plan_of_report = plan.clone();
    tokio::task::spawn_blocking(move || verdict(&plan_of_report, &events, &arrivals, &scene, missing))
        .await
        .map_err(|error| format!("the judge failed: {error}"))
}

fn possible(wanted: &[Kind], tools: &Tools) -> (Vec<Kind>, Vec<String>) {
    let mut missing = Vec::new();
    let kinds = wanted.iter().copied().filter(|kind| match tools.missing(*kind) {
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
    /// What went wrong when permits were asked for once more, and how many were.
    again: (Vec<String>, usize),
}

impl Stage {
    async fn set(plan: &Plan, kinds: &[Kind], tools: &Tools) -> Result<Self, String> {
        let mut volumes: Vec<Option<Volume>> = Vec::new();
        for number in 1..=plan.nodes {
            let wanted = kinds.contains(&Kind::Power);
            let volume = wanted.then(|| Volume::create(&plan.out, number)).transpose();
            volumes.push(volume.map_err(|error| format!("cannot make a file system: {error}"))?);
        }
        let recipe = Recipe {
            program: &plan.program,
            dir: &plan.out,
            count: plan.nodes,
            seed: plan.seed,
            extra: &plan.node_args,
            clocks: faces(plan, kinds, tools)?,
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
        let first_fault_ns = now_ns();

        let (stop, stops) = watch::channel(false);
        let faults = async {
            self.injector.run(kinds, &stops).await;
        };
        let clock = async {
            self.watch(plan, kinds, &workers, plan.duration, began_ns, progress).await;
            let stretch = Deadline::after(plan.duration * (STRETCH_MAX - 1));
            while !stretch.passed() && !self.enough(plan, kinds, &workers) {
                self.watch(plan, kinds, &workers, Duration::from_secs(1), began_ns, progress).await;
            }
            stop.send_replace(true);
        };
        tokio::join!(faults, clock);

        let serves = self.serves(plan).await;
        self.watch(plan, kinds, &workers, Duration::from_secs(1), began_ns, progress).await;
        let ended_ns = now_ns();
        workers.stop().await;
        let events: Vec<Event> = workers.histories().map_err(|error| format!("no histories: {error}"))?;
        let again = self.again(&events, plan).await;
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
            again,
        };
        Ok((events, arrivals, scene))
    }

    fn enough(&self, plan: &Plan, kinds: &[Kind], workers: &Workers) -> bool {
        let wanted = plan.at_least.iter().filter(|(kind, _)| kinds.contains(kind));
        wanted.into_iter().all(|(kind, count)| self.injector.count(*kind) >= *count)
            && workers.answers() >= plan.answers_at_least
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
        for node in self.cluster.nodes.iter() {
            for attempt in 0_u64.. {
                let request = AcquireRequest {
                    limit: Some(crate::api::Limit::Text("1000/s".to_owned())),
                    request_id: Some(format!("serves-{}-{}-{attempt}", plan.seed, node.id)),
                    wait: Wait::Client,
                    ..AcquireRequest::new("serves")
                };
                let answer = http.post(format!("{}/acquire", node.url)).json(&request).send().await;
                if answer.is_ok_and(|answer| answer.status() == 200) {
                    break;
                }
                if now_ns() > began + ns(SERVES_WITHIN) {
                    return Err(format!("node {} does not serve; its log is {}", node.id, node.log.display()));
                }
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(Duration::from_nanos(now_ns() - began))
    }

    /// Asks for the last permits once more, at nodes in turn: each has to be the same.
    async fn again(&self, events: &[Event], plan: &Plan) -> (Vec<String>, usize) {
        let given_back: std::collections::HashSet<u64> = events
            .iter()
            .filter_map(|event| match event {
                Event::Release(release) => Some(release.permit),
                _ => None,
            })
            .collect();
        let mut last: BTreeMap<u64, (u16, (u32, u64), Grant)> = BTreeMap::new();
        for event in events {
            if let Event::Acquire(attempt) = event
                && let Outcome::Granted(grant) = attempt.outcome
                && !given_back.contains(&grant.permit)
            {
                last.insert(grant.permit, (attempt.key, attempt.request, grant));
            }
        }
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap_or_default();
        let keys = load::keys();
        let (mut wrong, mut asked) = (Vec::new(), 0);
        for (turn, (permit, (key, request, grant))) in last.iter().rev().take(ASKED_AGAIN).enumerate() {
            let key = &keys[usize::from(*key)];
            let node = &self.cluster.nodes[turn % self.cluster.nodes.len()];
            // The way of waiting is not part of what a request is.
            let body = AcquireRequest {
                limit: Some(key.limit()),
                max_wait_ms: Some(Millis::up_from_ns(super::worker::MAX_WAIT_US * 1_000)),
                request_id: Some(format!("{}-{}-{}", plan.seed, request.0, request.1)),
                ..AcquireRequest::new(&key.name)
            };
            let Ok(answer) = http.post(format!("{}/acquire", node.url)).json(&body).send().await else { continue };
            let status = answer.status();
            let text = answer.text().await.unwrap_or_default();
            asked += 1;
            match serde_json::from_str::<AcquireResponse>(&text) {
                Ok(same) if same.permit == *permit && same.slot_ms.micros() == grant.slot_us && same.replayed => {}
                // A permit whose window is over is remembered and refused.
                _ if status == 409 => {}
                _ => wrong.push(format!("permit {permit}, asked for again at node {}: {status} {text}", node.id)),
            }
        }
        (wrong, asked)
    }

    /// Invariant E.
    async fn equal(&self) -> Result<String, String> {
        let until = Deadline::after(EQUAL_WITHIN);
        loop {
            let mut digests: Vec<(u64, DigestResponse)> = Vec::new();
            for node in self.cluster.nodes.iter() {
                digests.extend(self.cluster.get(node, "/cluster/digest").await.map(|digest| (node.id, digest)));
            }
            let all = digests.len() == self.cluster.nodes.len();
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

/// How each node sees time: with wall clocks to step and rates to change, the first node gets the former.
fn faces(plan: &Plan, kinds: &[Kind], tools: &Tools) -> Result<Vec<ClockFace>, String> {
    let (rates, wall) = (kinds.contains(&Kind::Clock) || kinds.contains(&Kind::ClockFast), kinds.contains(&Kind::Wall));
    let Some(library) = tools.faketime.as_deref().filter(|_| rates || wall) else {
        return Ok((1..=plan.nodes).map(|_| ClockFace::True).collect());
    };
    let face = |id: u64| {
        if wall && (!rates || id == 1) {
            let file = plan.out.join(format!("wall{id}"));
            std::fs::write(&file, "+0\n").map_err(|error| format!("{}: {error}", file.display()))?;
            return Ok(ClockFace::Wall { library: library.to_owned(), file });
        }
        Ok(ClockFace::rated(library))
    };
    (1..=plan.nodes).map(face).collect()
}

fn verdict(plan: &Plan, events: &[Event], arrivals: &[Arrival], scene: &Scene, missing: Vec<String>) -> Report {
    let keys = load::keys();
    let operations = Operations::sort_out(events, &keys);
    let starts = Starts::look(arrivals, &keys);
    let fast = scene.injected.iter().any(|fault| fault.kind == Kind::ClockFast.name());
    let spaced = if fast { Err("clocks ran faster than is promised to be survived") } else { Ok(()) };
    let seconds = report::millis(scene.ended_ns - scene.began_ns) / 1_000.0;
    let (wrong_again, again) = &scene.again;
    let one = |result: &Result<String, String>| result.clone().err().into_iter().collect::<Vec<_>>();
    let serves =
        scene.serves.clone().map(|after| format!("every node granted {} ms after the last fault", after.as_millis()));
    let findings = vec![
        judge::linearizable(&operations, &keys),
        starts.finding(spaced),
        judge::unique(&operations, &starts, wrong_again, *again),
        judge::monotone(&operations.granted, if fast { 2_001_000 } else { 0 }),
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
        floor(plan, &operations.granted, &operations, scene),
    ];
    let mut faults: BTreeMap<&'static str, u64> = BTreeMap::new();
    for fault in &scene.injected {
        *faults.entry(fault.kind).or_default() += 1;
    }
    let names: Vec<_> = plan.faults.iter().map(|kind| kind.name()).collect();
    Report {
        held: findings.iter().all(|finding| finding.held != Some(false)),
        seed: plan.seed,
        again: format!(
            "quorate chaos --for {}s --seed {} --nodes {} --workers {} --faults {}",
            plan.duration.as_secs(),
            plan.seed,
            plan.nodes,
            plan.workers,
            names.join(",")
        ),
        nodes: plan.nodes,
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

/// Invariant A: load before the first fault and while faults went on. Without it a run proves nothing.
fn floor(plan: &Plan, granted: &[Granted], operations: &Operations, scene: &Scene) -> Finding {
    let seconds = |from: u64, to: u64| report::millis(to.saturating_sub(from)) / 1_000.0;
    let before = granted.iter().filter(|granted| granted.to_ns < scene.first_fault_ns).count() as u64;
    let mut bars: Vec<(u64, u64)> = scene.injected.iter().map(|fault| (fault.at_ns, fault.until_ns)).collect();
    bars.sort_unstable();
    let struck = |at: u64| {
        let end = bars.partition_point(|(from, _)| *from <= at);
        bars[..end].iter().rev().take(64).any(|(_, to)| at <= *to)
    };
    let during = granted.iter().filter(|granted| struck(granted.to_ns)).count();
    let all = report::float(operations.answered()) / seconds(scene.began_ns, scene.ended_ns).max(0.001);
    let mut wrong = Vec::new();
    let floor = report::float(plan.floor_per_second);
    if all < floor {
        wrong.push(format!("{all:.1} answers a second, the floor is {floor}"));
    }
    if before == 0 {
        wrong.push("nothing was granted before the first fault".to_owned());
    }
    if !scene.injected.is_empty() && during == 0 {
        wrong.push("nothing was granted while faults went on".to_owned());
    }
    let missed = plan.at_least.iter().filter_map(|(kind, count)| {
        let done = scene.injected.iter().filter(|fault| fault.kind == kind.name()).count() as u64;
        (done < *count).then(|| format!("{kind} {done} times, {count} were asked for"))
    });
    wrong.extend(missed);
    if operations.answered() < plan.answers_at_least {
        wrong.push(format!("{} answers, {} were asked for", operations.answered(), plan.answers_at_least));
    }
    let seen = format!("{all:.0} answers a second; {before} grants before the first fault, {during} during faults");
    Finding::new('A', "there was load before and during the faults", &wrong, seen)
}
