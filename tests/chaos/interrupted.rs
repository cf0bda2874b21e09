//! Runs that end before their time, and runs that nobody listens to, as the program itself.

use super::kept::Kept;
use super::mixed::STAGE;
use quorate::chaos::{Kind, Tools};
use quorate::clock::Deadline;
use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Bounds failures only.
const PATIENCE: Duration = Duration::from_secs(60);

/// SIGTERM in the middle of pauses, and of power cuts where there are any: no verdict, and nothing is left running or mounted.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_interrupted_leaves_nothing_behind() {
    let _alone = STAGE.lock().await;
    let dir = Kept::new();
    let out = dir.path().join("out");
    let faults = if Tools::find().missing(Kind::Power).is_none() { "pause,power" } else { "pause" };
    let words = dir.path().join("words");
    let mut run = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["chaos", "--for", "2m", "--workers", "16", "--seed", "3", "--faults", faults, "--out"])
        .arg(&out)
        .stdout(Stdio::null())
        .stderr(File::create(&words).expect("a file"))
        .spawn()
        .expect("the program starts");
    let name = out.display().to_string();
    let until = Deadline::after(PATIENCE);
    while !running(&name).iter().any(|(state, _)| *state == 'T') {
        assert!(!until.passed(), "no node stands still");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    let status = ended(&mut run).await;
    let words = std::fs::read_to_string(&words).expect("its words");
    assert_eq!(status.code(), Some(1), "{words}");
    assert!(words.contains("interrupted by SIGTERM"), "{words}");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("a list of mounts");
    assert!(!mounts.contains(&name), "{mounts}");
    // Who was killed is gone in a moment.
    let until = Deadline::after(PATIENCE);
    while !running(&name).is_empty() {
        assert!(!until.passed(), "left running: {:?}", running(&name));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let images = std::fs::read_dir(out.join("seed-3")).expect("its directory").flatten();
    assert_eq!(images.filter(|file| file.path().extension().is_some_and(|end| end == "img")).count(), 0);
}

/// "The verdict decides the exit code whatever happens to stdout": one worker shows too little, and nobody reads that.
#[tokio::test(flavor = "multi_thread")]
async fn a_violated_run_fails_into_a_closed_pipe() {
    let _alone = STAGE.lock().await;
    let dir = Kept::new();
    let mut run = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["chaos", "--for", "1s", "--workers", "1", "--seed", "4", "--faults", "answers", "--floor", "1"])
        .args(["--longest", "200ms", "--out"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    drop(run.stdout.take());
    assert_eq!(ended(&mut run).await.code(), Some(1));
}

async fn ended(run: &mut Child) -> ExitStatus {
    let until = Deadline::after(PATIENCE);
    loop {
        if let Some(status) = run.try_wait().expect("wait") {
            return status;
        }
        assert!(!until.passed(), "it does not end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Processes that have to do with a directory: their state and their command line.
fn running(dir: &str) -> Vec<(char, String)> {
    let processes = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    let one = |process: std::fs::DirEntry| {
        let line = std::fs::read_to_string(process.path().join("cmdline")).ok().filter(|line| line.contains(dir))?;
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        Some((state, line.replace('\0', " ")))
    };
    processes.filter_map(one).collect()
}
