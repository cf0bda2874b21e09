//! Kills, pauses, partitions, delays, lost answers, clocks that run wrong and members that come and go, several at once, in one
//! history; and disks, wall clocks and points in the code in another. A run of which any kind is missing fails.

use super::kept::Kept;
use quorate::chaos::{self, Kind, Plan, Progress, Report, Tools};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A figure from the environment, or as it is.
pub(crate) fn figure(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// One run at a time: each wants the whole machine.
pub(crate) static STAGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Says in a visible line what is not injected here. Where nothing may be skipped (`NO_SKIP=1`, as in CI), it fails for what
/// could have been installed; root cannot be.
pub(crate) fn must_have(kinds: &[Kind]) {
    let tools = Tools::find();
    for (kind, why) in kinds.iter().filter_map(|kind| Some((kind, tools.missing(*kind)?))) {
        println!("SKIPPED {kind}: {why}");
        eprintln!("SKIPPED {kind}: {why}");
        let may = std::env::var_os("NO_SKIP").is_none() || !why.contains("installed");
        assert!(may, "{kind} must not be skipped: {why}");
    }
}

pub(crate) fn plan(dir: &Path, faults: &[Kind]) -> Plan {
    Plan {
        program: PathBuf::from(env!("CARGO_BIN_EXE_quorate")),
        out: dir.to_owned(),
        duration: Duration::from_secs(figure("SECONDS", 45)),
        seed: figure("SEED", 1),
        faults: faults.to_vec(),
        nodes: 3,
        workers: 64,
        processes: 2,
        hold_max: Duration::from_secs(3),
        at_least: BTreeMap::new(),
        answers_at_least: 0,
        floor_per_second: 20,
        node_args: Vec::new(),
    }
}

pub(crate) async fn judged(plan: &Plan) -> Report {
    let _alone = STAGE.lock().await;
    let report = chaos::run(plan, &mut Progress::on_stderr()).await.expect("a run");
    report.write(&plan.out).expect("a report");
    println!("seed {}\n{}", plan.seed, report.summary());
    assert!(report.held, "seed {}: see {}\n{}", plan.seed, plan.out.display(), report.summary());
    report
}

/// "≥ 20 leader kills in one history, ≥ 20,000 operations in one linearizability check, ≥ 10 pauses and clock-rate faults."
#[tokio::test(flavor = "multi_thread")]
async fn many_faults_at_once() {
    let faults = [
        Kind::Kill,
        Kind::Crash,
        Kind::Pause,
        Kind::Partition,
        Kind::Delay,
        Kind::HalfOpen,
        Kind::Answers,
        Kind::Clock,
        Kind::Members,
    ];
    must_have(&faults);
    let dir = Kept::new();
    let mut plan = plan(dir.path(), &faults);
    plan.at_least = BTreeMap::from([(Kind::Kill, 20), (Kind::Pause, 10), (Kind::Clock, 10), (Kind::Members, 4)]);
    plan.answers_at_least = 20_000;
    let report = judged(&plan).await;
    assert!(report.load.operations >= 20_000, "{} operations", report.load.operations);
    each_was_injected(&report, &faults);
}

/// "Stalling and failing syncs, wall clocks that jump, death at points in the code", each at least once.
#[tokio::test(flavor = "multi_thread")]
async fn disks_walls_and_points() {
    let faults = [Kind::Wall, Kind::SlowDisk, Kind::DiskError, Kind::Failpoint];
    must_have(&faults);
    let dir = Kept::new();
    let mut plan = plan(dir.path(), &faults);
    plan.duration = Duration::from_secs(8);
    plan.node_args = ["--snapshot-every", "100", "--log-keep", "100"].map(str::to_owned).into();
    let report = judged(&plan).await;
    each_was_injected(&report, &faults);
}

/// What is possible here, in any case.
fn each_was_injected(report: &Report, faults: &[Kind]) {
    let tools = Tools::find();
    for kind in faults.iter().filter(|kind| tools.missing(**kind).is_none()) {
        assert!(report.faults.get(kind.name()).is_some_and(|count| *count >= 1), "{kind}: {:?}", report.faults);
    }
}

/// "A run that injected nothing" has no verdict, and a directory with a run in it is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_to_inject_is_no_run() {
    let dir = Kept::new();
    let refused = async |plan: &Plan| chaos::run(plan, &mut Progress::nowhere()).await.map(|_| ()).unwrap_err();
    let alone = Plan { nodes: 1, ..plan(dir.path(), &[Kind::Partition, Kind::Delay]) };
    assert!(refused(&alone).await.contains("nothing would be injected"));
    let short = Plan { duration: Duration::ZERO, ..plan(dir.path(), &[Kind::Kill]) };
    assert!(refused(&short).await.contains("nothing would be injected"));
    std::fs::write(dir.path().join("workers0.jsonl"), "").unwrap();
    assert!(refused(&plan(dir.path(), &[Kind::Kill])).await.contains("is not empty"));
}
