//! The whole history through its handle: queueing, dropping, closing, and databases that are damaged in every way that comes
//! to mind. Tests wait for conditions; no sleep decides an outcome.

use super::store_tests::{denied, granted, key};
use super::{Applied, Audit, Depth, History, Settings};
use crate::limiter::Time;
use crate::metric_names::{HISTORY_DROPPED_TOTAL, HISTORY_EVENTS_TOTAL, HISTORY_RESETS_TOTAL};
use metrics_exporter_prometheus::PrometheusRecorder;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const DEPTH: Depth = Depth { most: 100, seconds: 60, minutes: 60 };
/// What no test may take.
const FOREVER: Duration = Duration::from_secs(30);

fn settings(dir: &Path) -> Settings {
    Settings { dir: dir.to_owned(), bytes_max: 64 << 20, age_max: Duration::from_secs(86_400), open_within: FOREVER }
}

fn entry(index: u64) -> Applied {
    Applied { index, at: Time(index * 1_000_000_000), events: vec![granted("k", index), denied("k")] }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = crate::clock::Deadline::after(FOREVER);
    while !condition() {
        assert!(!deadline.passed(), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn permits(history: &History) -> Vec<u64> {
    let found = history.key(&key("k"), &DEPTH);
    found.map_or_else(|_| Vec::new(), |found| found.permits.iter().map(|permit| permit.permit).collect())
}

/// A recorder, and the value of one of its metrics.
fn recorder() -> (PrometheusRecorder, impl Fn(&str) -> u64) {
    let recorder = crate::metric_names::builder().unwrap().build_recorder();
    let handle = recorder.handle();
    let value = move |name: &str| {
        let text = handle.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.map_or(0, |value| value.parse().unwrap())
    };
    (recorder, value)
}

#[test]
fn events_are_recorded_in_the_background_and_survive_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("history");
    let (recorder, value) = recorder();
    let history = metrics::with_local_recorder(&recorder, || History::start(settings(&dir)));
    (1..=10).for_each(|index| history.feed(entry(index)));
    history.note(Audit::Leader { node: 2, term: 7 });
    until("they are written", || permits(&history).len() == 10);
    until("counts follow", || history.usage(None, 5).is_ok_and(|usage| usage.total.denied == 10));
    until("they are counted", || value(HISTORY_EVENTS_TOTAL) == 21);
    history.feed(entry(11));
    history.close(FOREVER);
    assert!(history.key(&key("k"), &DEPTH).is_err(), "closed");
    history.feed(entry(12));
    assert_eq!(value(HISTORY_DROPPED_TOTAL), 2);

    let again = History::start(settings(&dir));
    (1..=11).for_each(|index| again.feed(entry(index)));
    again.feed(entry(13));
    until("it goes on where it was", || permits(&again).first() == Some(&13));
    assert_eq!(permits(&again), [13, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    until("counts follow", || again.usage(None, 5).is_ok_and(|usage| usage.total.granted == 12));
    let audit = again.audit(5).unwrap();
    assert_eq!((audit.len(), &audit[0].event, audit[0].entry), (1, &Audit::Leader { node: 2, term: 7 }, None));
}

#[test]
fn what_does_not_fit_is_dropped_and_counted_and_nobody_waits() {
    let data = tempfile::tempdir().unwrap();
    let (recorder, value) = recorder();
    // Opening hangs on a lock that somebody else holds: events queue up.
    let dir = data.path().join("history");
    let holder = History::start(settings(&dir));
    until("the holder has it", || holder.audit(1).is_ok());
    let history = metrics::with_local_recorder(&recorder, || History::start(settings(&dir)));
    let many = || Applied { index: 1, at: Time(1), events: (0..1_000).map(|permit| granted("k", permit)).collect() };
    for _ in 0..100 {
        history.feed(many());
    }
    assert_eq!(value(HISTORY_DROPPED_TOTAL), 35_000, "65,536 events fit");
    assert!(history.audit(1).unwrap_err().0.contains("being opened"));
    holder.close(FOREVER);
    until("then it opens", || history.audit(1).is_ok());
    until("and goes on", || {
        history.feed(Applied { index: 2, at: Time(1), events: vec![granted("k", 5_000)] });
        permits(&history).first() == Some(&5_000)
    });
}

#[test]
fn without_a_place_to_write_the_node_serves_on() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("file");
    fs::write(&file, "").unwrap();
    let history = History::start(settings(&file.join("history")));
    until("it gives up", || history.audit(1).is_err_and(|why| !why.0.contains("being opened")));
    history.feed(entry(1));
    history.close(FOREVER);
}

/// A database with something in it.
fn filled(dir: &Path) {
    let history = History::start(settings(dir));
    (1..=200).for_each(|index| history.feed(entry(index)));
    history.note(Audit::Leader { node: 1, term: 1 });
    history.close(FOREVER);
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            files.extend(self::files(&entry));
        } else {
            files.push(entry);
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
}

/// Opens a damaged database, reads all of it, and checks that recording goes on, in it or in a fresh one. Says whether it was
/// moved aside.
fn survives(dir: &Path, what: &str) -> bool {
    let history = History::start(Settings { open_within: Duration::from_secs(2), ..settings(dir) });
    until(what, || history.audit(1).is_ok());
    let _ = history.key(&key("k"), &DEPTH);
    let _ = history.usage(None, 10);
    let _ = history.audit(100);
    let mut index = 1_000;
    until(what, || {
        index += 1;
        history.feed(entry(index));
        permits(&history).first().is_some_and(|permit| *permit > 1_000)
    });
    history.close(FOREVER);
    let beside = fs::read_dir(dir.parent().unwrap()).unwrap();
    beside.map(|entry| entry.unwrap().file_name()).any(|name| name.to_string_lossy().contains(".damaged-"))
}

#[test]
fn flipped_bytes_anywhere_leave_a_node_that_records() {
    let data = tempfile::tempdir().unwrap();
    let good = data.path().join("good");
    filled(&good);
    let (mut tried, mut aside) = (0, 0);
    for file in files(&good) {
        let bytes = fs::read(&file).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let step = (used / 12).max(1);
        let offsets = [0, 1, 3, 4, 8, 11, 16, 24, used.saturating_sub(1)];
        for at in offsets.into_iter().chain((0..used).step_by(step)).filter(|at| *at < used) {
            let case = data.path().join(format!("case-{tried}"));
            let dir = case.join("history");
            copy(&good, &dir);
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            fs::write(dir.join(file.strip_prefix(&good).unwrap()), bad).unwrap();
            aside += u32::from(survives(&dir, &format!("{} flipped at {at}", file.display())));
            fs::remove_dir_all(case).unwrap();
            tried += 1;
        }
    }
    assert!(tried > 30 && aside > 0, "{tried} flips, moved aside {aside} times");
}

#[test]
fn cut_emptied_and_foreign_files_leave_a_node_that_records() {
    let data = tempfile::tempdir().unwrap();
    let good = data.path().join("good");
    filled(&good);
    let mut tried = 0;
    for file in files(&good) {
        let bytes = fs::read(&file).unwrap();
        let foreign = b"this is not a database\n".repeat(bytes.len() / 23 + 1);
        for bad in [&[][..], &bytes[..bytes.len() / 2], &bytes[..bytes.len().saturating_sub(1)], &foreign] {
            let case = data.path().join(format!("case-{tried}"));
            let dir = case.join("history");
            copy(&good, &dir);
            fs::write(dir.join(file.strip_prefix(&good).unwrap()), bad).unwrap();
            survives(&dir, &format!("{} with {} bytes", file.display(), bad.len()));
            fs::remove_dir_all(case).unwrap();
            tried += 1;
        }
    }
}

/// Of tomorrow, and of format 1: a header of that time, and a permit.
#[test]
fn a_database_of_another_format_is_moved_aside_loudly() {
    for header in [&[99, 1, 2, 3][..], &[1, 0x80, 0xe0, 0xa5, 0xba, 0xbc, 0x31, 0, 7, 0, 0x80, 0x94, 0xeb, 0xdc, 3, 1]]
    {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("history");
        let db = sled::open(dir.join("volume-1")).unwrap();
        db.insert(super::place::Place::Header.bytes(), header).unwrap();
        db.insert([&[1, 0, 1][..], b"k", &1_u64.to_be_bytes()].concat(), &[1, 0, 0, 0, 1, 0, 0]).unwrap();
        drop(db);
        let (recorder, value) = recorder();
        let history = metrics::with_local_recorder(&recorder, || History::start(settings(&dir)));
        until("a fresh one", || history.audit(1).is_ok());
        assert_eq!(value(HISTORY_RESETS_TOTAL), 1);
        history.feed(entry(2));
        until("that records", || permits(&history) == [2]);
        history.close(FOREVER);
        let aside = fs::read_dir(data.path()).unwrap().map(|entry| entry.unwrap().path()).find(|path| *path != dir);
        assert!(aside.unwrap().join("volume-1").is_dir(), "the old one is still there for whoever wants it");
    }
}

#[test]
fn a_database_that_breaks_while_it_is_open_is_replaced() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().join("history");
    let (recorder, value) = recorder();
    let history = metrics::with_local_recorder(&recorder, || History::start(settings(&dir)));
    history.feed(entry(1));
    until("it is open", || permits(&history) == [1]);
    // What a reader finds broken, the writer replaces.
    let broken = history.read(|_| -> Result<(), _> { panic!("on purpose") });
    assert!(broken.unwrap_err().0.contains("on purpose"));
    until("a fresh one", || value(HISTORY_RESETS_TOTAL) == 1 && history.audit(1).is_ok());
    history.feed(entry(2));
    until("that records", || permits(&history) == [2]);
    history.close(FOREVER);
}
