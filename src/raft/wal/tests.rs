//! The log against a model, with what power cuts and damage leave of its files.

use super::super::codec::{WireLogId, WirePayload, WireVote};
use super::super::journal::{Flushed, Journal, State, StoredEntry};
use super::super::synced::{Covered, Synced};
use super::block::{self, Changes, Salt};
use super::{open, open_files, segment};
use crate::clock::{ClockId, Reading};
use crate::limiter::{Key, Time};
use crate::state::{Batch, Command, LeaderId, Stamp};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::oneshot;

fn id(term: u64, index: u64) -> WireLogId {
    WireLogId { leader: LeaderId { term, node: 1 }, index }
}

/// An entry of about so many bytes.
fn entry(term: u64, bytes: usize) -> StoredEntry {
    let stamp = Stamp { leader: LeaderId { term, node: 1 }, time: Time(term) };
    let commands = (0..bytes / 100).map(|_| Command::Reset(Key::new(&"k".repeat(95)).unwrap())).collect();
    let obs = Reading { mono_ns: 1, raw_ns: 2, clock_id: ClockId(3) };
    StoredEntry { obs: Some(obs), payload: WirePayload::Batch(Arc::new(Batch { stamp, keys_max: 1, commands })) }
}

fn flush(log: &mut dyn Journal) {
    let (sender, receiver) = oneshot::channel();
    let covers = (Covered { vote_term: None, last: None, truncations: 0 }, Synced::default());
    log.flush(Some(Flushed::caller(sender, covers))).unwrap();
    // No runtime is here, so the thread does it.
    receiver.blocking_recv().unwrap().unwrap();
}

fn entries(log: &dyn Journal) -> Vec<(WireLogId, StoredEntry)> {
    log.read(0, u64::MAX).map(Result::unwrap).collect()
}

/// Everything that a log says of itself.
fn told(log: &dyn Journal) -> (String, Vec<(WireLogId, StoredEntry)>) {
    let State { vote, last, committed, purged, floor } = log.state();
    (format!("{vote:?} {last:?} {committed:?} {purged:?} {floor:?}"), entries(log))
}

fn salt(dir: &Path) -> Salt {
    segment::salt(dir, false).unwrap()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let numbers = segment::list(dir, super::LOCK).unwrap();
    numbers.into_iter().map(|number| segment::path(dir, number)).collect()
}

#[test]
fn what_was_flushed_is_there_again_over_many_segments() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.save_vote(WireVote { leader: LeaderId { term: 7, node: 2 }, committed: true }).unwrap();
    for index in 0..400 {
        log.append(&mut [(id(7, index), entry(7, 20_000))].into_iter()).unwrap();
        if index % 3 == 0 {
            flush(&mut *log);
        }
    }
    log.save_committed(id(7, 250)).unwrap();
    flush(&mut *log);
    assert!(files(dir.path()).len() > 3, "{:?}", files(dir.path()));
    let before = told(&*log);
    assert_eq!(before.1.len(), 400);
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(told(&*log), before);

    // Segments that a purge leaves empty go, and what is left is enough.
    log.purge(id(7, 300)).unwrap();
    flush(&mut *log);
    flush(&mut *log);
    let before = told(&*log);
    drop(log);
    assert!(segment::list(dir.path(), super::LOCK).unwrap()[0] > 1);
    let log = open(dir.path()).unwrap();
    assert_eq!(told(&*log), before);
    assert_eq!((log.state().purged, log.state().last), (Some(id(7, 300)), Some(id(7, 399))));
}

#[test]
fn a_block_larger_than_a_segment_fits() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    for index in 0..3 {
        log.append(&mut [(id(1, index), entry(1, 1_500_000))].into_iter()).unwrap();
        flush(&mut *log);
    }
    let before = told(&*log);
    drop(log);
    assert_eq!(told(&*open(dir.path()).unwrap()), before);
}

/// "Truncated entries take their sidecars with them": what was taken back does not come again, and what took its place does.
#[test]
fn entries_are_taken_back_flushed_or_not() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.append(&mut (0..5).map(|index| (id(1, index), entry(1, 100)))).unwrap();
    flush(&mut *log);
    log.append(&mut (5..9).map(|index| (id(1, index), entry(1, 100)))).unwrap();
    log.truncate(7).unwrap();
    log.append(&mut [(id(2, 7), entry(2, 300))].into_iter()).unwrap();
    flush(&mut *log);
    log.truncate(3).unwrap();
    log.append(&mut [(id(3, 3), entry(3, 200))].into_iter()).unwrap();
    flush(&mut *log);
    let before = told(&*log);
    assert_eq!(before.1.iter().map(|(id, _)| id.leader.term).collect::<Vec<_>>(), [1, 1, 1, 3]);
    drop(log);
    let mut log = open(dir.path()).unwrap();
    assert_eq!(told(&*log), before);
    assert!(log.truncate(9).is_err() && log.append(&mut [(id(3, 9), entry(3, 0))].into_iter()).is_err());
    log.save_committed(id(1, 2)).unwrap();
    assert!(log.truncate(1).is_err(), "what is committed stays");
}

#[test]
fn files_of_others_and_missing_ones_are_refused() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    for index in 0..100 {
        log.append(&mut [(id(1, index), entry(1, 20_000))].into_iter()).unwrap();
        flush(&mut *log);
    }
    drop(log);
    let all = files(dir.path());
    fs::write(dir.path().join("r-00_000.wal"), "of an older version").unwrap();
    let error = open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("r-00_000.wal is no file of this version's log"), "{error}");
    fs::remove_file(dir.path().join("r-00_000.wal")).unwrap();

    let kept = fs::read(&all[1]).unwrap();
    fs::remove_file(&all[1]).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("missing"));
    fs::write(&all[1], vec![0; kept.len()]).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("damaged"), "a file whose contents are gone");
    fs::write(&all[1], kept).unwrap();
    fs::remove_file(&all[0]).unwrap();
    assert!(open(dir.path()).is_err(), "entries that were not purged are missing");
}

#[test]
fn a_segment_that_was_begun_bears_witness_of_all_before_it() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.append(&mut [(id(1, 0), entry(1, 300))].into_iter()).unwrap();
    flush(&mut *log);
    drop(log);
    // Block 2 was the last of the first segment. It was on its way when block 3 was made, and there when that was written.
    let mut changes = Changes::default();
    changes.append(&(id(1, 2), entry(1, 300))).unwrap();
    let (block, _) = changes.into_block(salt(dir.path()), (3, 1), &State::default()).unwrap();
    let mut bytes = vec![0; 4096];
    bytes[..block.len()].copy_from_slice(&block);
    fs::write(segment::path(dir.path(), 2), bytes).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("block 2"));
}

/// Entries hold what clients say. Behind a torn end it may stand anywhere.
#[test]
fn what_a_client_says_bears_no_witness() {
    for is_ours in [false, true] {
        let dir = TempDir::new().unwrap();
        let mut log = open(dir.path()).unwrap();
        log.append(&mut [(id(1, 0), entry(1, 300))].into_iter()).unwrap();
        flush(&mut *log);
        drop(log);
        let ours = salt(dir.path());
        let used = if is_ours { ours } else { Salt(!ours.0) };
        let (block, _) = Changes::default().into_block(used, (9, 8), &State::default()).unwrap();
        let file = files(dir.path()).remove(0);
        let mut bytes = fs::read(&file).unwrap();
        bytes[8_192..8_192 + block.len()].copy_from_slice(&block);
        fs::write(&file, bytes).unwrap();
        assert_eq!(open(dir.path()).is_err(), is_ours);
    }
}

#[test]
fn a_log_without_its_salt_is_refused() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()).unwrap());
    fs::write(dir.path().join("salt"), "abc").unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("salt is not four bytes"));
    fs::remove_file(dir.path().join("salt")).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("salt is missing"));
}

/// The term of an entry says nothing about where it lies: what a snapshot purges is gone, also what a later term had put there.
#[test]
fn a_purge_past_the_end_takes_entries_of_later_terms_along() {
    let dir = TempDir::new().unwrap();
    let mut log = open(dir.path()).unwrap();
    log.append(&mut (0..5).map(|index| (id(3, index), entry(3, 100)))).unwrap();
    log.purge(id(2, 9)).unwrap();
    assert_eq!(log.state().last, Some(id(2, 9)));
    log.append(&mut [(id(4, 10), entry(4, 100))].into_iter()).unwrap();
    flush(&mut *log);
    let before = told(&*log);
    drop(log);
    assert_eq!(told(&*open(dir.path()).unwrap()), before);
}

#[test]
fn a_segment_that_lies_ready_is_not_the_log() {
    let dir = TempDir::new().unwrap();
    drop(open(dir.path()).unwrap());
    fs::write(segment::path(dir.path(), 2), vec![0; 4096]).unwrap();
    drop(open(dir.path()).unwrap());
    fs::write(segment::path(dir.path(), 2), vec![0; 4096]).unwrap();
    fs::remove_file(segment::path(dir.path(), 1)).unwrap();
    assert!(open(dir.path()).err().unwrap().to_string().contains("earlier ones are gone"));
}

#[test]
fn what_could_not_be_written_is_never_passed_over() {
    let dir = TempDir::new().unwrap();
    let mut log = open_files(dir.path()).unwrap();
    log.append(&mut [(id(1, 0), entry(1, 200_000))].into_iter()).unwrap();
    flush(&mut log);
    // The second segment is gone, and no other can be made while something else has the name for it.
    log.next.take().unwrap().finish().unwrap();
    fs::remove_file(segment::path(dir.path(), 2)).unwrap();
    fs::create_dir(dir.path().join("next.tmp")).unwrap();
    log.append(&mut [(id(1, 1), entry(1, 100_000))].into_iter()).unwrap();
    log.flush(None).unwrap_err();
    fs::remove_dir(dir.path().join("next.tmp")).unwrap();
    assert!(log.flush(None).is_err(), "the entry of the first flush is nowhere");
    drop(log);
    assert_eq!(entries(&*open(dir.path()).unwrap()).len(), 1);
}

#[test]
fn a_segment_that_is_made_ahead_is_as_large_as_any_and_whoever_waits_for_it_is_not_kept_by_rests() {
    let dir = TempDir::new().unwrap();
    let made = segment::create(dir.path(), 6).unwrap().metadata().unwrap().len();
    let ahead = segment::Ahead::begin(dir.path(), 7).unwrap();
    ahead.hurry();
    assert_eq!(ahead.finish().unwrap().metadata().unwrap().len(), made);
    assert_eq!(segment::list(dir.path(), super::LOCK).unwrap(), [6, 7]);
}

#[test]
fn a_segment_that_could_not_be_made_ahead_is_made_when_it_is_needed() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("next.tmp")).unwrap();
    assert!(open(dir.path()).is_err(), "not even the first");
    fs::remove_dir(dir.path().join("next.tmp")).unwrap();
    let mut log = open_files(dir.path()).unwrap();
    fs::create_dir(dir.path().join("next.tmp")).unwrap();
    log.append(&mut [(id(1, 0), entry(1, 200_000))].into_iter()).unwrap();
    flush(&mut log);
    while !log.next.as_ref().unwrap().is_finished() {
        std::thread::yield_now();
    }
    fs::remove_dir(dir.path().join("next.tmp")).unwrap();
    log.append(&mut [(id(1, 1), entry(1, 100_000))].into_iter()).unwrap();
    flush(&mut log);
    assert_eq!(log.segments, [1, 2]);
}

#[test]
fn what_is_taken_back_keeps_its_segments_until_that_is_written() {
    let dir = TempDir::new().unwrap();
    let mut log = open_files(dir.path()).unwrap();
    log.append(&mut (0..5).map(|index| (id(1, index), entry(1, 100)))).unwrap();
    log.purge(id(1, 2)).unwrap();
    let purge = log.purge.unwrap();
    log.truncate(3).unwrap();
    assert_eq!(log.purge, Some(purge));
    log.append(&mut [(id(2, 3), entry(2, 100))].into_iter()).unwrap();
    log.submit(None).unwrap();
    log.truncate(3).unwrap();
    assert_eq!(log.purge, Some(purge + 1), "removal waits for the block with the truncation");
}

#[test]
fn segments_go_oldest_first_and_stragglers_too() {
    let dir = TempDir::new().unwrap();
    for number in 1..=6 {
        fs::write(segment::path(dir.path(), number), "").unwrap();
    }
    segment::remove_before(dir.path(), 3).unwrap();
    assert_eq!(segment::list(dir.path(), super::LOCK).unwrap(), [3, 4, 5, 6]);
    // One of the removed is there again, as if it could not have been removed.
    fs::write(segment::path(dir.path(), 2), "").unwrap();
    segment::remove_before(dir.path(), 5).unwrap();
    assert_eq!(segment::list(dir.path(), super::LOCK).unwrap(), [5, 6]);
}

#[test]
fn a_file_that_ends_in_what_fills_a_block_up_goes_on_behind_it() {
    let dir = TempDir::new().unwrap();
    for shorter in 0..8 {
        let mut log = open(dir.path()).unwrap();
        let next = entries(&*log).len() as u64;
        // Blocks of different lengths, so that some are filled up.
        log.append(&mut [(id(next + 1, next), entry(1, 100 * (usize::try_from(next).unwrap() + 1)))].into_iter())
            .unwrap();
        flush(&mut *log);
        drop(log);
        let file = files(dir.path()).remove(0);
        let bytes = fs::read(&file).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        fs::write(&file, &bytes[..(used + shorter).min(used.next_multiple_of(8))]).unwrap();
        assert_eq!(entries(&*open(dir.path()).unwrap()).len() as u64, next + 1);
    }
}

/// What a power cut may leave of blocks that were written and not synced: any of their sectors. The ones before it are as they were.
fn torn(kept: &[u8], lost_from: usize, which: u64) -> Vec<u8> {
    let mut bytes = kept.to_vec();
    let mut random = which | 1;
    for (number, sector) in bytes.chunks_mut(512).enumerate() {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        if random >> 63 == 1 {
            let from = lost_from.saturating_sub(number * 512).min(sector.len());
            sector[from..].fill(0);
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// P4: "Nothing lost": whatever of the unsynced blocks a power cut leaves, every synced one is read, and of the others a prefix.
    /// The log goes on after it, and after the next one.
    #[test]
    fn a_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest(
        sizes in prop::collection::vec(0_usize..3_000, 1..12),
        synced in 0_usize..12,
        which in any::<u64>(),
    ) {
        let dir = TempDir::new().unwrap();
        drop(open(dir.path()).unwrap());
        let file = files(dir.path()).remove(0);
        let mut bytes = fs::read(&file).unwrap();
        let (mut state, mut offset, mut lost_from) = (State::default(), 0, 0);
        let synced = synced.min(sizes.len());
        for (at, size) in sizes.iter().enumerate() {
            let mut changes = Changes::default();
            let number = at as u64 + 1;
            state.last = Some(id(1, at as u64));
            changes.append(&(id(1, at as u64), entry(1, *size))).unwrap();
            // The unsynced ones were made while the ones before them were on their way.
            let unsynced = (number, (at as u64).min(synced as u64));
            let (block, _) = changes.into_block(salt(dir.path()), unsynced, &state).unwrap();
            bytes[offset..offset + block.len()].copy_from_slice(&block);
            offset += block.len();
            if at + 1 == synced {
                lost_from = offset;
            }
        }
        fs::write(&file, torn(&bytes, lost_from, which)).unwrap();
        let mut log = open(dir.path()).unwrap();
        let found = entries(&*log);
        prop_assert!(found.len() >= synced, "{} of {synced}", found.len());
        for (at, (found, (_, said))) in found.iter().map(|(id, _)| id.index).zip(&found).enumerate() {
            prop_assert_eq!((found, said), (at as u64, &entry(1, sizes[at])));
        }
        let next = found.len() as u64;
        log.append(&mut [(id(2, next), entry(2, 700))].into_iter()).unwrap();
        flush(&mut *log);
        let before = told(&*log);
        drop(log);
        prop_assert_eq!(told(&*open(dir.path()).unwrap()), before);
    }

    /// "A bad checksum is tolerated only at the very tail": a damaged block that a later one has seen on the disk is refused.
    #[test]
    fn damage_before_the_last_block_is_refused(count in 3_u64..9, at in any::<prop::sample::Index>(), with in 1_u8..=255) {
        let dir = TempDir::new().unwrap();
        let mut log = open(dir.path()).unwrap();
        for index in 0..count {
            log.append(&mut [(id(1, index), entry(1, 300))].into_iter()).unwrap();
            flush(&mut *log);
        }
        drop(log);
        let file = files(dir.path()).remove(0);
        let mut bytes = fs::read(&file).unwrap();
        let mut last = 0;
        let head = |at: usize| block::head(salt(dir.path()), &bytes[at..]);
        while let Some(next) = head(last).map(|head| last + head.block_bytes()).filter(|next| head(*next).is_some()) {
            last = next;
        }
        bytes[at.index(last)] ^= with;
        fs::write(&file, &bytes).unwrap();
        prop_assert!(open(dir.path()).is_err());
        prop_assert_eq!(fs::read(&file).unwrap(), bytes, "what is refused is left as it is");
    }

    #[test]
    fn nonsense_is_no_block_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(block::whole(Salt(7), &bytes).is_none());
        let mut state = State::default();
        let _ = block::read(&bytes, &mut state, &mut |_, _| Ok(()));
        let _ = block::entry_at(&bytes, 3);
    }
}
