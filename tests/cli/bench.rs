//! `quorate bench`, against the HTTP server that has no node behind it.

use super::{quorate, run};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

/// The server, which ends with its stdin.
struct Ceiling {
    child: Child,
    url: String,
}

impl Ceiling {
    fn start() -> Self {
        let mut command = quorate(&["bench-ceiling"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("an address");
        Self { child, url: format!("http://{}", line.trim()) }
    }

    fn measured(&self, more: &[&str]) -> Value {
        let ran = run(quorate(&["--json", "bench", "--nodes", &self.url, "--for", "1s"]).args(more));
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn every_way_of_asking_is_measured() {
    let ceiling = Ceiling::start();
    for more in [&["--connections", "4"] as &[_], &["--batch", "10"], &["--hot", "100", "--ids"], &["--wait", "none"]] {
        let measured = ceiling.measured(more);
        assert!(measured["granted"].as_u64().is_some_and(|granted| granted > 0), "{more:?}: {measured}");
        assert_eq!((&measured["denied"], &measured["failed"]), (&0.into(), &0.into()), "{more:?}: {measured}");
        assert_eq!(measured["seconds"].as_array().map(Vec::len), Some(1), "{more:?}: {measured}");
        assert!(measured["latency_ms"]["p50"].as_f64() <= measured["latency_ms"]["max"].as_f64(), "{measured}");
    }
}

#[test]
fn no_more_is_asked_than_the_rate_says() {
    let measured = Ceiling::start().measured(&["--rate", "50", "--connections", "2"]);
    assert!(measured["granted"].as_u64().is_some_and(|granted| (1..=51).contains(&granted)), "{measured}");
}

#[test]
fn every_key_is_asked_for_once_before_measuring() {
    let ceiling = Ceiling::start();
    let measured = ceiling.measured(&["--fill", "--keys", "2500", "--rate", "50", "--connections", "2"]);
    assert!(measured["granted"].as_u64().is_some_and(|granted| granted <= 51), "filling is not counted: {measured}");
    let ran = run(&mut quorate(&["--json", "acquire", "k", "--limit", "1/s", "--nodes", &ceiling.url]));
    let permit: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {} {}", ran.out, ran.err));
    assert!(permit["permit"].as_u64().is_some_and(|permit| (2_501..2_700).contains(&permit)), "{permit}");
}

#[test]
fn the_table_is_for_people() {
    let ceiling = Ceiling::start();
    let ran = run(&mut quorate(&["bench", "--nodes", &ceiling.url, "--for", "1s", "--connections", "2"]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("p99") && ran.out.contains("a second"), "{}", ran.out);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for wrong in [
        &["--for", "0s"] as &[_],
        &["--connections", "0"],
        &["--connections", "16385"],
        &["--keys", "0"],
        &["--hot", "101"],
        &["--batch", "1001"],
        &["--rate", "0"],
        &["--batch", "2", "--wait", "none"],
        &["--compare", "--rate", "5"],
        &["--rounds", "2"],
        &["--nodes", "https://127.0.0.1:1"],
        &["--nodes", "127.0.0.1:1"],
    ] {
        let ran = run(quorate(&["bench"]).args(wrong));
        assert_eq!(ran.code, 2, "{wrong:?}: {}", ran.err);
    }
}

#[test]
fn nobody_there_is_said() {
    let ran = run(&mut quorate(&["bench", "--nodes", "http://127.0.0.1:1", "--for", "1s"]));
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("cannot measure http://127.0.0.1:1"), "{}", ran.err);
}
