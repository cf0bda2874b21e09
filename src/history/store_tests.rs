//! The store by itself, with the wall clock as an argument.

use super::bundle::Bundle;
use super::desk::Desk;
use super::event::{Applied, Audit, Event};
use super::place::{Kind, group_of, lines_of};
use super::record::Counts;
use super::store::{Bounds, Store, disk_bytes};
use super::view::{Depth, KeyHistory};
use crate::limiter::{Key, Time};
use std::path::Path;
use std::time::Duration;

pub(super) const DAY_MS: u64 = 86_400_000;
/// A wall clock, somewhere.
pub(super) const WALL: u64 = 1_700_000_000_000;
pub(super) const BOUNDS: Bounds = Bounds { bytes_max: 64 << 20, age_max: Duration::from_secs(7 * 86_400) };
const ALL: Depth = Depth { most: 1_000, seconds: 3_600, minutes: 10_080 };

pub(super) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(super) fn granted(name: &str, permit: u64) -> Event {
    let (policy, worker) = (Some("api".into()), Some("w-1".into()));
    Event::Granted { key: key(name), policy, permit, slot: Time(permit * 1_000), cost: 2, worker }
}

pub(super) fn denied(name: &str) -> Event {
    Event::Denied { key: key(name), policy: None, cost: 1, reason: "not_free_now", worker: None }
}

/// A store and what waits to be written to it.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) desk: Desk,
}

impl Bench {
    pub(super) fn open(dir: &Path, bounds: Bounds) -> Self {
        // sled lets go of its lock a moment after its last handle is dropped.
        let mut tries = 0;
        loop {
            match Store::open(dir, bounds, WALL) {
                Ok(store) => return Self { desk: Desk::after(store.index()), store },
                Err(error) if tries < 500 && format!("{error:?}").contains("could not acquire lock") => tries += 1,
                Err(error) => panic!("{error:?}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Takes in entries of this index, at this second.
    fn gather(&mut self, wall_ms: u64, entries: impl IntoIterator<Item = (u64, u64, Vec<Event>)>) {
        for (index, secs, events) in entries {
            self.desk.add(Applied { index, at: Time(secs * 1_000_000_000), events }, wall_ms);
        }
    }

    fn write(&mut self, wall_ms: u64, entries: impl IntoIterator<Item = (u64, u64, Vec<Event>)>) {
        self.gather(wall_ms, entries);
        self.store.write(&mut self.desk).unwrap();
    }

    fn tidy(&self, wall_ms: u64) -> u64 {
        self.store.tidy(wall_ms).unwrap()
    }

    /// Permits, releases and denials of a key in the newest volume.
    fn lines(&self, name: &str) -> (usize, usize, usize) {
        let row = self.store.row();
        let newest = row.volumes.last().unwrap();
        let mut found = (0, 0, 0);
        for kind in [Kind::Permits, Kind::Denials] {
            for value in newest.db.scan_prefix(lines_of(kind, group_of(name), None)).values() {
                for own in Bundle::read(&value.unwrap()).unwrap().keys.iter().filter(|own| own.key == name) {
                    found.0 += own.permits.len();
                    found.1 += own.released.len();
                    found.2 += own.denied.len();
                }
            }
        }
        found
    }

    fn key(&self, name: &str, wall_ms: u64) -> KeyHistory {
        self.store.key(&key(name), &ALL, wall_ms).unwrap()
    }

    fn permits(&self, name: &str, wall_ms: u64) -> Vec<u64> {
        self.key(name, wall_ms).permits.iter().map(|permit| permit.permit).collect()
    }
}

#[test]
fn what_is_recorded_is_read_back_newest_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench
        .write(WALL, [(1, 1, vec![granted("k", 1), granted("other", 2), denied("k")]), (2, 61, vec![granted("k", 3)])]);
    bench.write(WALL + 5, [(3, 61, vec![Event::Released { key: key("k"), permit: 1 }, denied("k")])]);
    let found = bench.key("k", WALL);
    let permits: Vec<_> = found.permits.iter().map(|permit| (permit.permit, permit.released)).collect();
    assert_eq!(permits, [(3, false), (1, true)]);
    let newest = &found.permits[0];
    assert_eq!((newest.slot, newest.at, newest.cost, newest.wall_ms), (Time(3_000), Time(61_000_000_000), 2, WALL));
    assert_eq!((newest.worker.as_deref(), newest.policy.as_deref()), (Some("w-1"), Some("api")));
    assert_eq!(
        found.denied.iter().map(|denied| denied.at).collect::<Vec<_>>(),
        [Time(61_000_000_000), Time(1_000_000_000)]
    );
    assert_eq!(found.denied[0].reason, "not_free_now");
    let counts = |granted, cost, denied| Counts { granted, cost, denied };
    let minutes: Vec<_> = found.minutes.iter().map(|bucket| (bucket.at.0 / 1_000_000_000, bucket.counts)).collect();
    assert_eq!(minutes, [(0, counts(1, 2, 1)), (60, counts(1, 2, 1))]);
    let seconds: Vec<_> = found.seconds.iter().map(|bucket| bucket.at.0 / 1_000_000_000).collect();
    assert_eq!((seconds, found.until), (vec![1, 61], Time(61_000_000_000)));
    let nothing = bench.key("unheard", WALL);
    assert!(nothing.permits.is_empty() && nothing.denied.is_empty() && nothing.minutes.is_empty());
    let depth = Depth { most: 1, seconds: 1, minutes: 0 };
    let few = bench.store.key(&key("k"), &depth, WALL).unwrap();
    assert_eq!((few.permits.len(), few.denied.len(), few.seconds.len(), few.minutes.len()), (1, 1, 1, 0));
}

/// The log is applied again after a restart; nothing may be counted twice.
#[test]
fn entries_that_come_again_are_skipped_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let entries = || [(5, 1, vec![granted("k", 1)]), (6, 1, vec![granted("k", 2), Event::Reset { key: key("k") }])];
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, entries());
    bench.write(WALL, entries());
    drop(bench);
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, entries());
    // A gap, as after a snapshot.
    bench.write(WALL, [(9, 2, vec![granted("k", 3)])]);
    assert_eq!(bench.permits("k", WALL), [3, 2, 1]);
    assert_eq!(bench.key("k", WALL).minutes[0].counts.granted, 3);
    assert_eq!(bench.store.audit_lines(10).unwrap().len(), 1);
}

/// "Whatever a log entry brought lies in the same batch as its index": what waited when a node died comes again, and nothing
/// of it was there before.
#[test]
fn what_was_not_written_before_a_crash_is_recorded_when_it_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    let entry = |index: u64| {
        let release = Event::Released { key: key("k"), permit: index };
        (index, 50 + 5 * index, vec![granted("k", index), denied("k"), release, Event::Reset { key: key("k") }])
    };
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, (1..=3).map(entry));
    bench.gather(WALL, (4..=9).map(entry));
    drop(bench);
    for written in [3, 5, 9] {
        let mut bench = Bench::open(dir.path(), BOUNDS);
        assert_eq!(bench.store.index(), written, "lines, counts and index end together");
        let found = bench.key("k", WALL);
        let total = bench.store.usage(None, 10).unwrap().total;
        assert_eq!(total, Counts { granted: written, cost: 2 * written, denied: written });
        assert!(found.permits.iter().map(|permit| permit.permit).eq((1..=written).rev()));
        assert!(found.permits.iter().all(|permit| permit.released && permit.wall_ms == WALL));
        let seconds: Vec<_> =
            found.seconds.iter().map(|second| (second.at.0 / 1_000_000_000, second.counts.granted)).collect();
        assert!(seconds.into_iter().eq((1..=written).map(|index| (50 + 5 * index, 1))));
        assert_eq!(found.minutes.iter().map(|minute| minute.counts.denied).sum::<u64>(), written);
        assert_eq!((found.denied.len() as u64, bench.store.audit_lines(99).unwrap().len() as u64), (written, written));
        // The log is applied again from its beginning, and gets further each time.
        bench.write(WALL, (1..=if written == 3 { 5 } else { 9 }).map(entry));
        bench.gather(WALL, (6..=9).map(entry));
    }
}

#[test]
fn usage_is_summed_over_the_last_hour() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, [(1, 1, vec![granted("old", 1)])]);
    bench.write(WALL, [(2, 3_700, vec![granted("a", 2), granted("b", 3), denied("b")])]);
    bench.write(WALL, [(3, 3_800, vec![granted("b", 4), denied("c")])]);
    let usage = bench.store.usage(None, 10).unwrap();
    assert_eq!(usage.total, Counts { granted: 3, cost: 6, denied: 2 });
    assert_eq!((usage.since, usage.until, usage.complete), (Time(240_000_000_000), Time(3_800_000_000_000), true));
    let keys: Vec<_> = usage.keys.iter().map(|(key, policy, _)| (key.as_str(), policy.as_deref())).collect();
    assert_eq!(keys, [("b", Some("api")), ("a", Some("api")), ("c", None)]);
    assert_eq!(usage.policies, [("api".to_owned(), Counts { granted: 3, cost: 6, denied: 0 })]);
    assert_eq!(usage.minutes.len(), 2);
    assert_eq!(bench.store.usage(None, 1).unwrap().keys.len(), 1);
    let api = bench.store.usage(Some("api"), 10).unwrap();
    assert_eq!((api.total.granted, api.total.denied, api.keys.len()), (3, 0, 2));
    assert_eq!(bench.store.usage(Some("none"), 10).unwrap().total, Counts::default());
}

#[test]
fn what_is_too_old_is_not_shown_and_then_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.desk.note(Audit::Leader { node: 1, term: 1 }, WALL);
    bench.write(WALL, [(1, 1, vec![granted("k", 1)])]);
    // A day later the next volume begins; a week after that the first is gone.
    bench.tidy(WALL + DAY_MS);
    bench.write(WALL + DAY_MS, [(2, 2, vec![granted("k", 2)])]);
    assert_eq!(bench.permits("k", WALL + DAY_MS), [2, 1]);
    assert_eq!(bench.permits("k", WALL + 7 * DAY_MS + 1), [2], "aged, and still there");
    assert_eq!(bench.store.row().volumes.len(), 2);
    bench.tidy(WALL + 7 * DAY_MS + 1);
    assert_eq!(bench.permits("k", WALL), [2], "gone, whatever the clock says");
    assert_eq!(bench.store.audit_lines(10).unwrap().len(), 1, "the audit trail goes along");
    bench.tidy(WALL + 100 * DAY_MS);
    bench.tidy(WALL + 101 * DAY_MS);
    assert_eq!(bench.store.audit_lines(10).unwrap().len(), 0);
    assert_eq!(bench.permits("k", WALL), [] as [u64; 0]);
    // The index is remembered over all of that.
    bench.write(WALL, [(2, 2, vec![granted("k", 2)])]);
    assert_eq!(bench.permits("k", WALL), [] as [u64; 0]);
    drop(bench);
    let reopened = Bench::open(dir.path(), BOUNDS);
    assert_eq!(reopened.store.row().until(), Time(2_000_000_000));
}

#[test]
fn a_clock_that_goes_back_makes_nothing_old() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, [(1, 1, vec![granted("k", 1)])]);
    bench.tidy(0);
    assert_eq!(bench.permits("k", 0), [1]);
}

#[test]
fn the_files_stay_within_their_bound_and_the_newest_survives() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds { bytes_max: 16 << 20, ..BOUNDS };
    let mut bench = Bench::open(dir.path(), bounds);
    let mut permit = 0;
    let (mut begun, mut used) = (0, 0);
    for index in 1..=100 {
        let events = (0..1_000).map(|_| {
            permit += 1;
            granted(&format!("customer/{:04}", permit * 7_919 % 5_000), permit)
        });
        bench.write(WALL + index, [(index, index, events.collect())]);
        let bytes = bench.tidy(WALL + index);
        assert!(bytes <= bounds.bytes_max, "{bytes}");
        // Sled writes when it likes: what counts is that the room was used at some time.
        used = used.max(disk_bytes(dir.path()));
        begun = begun.max(bench.store.row().volumes.len());
    }
    assert!(used > bounds.bytes_max / 4, "it is used: {used}");
    assert!(begun > 3, "{begun} volumes at most");
    let newest = format!("customer/{:04}", permit * 7_919 % 5_000);
    assert_eq!(bench.permits(&newest, WALL)[0], permit);
    assert!(bench.key("customer/2919", WALL).permits.iter().all(|found| found.permit > 1), "the first is long gone");
    assert_eq!(bench.key(&newest, WALL).until, Time(100_000_000_000));
}

#[test]
fn a_busy_key_has_its_newest_permits() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    let mut permit = 0;
    for index in 1..=30 {
        let events = (0..200).flat_map(|_| {
            permit += 1;
            [granted("busy", permit), denied("busy"), Event::Released { key: key("busy"), permit }]
        });
        bench.write(WALL, [(index, 1, events.collect())]);
    }
    let found = bench.key("busy", WALL);
    assert_eq!((found.permits.len(), found.permits[0].permit, found.denied.len() >= 100), (1_000, 6_000, true));
    assert!(found.permits.iter().all(|permit| permit.released));
    let (permits, released, denied) = bench.lines("busy");
    assert!(permits <= 2_000 && released <= 2_200 && denied <= 200, "{permits} {released} {denied}");
    assert_eq!(found.minutes[0].counts, Counts { granted: 6_000, cost: 12_000, denied: 6_000 }, "all are counted");
}

/// Rows are shared: what is cut off one key is not cut off its neighbour.
#[test]
fn a_quiet_key_in_the_group_of_a_busy_one_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    let quiet =
        (0..100_000).map(|number| format!("quiet/{number}")).find(|name| group_of(name) == group_of("busy")).unwrap();
    let mut permit = 0;
    for index in 1..=50 {
        let busy = (0..300).flat_map(|_| {
            permit += 1;
            [granted("busy", permit), denied("busy")]
        });
        let mut events: Vec<_> = busy.collect();
        permit += 1;
        events.extend([granted(&quiet, permit), denied(&quiet), Event::Released { key: key(&quiet), permit }]);
        bench.write(WALL, [(index, index, events)]);
    }
    let (permits, _, denied) = bench.lines("busy");
    assert!((1_000..2_200).contains(&permits) && (100..=400).contains(&denied), "{permits} {denied}");
    assert_eq!(bench.lines(&quiet), (50, 50, 50));
    let found = bench.key(&quiet, WALL);
    assert!(found.permits.iter().map(|permit| permit.permit).eq((1..=50).rev().map(|index| index * 301)));
    assert!(found.permits.iter().all(|permit| permit.released));
    let busy = bench.permits("busy", WALL);
    assert!(busy.iter().copied().eq((1..).map(|back| 15_050 - back).filter(|permit| permit % 301 != 0).take(1_000)));
}

/// Many keys at once go into few rows, and everything is found again.
#[test]
fn many_keys_share_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    let name = |number: u64| format!("customer/{number}");
    for round in 0..3 {
        let events = (1..=20_000).map(|number| granted(&name(number), round * 20_000 + number)).collect();
        bench.write(WALL, [(round + 1, 1, events)]);
    }
    let rows = bench.store.row().volumes[0].db.len();
    assert!(rows < 6_000, "{rows} rows for 60,000 permits");
    for number in [1, 777, 20_000] {
        assert_eq!(bench.permits(&name(number), WALL), [40_000 + number, 20_000 + number, number]);
        let found = bench.key(&name(number), WALL);
        assert_eq!((found.minutes[0].counts.granted, found.seconds[0].counts.granted), (3, 3));
    }
    let usage = bench.store.usage(None, 1).unwrap();
    assert_eq!((usage.total.granted, usage.keys[0].2.granted, usage.complete), (60_000, 3, true));
}

#[test]
fn records_that_cannot_be_read_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(dir.path(), BOUNDS);
    bench.write(WALL, [(1, 1, vec![granted("k", 1), granted("k", 2), denied("k"), Event::Reset { key: key("k") }])]);
    let db = bench.store.row().volumes[0].db.clone();
    let mut flipped = 0;
    for (place, value) in db.iter().flatten().filter(|(place, _)| place[0] != 0) {
        for at in 0..value.len() {
            let mut bad = value.to_vec();
            bad[at] ^= 0xff;
            db.insert(&place, bad).unwrap();
            bench.key("k", WALL);
            bench.store.usage(None, 10).unwrap();
            bench.store.audit_lines(10).unwrap();
            flipped += 1;
        }
        db.insert(&place, value).unwrap();
    }
    assert!(flipped > 100);
    for key in [&[][..], &[1], &[4, 1, 0], &[4, 9], &[5], &[5, 0], &[200; 40]] {
        db.insert(key, b"?".to_vec()).unwrap();
    }
    assert_eq!(bench.permits("k", WALL), [2, 1]);
    assert_eq!(bench.store.usage(None, 10).unwrap().total.granted, 2);
    assert_eq!(bench.store.audit_lines(10).unwrap().len(), 1);
}
