//! Snapshots and logs of a disk that lies.

use super::bytes::{cases, harm, harmed};
use super::memory::bounded;
use super::one_node::one_node;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use quorate::clock::{ClockId, ManualClocks};
use quorate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
use quorate::raft::LogStore;
use quorate::state::{Acquire, Batch, Command, LeaderId, Machine, Stamp};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LEADER: LeaderId = LeaderId { term: 1, node: 1 };

/// A state with keys, permits ahead and remembered requests, as a snapshot.
fn snapshot() -> Vec<u8> {
    let mut machine = Machine::default();
    let limit = Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 10).unwrap();
    for round in 0..20_u64 {
        let commands = (0..5).map(|number| {
            let key = Key::new(&format!("key {}", (round + number) % 7)).unwrap();
            let terms = Terms { max_wait: Some(Span::from_secs(60)), ..Terms::default() };
            Command::Acquire(Acquire::one(key, Some(Limit::Spacing(limit)), 1, terms))
        });
        let stamp = Stamp { leader: LEADER, time: Time(round * 1_000_000_000) };
        machine.apply(LEADER, &Batch { stamp, keys_max: 100, commands: commands.collect() });
    }
    let mut bytes = Vec::new();
    machine.freeze().write(&mut bytes).unwrap();
    bytes
}

#[test]
fn no_snapshot_is_too_strange() {
    let good = snapshot();
    assert!(Machine::read(&mut good.as_slice()).is_ok());
    bounded(|| {
        let mut runner = TestRunner::new(cases(1_500));
        let (read, refused) = (Cell::new(0), Cell::new(0));
        runner
            .run(&harm(), |harms| {
                // Whether it means something or not: no panic, and what was read can be written again.
                match Machine::read(&mut harmed(&good, &harms).as_slice()) {
                    Ok(machine) => {
                        machine.freeze().write(&mut Vec::new()).unwrap();
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
                Ok(())
            })
            .unwrap();
        let mut random = TestRunner::new(cases(5_000));
        random
            .run(&prop::collection::vec(any::<u8>(), 0..500), |mut bytes| {
                bytes.insert(0, good[0]);
                let count = if Machine::read(&mut bytes.as_slice()).is_ok() { &read } else { &refused };
                count.set(count.get() + 1);
                Ok(())
            })
            .unwrap();
        assert!(refused > read, "random bytes are no snapshot");
    });
}

/// The files of a log with an entry or two in it.
fn log_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

/// What a node has written after some decisions.
async fn written(data: &Path) {
    let node = one_node(data, "http://127.0.0.1:1").await;
    let mut decided = 0;
    for number in 0.. {
        let key = Key::new(&format!("key {}", number % 3)).unwrap();
        let limit = Spacing::new("5/s".parse().unwrap(), Span::ZERO, 100).unwrap();
        let acquire = Acquire::one(key, Some(Limit::Spacing(limit)), 1, Terms::default());
        decided += u32::from(node.handle().decide(Command::Acquire(acquire)).await.is_ok());
        if decided == 20 {
            break;
        }
        assert!(number < 1_000, "it does not serve");
    }
    node.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_log_is_too_strange() {
    let dir = tempfile::tempdir().unwrap();
    let clocks = || Arc::new(ManualClocks::new(ClockId(1)));
    written(dir.path()).await;
    let files = log_files(&dir.path().join("log"));
    let good: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(good.iter().map(Vec::len).sum::<usize>() > 200, "there is something to harm");
    bounded(|| {
        let mut runner = TestRunner::new(cases(400));
        runner
            .run(&(any::<prop::sample::Index>(), harm()), |(which, harms)| {
                let other = tempfile::tempdir().unwrap();
                let which = which.index(files.len());
                for (number, (path, bytes)) in files.iter().zip(&good).enumerate() {
                    let bytes = if number == which { harmed(bytes, &harms) } else { bytes.clone() };
                    std::fs::write(other.path().join(path.file_name().unwrap()), bytes).unwrap();
                }
                // It opens with what is whole, or says why not. Nothing else.
                if let Err(error) = LogStore::open(other.path(), clocks()) {
                    prop_assert!(!error.to_string().is_empty());
                }
                Ok(())
            })
            .unwrap();
    });
}
