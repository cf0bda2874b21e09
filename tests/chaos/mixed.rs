//! Kills, pauses, partitions, delays, lost answers, clocks that run wrong and members that come and go, several at once, in one
//! history.

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
static STAGE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

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
    plan.at_least = BTreeMap::from([(Kind::Kill, 20), (Kind::Pause, 10), (Kind::Members, 4)]);
    if Tools::find().missing(Kind::Clock).is_none() {
        plan.at_least.insert(Kind::Clock, 10);
    }
    plan.answers_at_least = 20_000;
    let report = judged(&plan).await;
    assert!(report.load.operations >= 20_000, "{} operations", report.load.operations);
}
