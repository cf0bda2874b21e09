//! P3 and P4 by way of snapshots: a node that starts from one and a node that saw the whole log are the same node. And
//! bytes that are no snapshot do no harm.

use crate::config;
use crate::ledger::{apply, bytes, fork, run};
use crate::script::{Log, logs};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use quorate::limiter::Time;
use quorate::state::{Applied, Batch, LeaderId, Machine, SnapshotError, Stamp};
use std::io::Read;

/// The first byte of a snapshot.
const FORMAT: u8 = 3;

fn applied_by(machine: &mut Machine, log: &Log, from: usize) -> Vec<Applied> {
    log.0[from..].iter().map(|entry| machine.apply(entry.leader, &entry.batch)).collect()
}

/// One thing done to good bytes.
#[derive(Debug, Clone)]
enum Damage {
    Flip {
        at: Index,
        bits: u8,
    },
    Insert {
        at: Index,
        byte: u8,
    },
    Remove {
        at: Index,
    },
    /// Only so much is left.
    Truncate {
        at: Index,
    },
    Extend(Vec<u8>),
    /// One stretch of bytes over another: lengths and values change places.
    Copy {
        from: Index,
        to: Index,
        length: usize,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        6 => (at(), 1..=255_u8).prop_map(|(at, bits)| Damage::Flip { at, bits }),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert { at, byte }),
        1 => at().prop_map(|at| Damage::Remove { at }),
        1 => at().prop_map(|at| Damage::Truncate { at }),
        1 => vec(any::<u8>(), 1..50).prop_map(Damage::Extend),
        1 => (at(), at(), 1..40_usize).prop_map(|(from, to, length)| Damage::Copy { from, to, length }),
    ]
}

impl Damage {
    /// Damages one of the `spots`.
    fn befall(&self, bytes: &mut Vec<u8>, spots: &[usize]) {
        if bytes.is_empty() {
            return;
        }
        let place = |index: &Index| spots[index.index(spots.len())].min(bytes.len() - 1);
        match self {
            Self::Flip { at, bits } => {
                let at = place(at);
                bytes[at] ^= bits;
            }
            Self::Insert { at, byte } => bytes.insert(place(at), *byte),
            Self::Remove { at } => {
                bytes.remove(place(at));
            }
            Self::Truncate { at } => bytes.truncate(place(at).max(1)),
            Self::Extend(more) => bytes.extend(more),
            Self::Copy { from, to, length } => {
                let (from, to) = (place(from), place(to));
                let length = (*length).min(bytes.len() - from.max(to));
                bytes.copy_within(from..from + length, to);
            }
        }
    }
}

/// Where damage hurts: the format byte, the head and the blocks that hold something. The thousands of empty blocks would
/// take nearly all of it otherwise.
fn spots(bytes: &[u8]) -> Vec<usize> {
    let mut spots = vec![0];
    let mut at = 1;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
        if length > 1 {
            spots.extend(at..at + 4 + length);
        }
        at += 4 + length;
    }
    spots.extend([at / 2, at - 1]);
    spots
}

/// Whatever is accepted is a state: it can be written and read like any other, and worked with.
fn accepted_only_if_whole(found: &[u8], log: &Log) -> Result<(), TestCaseError> {
    let Ok(mut machine) = Machine::read(&mut &*found) else { return Ok(()) };
    let mut twin = fork(&machine);
    prop_assert_eq!(twin.freeze().digest(), machine.freeze().digest());
    // A flipped bit may bring a state near the end of time or of numbers, where no cluster gets.
    if machine.now() < Time(u64::MAX / 2) && machine.permits() < u64::MAX / 2 {
        let applied = applied_by(&mut machine, log, 0);
        prop_assert_eq!(applied, applied_by(&mut twin, log, 0));
        prop_assert_eq!(twin.freeze().digest(), machine.freeze().digest());
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(500))]

    /// `apply(log) = apply(snapshot + rest)`, wherever the log is cut.
    #[test]
    fn a_snapshot_and_the_rest_are_the_whole_log((log, cut) in (logs(20), any::<Index>())) {
        let cut = cut.index(log.0.len() + 1);
        let mut whole = Machine::default();
        let expected = applied_by(&mut whole, &log, 0);

        let mut first = Machine::default();
        for (at, entry) in log.0[..cut].iter().enumerate() {
            apply(&mut first, at, entry);
        }
        let mut second = fork(&first);
        prop_assert_eq!(applied_by(&mut second, &log, cut), &expected[cut..]);
        prop_assert_eq!(second.freeze().digest(), whole.freeze().digest());
        prop_assert_eq!((second.keys(), second.request_ids()), (whole.keys(), whole.request_ids()));
    }

}

proptest! {
    #![proptest_config(config(400))]

    /// "The order of bytes depends on the state alone", and a view stays as it was while the machine goes on.
    #[test]
    fn bytes_are_those_of_the_state_alone((log, cut) in (logs(16), any::<Index>())) {
        let cut = cut.index(log.0.len());
        let mut machine = Machine::default();
        for (at, entry) in log.0[..cut].iter().enumerate() {
            apply(&mut machine, at, entry);
        }
        let (view, then) = (machine.freeze(), bytes(&machine));
        applied_by(&mut machine, &log, cut);
        let mut later = Vec::new();
        view.write(&mut later).unwrap();
        prop_assert!(then == later, "a view changed while the machine went on");

        let (other, _) = run(&log);
        let end = bytes(&machine);
        prop_assert!(end == bytes(&other), "one log, two states");
        prop_assert!(end == bytes(&fork(&machine)), "a state that was read back is written differently");
    }
}

proptest! {
    #![proptest_config(config(1_500))]

    /// P7, "hostile": "Nothing is trusted: every length is bounded, every name checked."
    #[test]
    fn damaged_bytes_do_no_harm((log, damages) in (logs(8), vec(damage(), 1..4))) {
        let (machine, _) = run(&log);
        let mut found = bytes(&machine);
        let spots = spots(&found);
        for one in damages {
            one.befall(&mut found, &spots);
        }
        accepted_only_if_whole(&found, &log)?;
    }

    #[test]
    fn random_bytes_do_no_harm((format, mut found) in (any::<bool>(), vec(any::<u8>(), 0..500))) {
        if format && !found.is_empty() {
            found[0] = FORMAT;
        }
        accepted_only_if_whole(&found, &Log(Vec::new()))?;
    }
}

#[test]
fn a_snapshot_that_ends_too_soon_is_refused() {
    let whole = bytes(&Machine::default());
    for length in [0, 1, 3, 5, 9, whole.len() / 2, whole.len() - 1] {
        assert!(Machine::read(&mut &whole[..length]).is_err(), "the first {length} bytes");
    }
    assert!(Machine::read(&mut whole.as_slice()).is_ok());
}

#[test]
fn a_snapshot_of_another_format_says_which() {
    let mut found = bytes(&Machine::default());
    assert_eq!(found[0], FORMAT);
    found[0] = 2;
    let error = Machine::read(&mut found.as_slice()).unwrap_err();
    assert!(matches!(error, SnapshotError::Format(2)));
    assert_eq!(error.to_string(), "snapshot format 2 is not known to this version, which reads 3");
}

/// P7: a claim costs its sender as many bytes as it costs the reader.
#[test]
fn lengths_that_lie_are_not_believed() {
    let block = |payload: &[u8]| [&u32::try_from(payload.len()).unwrap().to_le_bytes(), payload].concat();
    // now 0, permits 0, no change of rules, and four thousand million blocks of each kind; then no rules.
    let head = block(&[0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    let head = [head, block(&[0])].concat();
    let huge_vector = block(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
    let noise = std::iter::repeat_n(0xff, 100_000).collect::<Vec<_>>();
    for (what, tail) in [
        ("nothing after the head", vec![]),
        ("a block of four gigabytes", vec![0xff; 4]),
        ("a block of a gigabyte that is not there", vec![0, 0, 0, 0x40, 1, 2, 3]),
        ("a vector of more items than there are bytes", huge_vector),
        ("a block of no bytes", block(&[])),
        ("empty blocks, but too few of them", block(&[0]).repeat(10_000)),
    ] {
        let found = [&[FORMAT], head.as_slice(), &tail].concat();
        assert!(Machine::read(&mut found.as_slice()).is_err(), "{what}");
        assert!(Machine::read(&mut found.as_slice().chain(noise.as_slice())).is_err(), "{what}, and noise after it");
    }
}

/// Stands behind bytes after which nothing may be read.
struct Impatient;

impl Read for Impatient {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        panic!("a claim past all bounds is refused before its bytes are read");
    }
}

#[test]
fn a_block_past_all_bounds_is_not_even_read() {
    for claim in [u32::MAX, (1 << 30) + 1] {
        let head = [&[FORMAT], claim.to_le_bytes().as_slice()].concat();
        let mut found = head.as_slice().chain(Impatient);
        assert!(matches!(Machine::read(&mut found), Err(SnapshotError::Damaged(_))), "{claim}");
    }
}

/// A stamp from another term says nothing about time: not even the clock moves.
#[test]
fn a_stale_stamp_leaves_every_byte_as_it_was() {
    let mut machine = Machine::default();
    let before = bytes(&machine);
    let stamp = Stamp { leader: LeaderId { term: 1, node: 1 }, time: Time(5) };
    let batch = Batch { stamp, keys_max: 1, commands: Vec::new() };
    assert_eq!(machine.apply(LeaderId { term: 2, node: 1 }, &batch), Applied::StaleStamp);
    assert_eq!(machine.apply(LeaderId { term: 1, node: 2 }, &batch), Applied::StaleStamp);
    assert_eq!(bytes(&machine), before);
    assert!(matches!(machine.apply(stamp.leader, &batch), Applied::Decided { .. }));
    assert_ne!(bytes(&machine), before, "the clock is part of the state");
}
