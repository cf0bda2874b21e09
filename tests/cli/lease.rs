//! `quorate acquire -- CMD` under a lease: kept while the command runs, given back when it has ended, and what happens when
//! it is lost.
//!
//! Nothing here waits for a while and hopes: commands wait for their stdin or for a file, tests for what they are told.

use super::fake::{Act, Fake, grant, problem};
use super::{Ran, quorate, run};
use quorate::api::AcquireRequest;
use quorate::client::Client;
use quorate::clock::Deadline;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Only a hang is as slow.
const PATIENCE: Duration = Duration::from_secs(60);
const LEASE: &str = r#"{"kind":"concurrency","max":1,"lease":"2s"}"#;

/// A node that grants a lease of this many milliseconds, takes it back, and does with renewals what it is told.
fn node(lease_ms: u32, renewal: impl Fn() -> Act + Send + Sync + 'static) -> Fake {
    Fake::with(move |request| match request.path.as_str() {
        "/acquire" => {
            let more = format!(r#","start_before_ms":{lease_ms},"policy":"one","policy_revision":3,"limit":{LEASE}"#);
            Act::Answer(200, Vec::new(), grant("0", &more))
        }
        "/renew" => renewal(),
        "/release" => Act::Answer(200, Vec::new(), r#"{"released":true,"key":"k","permit":7}"#.to_owned()),
        other => panic!("nobody asks for {other}"),
    })
}

/// A renewal for this many milliseconds.
fn renewed(lease_ms: u32) -> Act {
    let times = format!(r#""lease_ms":{lease_ms},"start_before_ms":{lease_ms}"#);
    Act::Answer(200, Vec::new(), format!(r#"{{"renewed":true,"key":"k","permit":7,{times}}}"#))
}

fn paths(fake: &Fake) -> Vec<String> {
    fake.requests().into_iter().map(|request| request.path).collect()
}

fn acquire(fake: &Fake, options: &[&str], script: &str) -> Command {
    let mut command = quorate(&["acquire", "k", "--nodes", &fake.url]);
    command.args(options).args(["--", "sh", "-c", script]).stdin(Stdio::piped());
    command
}

/// A run that is still going on.
struct Running {
    process: Child,
    out: Lines<BufReader<ChildStdout>>,
    err: Lines<BufReader<ChildStderr>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program runs");
        let out = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let err = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        Self { process, out, err }
    }

    fn says(&mut self, line: &str) {
        assert_eq!(self.out.next().expect("a line").expect("UTF-8"), line);
    }

    fn warns(&mut self, part: &str) {
        let line = self.err.next().expect("a line").expect("UTF-8");
        assert!(line.contains(part), "{line}");
    }

    fn signal(&self, name: &str) {
        let killed = Command::new("kill").args(["-s", name, &self.process.id().to_string()]).status();
        assert!(killed.expect("kill runs").success());
    }

    /// Lets a command end that waits for a line.
    fn go_on(&mut self) {
        self.process.stdin.take().expect("a pipe").write_all(b"go on\n").expect("it is read");
    }

    fn end(mut self) -> Ran {
        let rest = |lines: &mut dyn Iterator<Item = std::io::Result<String>>| {
            lines.map_while(Result::ok).map(|line| line + "\n").collect::<String>()
        };
        let (out, err) = (rest(&mut self.out), rest(&mut self.err));
        let status = self.process.wait().expect("it ends");
        Ran { code: status.code().expect("it exits by itself"), out, err }
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(PATIENCE);
    while !done() {
        assert!(!deadline.passed(), "{what} does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_lease_is_renewed_while_the_command_runs_and_given_back_at_its_end() {
    let fake = node(1_500, || renewed(1_500));
    let script = "echo $QUORATE_KEY $QUORATE_PERMIT; read line; exit 42";
    let mut running = Running::start(&mut acquire(&fake, &["--limit", LEASE], script));
    running.says("k 7");
    wait_until("the third renewal", || paths(&fake).iter().filter(|path| *path == "/renew").count() >= 3);
    assert!(!paths(&fake).contains(&"/release".to_owned()), "the command is still running");
    running.go_on();
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (42, ""));
    let paths = paths(&fake);
    let (renewals, around): (Vec<_>, Vec<_>) = paths.iter().partition(|path| *path == "/renew");
    assert!(renewals.len() <= 100, "about every third of the lease, not all the time: {renewals:?}");
    assert_eq!(around, ["/acquire", "/release"]);
    assert_eq!(paths.last().map(String::as_str), Some("/release"));
    assert!(fake.asked().contains(&"POST /renew HTTP/1.1\n{\"key\":\"k\",\"permit\":7}".to_owned()));
}

#[test]
fn the_lease_is_given_back_however_the_command_ended() {
    for (words, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&["sh", "-c", "kill -KILL $$"], 137),
        (&["/nonexistent/program"], 127),
        (&["/dev/null"], 126),
    ] {
        let fake = node(60_000, || renewed(60_000));
        let ran = run(quorate(&["acquire", "k", "--nodes", &fake.url, "--"]).args(words));
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{words:?}: {}", ran.err);
        assert_eq!(paths(&fake), ["/acquire", "/release"], "{words:?}");
    }
}

#[test]
fn a_lease_that_cannot_be_given_back_does_not_change_the_exit_code() {
    for (act, why) in [
        (Act::Answer(200, Vec::new(), r#"{"released":false,"key":"k","permit":7,"detail":"gone"}"#.to_owned()), "gone"),
        (problem(503, "no_quorum"), "it ends by itself in "),
    ] {
        let more = format!(r#","start_before_ms":60000,"limit":{LEASE}"#);
        let fake = Fake::new(vec![Act::Answer(200, Vec::new(), grant("0", &more)), act]);
        let ran =
            run(&mut quorate(&["acquire", "k", "--nodes", &fake.url, "--timeout", "2s", "--", "sh", "-c", "exit 9"]));
        assert_eq!(ran.code, 9, "{}", ran.err);
        assert!(ran.err.contains("permit 7 of k: not given back, ") && ran.err.contains(why), "{}", ran.err);
    }
}

/// The command says with a file that it is ready to be asked; only then the lease is over.
#[test]
fn a_command_whose_lease_is_over_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    let seen = ready.clone();
    let fake = node(1_500, move || if seen.exists() { problem(404, "no_permit") } else { renewed(1_500) });
    let script = "trap 'echo asked; exit 0' TERM; touch \"$READY\"; while :; do sleep 0.02; done";
    let ran = run(acquire(&fake, &[], script).env("READY", &ready));
    assert_eq!((ran.code, ran.out.as_str()), (1, "asked\n"), "{}", ran.err);
    assert_eq!(
        ran.err,
        "quorate: LEASE LOST: permit 7 of k: said no_permit; another may be in flight\nquorate: ending the command\n"
    );
    assert_eq!(paths(&fake).last().map(String::as_str), Some("/renew"), "there is nothing to give back");
}

#[test]
fn a_command_whose_lease_cannot_be_renewed_in_time_is_ended() {
    for (act, why) in [(Act::Silence, "no answer in time"), (problem(503, "no_quorum"), "said no_quorum")] {
        let fake = node(600, move || act.clone());
        let ran = run(&mut acquire(&fake, &[], "exec sleep 600"));
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains("LEASE LOST: permit 7 of k: it could not be renewed in time: "), "{}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
        assert_eq!(paths(&fake).last().map(String::as_str), Some("/release"), "the cluster may still hold it");
    }
}

/// One node that hangs does not cost the lease: there is time to ask another.
#[test]
fn another_node_is_asked_before_the_lease_is_lost() {
    let (hangs, answers) = (node(1_500, || Act::Silence), node(1_500, || renewed(1_500)));
    let mut running = Running::start(&mut acquire(&hangs, &["--nodes", &answers.url], "read line; exit 4"));
    wait_until("a renewal elsewhere", || paths(&answers).contains(&"/renew".to_owned()));
    running.go_on();
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (4, ""));
    assert!(paths(&hangs).contains(&"/renew".to_owned()));
}

#[test]
fn with_keep_going_a_lost_lease_is_only_a_warning() {
    let fake = node(1_500, || problem(404, "no_permit"));
    let mut running = Running::start(&mut acquire(&fake, &["--keep-going"], "read line; exit 5"));
    running.warns("LEASE LOST: permit 7 of k: said no_permit");
    running.go_on();
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (5, ""));
    assert_eq!(paths(&fake), ["/acquire", "/renew"], "it is over: nothing to renew, nothing to give back");
}

#[test]
fn with_keep_going_a_lease_that_only_seemed_lost_is_taken_up_again() {
    let mended = Arc::new(AtomicBool::new(false));
    let quorum = Arc::clone(&mended);
    let fake =
        node(600, move || if quorum.load(Ordering::SeqCst) { renewed(60_000) } else { problem(503, "no_quorum") });
    let mut running = Running::start(&mut acquire(&fake, &["--keep-going"], "read line; exit 6"));
    running.warns("LEASE LOST: permit 7 of k: it could not be renewed in time");
    mended.store(true, Ordering::SeqCst);
    running.warns("permit 7 of k: renewed after all");
    running.go_on();
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (6, ""));
    assert_eq!(paths(&fake).last().map(String::as_str), Some("/release"));
}

#[test]
fn signals_are_passed_on_and_the_lease_is_given_back() {
    let fake = node(60_000, || renewed(60_000));
    let traps = "trap 'echo hup' HUP; trap 'echo int' INT; trap 'echo usr1' USR1; trap 'exit 9' TERM; echo ready";
    let script = format!("{traps}; while :; do sleep 0.02; done");
    let mut running = Running::start(&mut acquire(&fake, &[], &script));
    running.says("ready");
    for (name, number, said) in [("HUP", 1, "hup"), ("INT", 2, "int"), ("USR1", 10, "usr1")] {
        if is_ignored(number) {
            eprintln!(
                "skipped: SIG{name} is ignored by whoever runs this test, and no shell traps what it was born to ignore"
            );
            continue;
        }
        running.signal(name);
        running.says(said);
    }
    running.signal("TERM");
    let ran = running.end();
    assert_eq!((ran.code, ran.err.as_str()), (9, ""));
    assert_eq!(paths(&fake), ["/acquire", "/release"]);
    // One that does not listen dies of it, and that is told as shells tell it.
    let mut running = Running::start(&mut acquire(&fake, &[], "echo ready; exec sleep 600"));
    running.says("ready");
    running.signal("TERM");
    assert_eq!(running.end().code, 143);
}

/// Whether this process ignores a signal, and so all that it starts.
fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

/// As under `nohup`.
#[test]
#[cfg(target_os = "linux")]
fn what_was_ignored_stays_ignored_in_the_command() {
    let fake = node(60_000, || renewed(60_000));
    let ran = run(Command::new("sh")
        .args(["-c", r#"trap '' HUP; exec "$0" acquire k --nodes "$1" -- sh -c 'kill -HUP $$; echo alive'"#])
        .args([env!("CARGO_BIN_EXE_quorate"), &fake.url]));
    assert_eq!((ran.code, ran.out.as_str()), (0, "alive\n"), "{}", ran.err);
}

#[test]
fn a_permit_that_is_no_lease_becomes_its_command() {
    let limit = r#","start_before_ms":60000,"limit":{"kind":"bucket","rate":"1/s","burst":1,"start_window":"60s"}"#;
    let fake = Fake::new(vec![Act::Answer(200, Vec::new(), grant("0", limit))]);
    let running = Running::start(&mut acquire(&fake, &[], "echo $$"));
    let pid = running.process.id();
    assert_eq!(running.end().out, format!("{pid}\n"));
    assert_eq!(paths(&fake), ["/acquire"]);
}

#[test]
fn without_a_command_a_lease_is_only_printed() {
    let fake = node(1_998, || renewed(1_998));
    let ran = run(&mut quorate(&["acquire", "k", "--limit", LEASE, "--nodes", &fake.url]));
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "permit 7 of k: start now, within 1.998 s of asking\n"),
        "{}",
        ran.err
    );
    assert_eq!(paths(&fake), ["/acquire"]);
    let ran = run(&mut quorate(&["acquire", "k", "--keep-going", "--nodes", &fake.url]));
    assert_eq!(ran.code, 2, "there is nothing that could go on: {}", ran.err);
}

/// The answer took a while: that while is gone.
#[tokio::test]
async fn the_deadline_counts_from_the_send() {
    const ON_ITS_WAY: Duration = Duration::from_millis(200);
    let fake = node(60_000, || {
        std::thread::sleep(ON_ITS_WAY);
        renewed(30_000)
    });
    let client = Client::new([&fake.url]).unwrap();
    let mut lease = client.request(AcquireRequest::new("k")).await.unwrap().lease(&client).expect("a lease");
    assert!(lease.left() > Duration::from_secs(30));
    lease.recover().await.unwrap();
    assert!(lease.left() + ON_ITS_WAY <= Duration::from_secs(30), "{:?}", lease.left());
}
