//! A sorted map in wide rows, for millions of small items: it takes little more room than what is in it.
//!
//! The standard library's tree has room for eleven items in a node, and with names in no order a third of it stays empty. Here a
//! row has up to `W` items, and room for an eighth more than it has, or for a sixteenth of a row. Finding something is two binary
//! searches; putting something in moves half a row.
//!
//! The keys of a row lie beside its values, not between them: a search reads keys only, and they are shared between copies of the
//! map until one of them gets or loses a key. What is looked for is said by an order, as the standard library's
//! `binary_search_by` has it: how a key of the map compares to the one that is sought.
//!
//! Invariants
//! - No row has more than `W` items; all of them in order, and the rows too. None is empty but the only one, which waits for what
//!   comes next.
//! - A row has as many values as keys.
//! - Where rows begin depends on what came when. Nothing that is replicated may look at it.

use std::cmp::Ordering;
use std::sync::Arc;

/// Rows of some kilobytes, where nothing speaks for others: larger ones take long to change, smaller ones are many.
const WIDTH: usize = 512;
/// A row that is full gets room for an eighth more, or for this share of the widest.
const ROOM_SHARE: usize = 8;
const ROOM_MIN_SHARE: usize = 16;

/// The map.
#[derive(Debug, Clone)]
pub(super) struct Sorted<K, V, const W: usize = WIDTH> {
    rows: Vec<Row<K, V>>,
}

/// Neighbours. Clones share the keys.
#[derive(Debug, Clone)]
struct Row<K, V> {
    keys: Arc<Vec<K>>,
    values: Vec<V>,
}

impl<K, V, const W: usize> Default for Sorted<K, V, W> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<K: Ord + Clone, V, const W: usize> Sorted<K, V, W> {
    /// The least room that a row gets.
    const ROOM_MIN: usize = if W / ROOM_MIN_SHARE > 2 { W / ROOM_MIN_SHARE } else { 2 };

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().flat_map(|row| row.keys.iter().zip(&row.values))
    }

    pub(super) fn first(&self) -> Option<(&K, &V)> {
        let row = self.rows.first()?;
        row.keys.first().zip(row.values.first())
    }

    pub(super) fn get(&self, order: impl Fn(&K) -> Ordering) -> Option<&V> {
        let (row, at) = self.find(order);
        Some(&self.rows.get(row)?.values[at.ok()?])
    }

    pub(super) fn get_mut(&mut self, order: impl Fn(&K) -> Ordering) -> Option<&mut V> {
        let (row, at) = self.find(order);
        Some(&mut self.rows.get_mut(row)?.values[at.ok()?])
    }

    /// All that `order` finds equal: neighbours, in order.
    pub(super) fn equal(&self, order: impl Fn(&K) -> Ordering) -> impl Iterator<Item = (&K, &V)> {
        let (first, skipped) = self.first_equal(&order);
        let items = self.rows[first..].iter().flat_map(|row| row.keys.iter().zip(&row.values));
        items.skip(skipped).take_while(move |(key, _)| order(key).is_eq())
    }

    /// Of all that `order` finds equal, keeps what `keep` says so of, which may change it. How many go.
    pub(super) fn retain_equal(
        &mut self,
        order: impl Fn(&K) -> Ordering,
        mut keep: impl FnMut(&mut V) -> bool,
    ) -> usize {
        let (mut at_row, mut at) = self.first_equal(&order);
        let mut gone = 0;
        while let Some(row) = self.rows.get_mut(at_row) {
            match row.keys.get(at) {
                None => (at_row, at) = (at_row + 1, 0),
                Some(key) if order(key).is_ne() => break,
                Some(_) if keep(&mut row.values[at]) => at += 1,
                Some(_) => {
                    gone += 1;
                    let rows = self.rows.len();
                    self.remove_at(at_row, at);
                    // What came behind a row that has gone stands in its place.
                    at = if self.rows.len() < rows { 0 } else { at };
                }
            }
        }
        gone
    }

    /// The row and the place in it of the first that `order` finds equal, or of the first after where it would be.
    fn first_equal(&self, order: impl Fn(&K) -> Ordering) -> (usize, usize) {
        let row = self.rows.partition_point(|row| row.keys.last().is_some_and(|last| order(last).is_lt()));
        (row, self.rows.get(row).map_or(0, |row| row.keys.partition_point(|key| order(key).is_lt())))
    }

    /// Inserts or replaces. What was there before.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (row, found) = self.find(|known| known.cmp(&key));
        match found {
            Ok(at) => Some(std::mem::replace(&mut self.rows[row].values[at], value)),
            Err(at) => {
                self.place(row, at, key, value);
                None
            }
        }
    }

    /// Changes what is there, or puts in what `change` makes of nothing, under the key that `name` makes. Whether that was
    /// new, and what `change` says.
    pub(super) fn upsert<R>(
        &mut self,
        order: impl Fn(&K) -> Ordering,
        name: impl FnOnce() -> K,
        change: impl FnOnce(Option<&mut V>) -> (Option<V>, R),
    ) -> (bool, R) {
        let (row, found) = self.find(order);
        match found {
            Ok(at) => (false, change(Some(&mut self.rows[row].values[at])).1),
            Err(at) => {
                let (new, said) = change(None);
                let is_new = new.is_some();
                if let Some(value) = new {
                    self.place(row, at, name(), value);
                }
                (is_new, said)
            }
        }
    }

    /// Puts a new item where it belongs.
    fn place(&mut self, mut row: usize, mut at: usize, key: K, value: V) {
        if self.rows.is_empty() || (at == W && row + 1 == self.rows.len()) {
            // Behind everything, as all do that come in order: the row before it stays full.
            self.rows.push(Row { keys: Arc::new(vec![key]), values: vec![value] });
            return;
        }
        if self.rows[row].values.len() >= W {
            let upper = self.rows[row].split_off(W / 2);
            self.rows.insert(row + 1, upper);
            if at > W / 2 {
                (row, at) = (row + 1, at - W / 2);
            }
        }
        let Row { keys, values } = &mut self.rows[row];
        insert(Arc::make_mut(keys), at, key, Self::ROOM_MIN);
        insert(values, at, value, Self::ROOM_MIN);
    }

    /// Takes the keys of the first items for as long as they are wanted, `most` of them.
    pub(super) fn take_first(&mut self, most: usize, wanted: impl Fn(&K) -> bool) -> Vec<K> {
        let (mut taken, mut emptied) = (Vec::new(), 0);
        for row in &mut self.rows {
            let count = row.keys.iter().take(most - taken.len()).take_while(|key| wanted(key)).count();
            if count == 0 {
                break;
            }
            let keys = Arc::make_mut(&mut row.keys);
            taken.extend(keys.drain(..count));
            row.values.drain(..count);
            if row.values.is_empty() {
                emptied += 1;
                continue;
            }
            row.shrink(Self::ROOM_MIN);
            break;
        }
        let all = emptied == self.rows.len();
        self.rows.drain(..emptied - usize::from(all && emptied > 0));
        if let Some(only) = self.rows.first_mut().filter(|_| all) {
            only.shrink(Self::ROOM_MIN);
        }
        taken
    }

    /// Removes. What was there.
    pub(super) fn remove(&mut self, order: impl Fn(&K) -> Ordering) -> Option<V> {
        let (row, at) = self.find(order);
        Some(self.remove_at(row, at.ok()?))
    }

    fn remove_at(&mut self, at_row: usize, at: usize) -> V {
        let is_only = self.rows.len() == 1;
        let row = &mut self.rows[at_row];
        Arc::make_mut(&mut row.keys).remove(at);
        let value = row.values.remove(at);
        if row.values.is_empty() && !is_only {
            self.rows.remove(at_row);
        } else {
            row.shrink(Self::ROOM_MIN);
        }
        value
    }

    /// The row that a key belongs to, and where it is in it or would be.
    fn find(&self, order: impl Fn(&K) -> Ordering) -> (usize, Result<usize, usize>) {
        let begins_before = |row: &Row<K, V>| row.keys.first().is_some_and(|first| order(first).is_le());
        let row = match self.rows.len() {
            0 | 1 => 0,
            _ => self.rows.partition_point(begins_before).saturating_sub(1),
        };
        (row, self.rows.get(row).map_or(Err(0), |row| row.keys.binary_search_by(&order)))
    }
}

impl<K: Ord, const W: usize> Sorted<K, (), W> {
    /// All of these, in any order: far cheaper than one after the other.
    pub(super) fn of(mut keys: Vec<K>) -> Self {
        keys.sort_unstable();
        keys.dedup();
        let (mut keys, mut rows) = (keys.into_iter(), Vec::new());
        while keys.len() > 0 {
            let row: Vec<_> = keys.by_ref().take(W).collect();
            rows.push(Row { values: vec![(); row.len()], keys: Arc::new(row) });
        }
        Self { rows }
    }
}

impl<K: Clone, V> Row<K, V> {
    /// Takes the items from `at` on.
    fn split_off(&mut self, at: usize) -> Self {
        let keys = Arc::make_mut(&mut self.keys);
        let upper = Self { keys: Arc::new(keys.split_off(at)), values: self.values.split_off(at) };
        keys.shrink_to_fit();
        self.values.shrink_to_fit();
        upper
    }

    /// Gives room back that it has too much of. Its keys are its own.
    fn shrink(&mut self, room_min: usize) {
        shrink(Arc::make_mut(&mut self.keys), room_min);
        shrink(&mut self.values, room_min);
    }
}

/// Inserts, with an eighth more room where there is none.
fn insert<T>(items: &mut Vec<T>, at: usize, item: T, room_min: usize) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / ROOM_SHARE).max(room_min));
    }
    items.insert(at, item);
}

/// Gives room back that a row has too much of.
fn shrink<T>(row: &mut Vec<T>, room_min: usize) {
    if row.len() <= row.capacity() / 2 && row.capacity() - row.len() > room_min {
        row.shrink_to(row.len() + (row.len() / ROOM_SHARE).max(room_min));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn sought(key: u32) -> impl Fn(&u32) -> Ordering {
        move |known| known.cmp(&key)
    }

    fn check<const W: usize>(sorted: &Sorted<u32, u32, W>, oracle: &BTreeMap<u32, u32>) {
        assert!(sorted.iter().eq(oracle.iter()));
        assert_eq!(sorted.first(), oracle.first_key_value());
        let least = usize::from(sorted.rows.len() > 1);
        assert!(
            sorted.rows.iter().all(|row| (least..=W).contains(&row.keys.len()) && row.values.len() == row.keys.len())
        );
        let fits = |row: &Vec<u32>| row.capacity() <= (2 * row.len()).max(row.len() + Sorted::<u32, u32, W>::ROOM_MIN);
        assert!(sorted.rows.iter().all(|row| fits(&row.keys) && fits(&row.values)), "{sorted:?}");
    }

    proptest! {
        /// The standard library's map is the oracle. Rows of four, so that they are begun and left often.
        #[test]
        fn it_does_what_a_tree_does(steps in prop::collection::vec((0..10_u32, 0..60_u32, any::<u32>()), 0..400)) {
            let (mut sorted, mut oracle) = (Sorted::<u32, u32, 4>::default(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0..3 => prop_assert_eq!(sorted.insert(key, value), oracle.insert(key, value)),
                    3 => {
                        let tens = |known: &u32| (known / 10).cmp(&(key / 10));
                        let keep = |kept: &mut u32| {
                            *kept ^= 1;
                            !kept.is_multiple_of(3)
                        };
                        let before = oracle.len();
                        oracle.retain(|known, kept| tens(known).is_ne() || keep(kept));
                        prop_assert_eq!(sorted.retain_equal(tens, keep), before - oracle.len());
                    }
                    4..7 => prop_assert_eq!(sorted.remove(sought(key)), oracle.remove(&key)),
                    7 => {
                        let most = value as usize % 9;
                        let first: Vec<_> = oracle.range(..key).take(most).map(|(key, _)| *key).collect();
                        for key in &first {
                            assert!(oracle.remove(key).is_some());
                        }
                        prop_assert_eq!(sorted.take_first(most, |known| *known < key), first);
                    }
                    _ => {
                        let before = oracle.get(&key).copied();
                        let put = value.is_multiple_of(2);
                        let found = sorted.upsert(sought(key), || key, |known| {
                            let before = known.as_deref().copied();
                            known.map_or((put.then_some(value), before), |known| {
                                *known = value;
                                (None, before)
                            })
                        });
                        prop_assert_eq!(found, (before.is_none() && put, before));
                        if before.is_some() || put {
                            oracle.insert(key, value);
                        }
                    }
                }
                if let Some(value) = sorted.get_mut(sought(key / 2)) {
                    *value ^= 1;
                    oracle.entry(key / 2).and_modify(|value| *value ^= 1);
                }
                prop_assert_eq!(sorted.get(sought(key)), oracle.get(&key));
                let tens = |known: &u32| (known / 10).cmp(&(key / 10));
                prop_assert!(sorted.equal(tens).eq(oracle.iter().filter(|(known, _)| tens(known).is_eq())));
                check(&sorted, &oracle);
            }
        }
    }

    proptest! {
        /// A copy shares keys with what it was made of, and stays as it was.
        #[test]
        fn a_copy_stays_as_it_was(
            before in prop::collection::btree_map(0..60_u32, any::<u32>(), 0..40),
            steps in prop::collection::vec((0..3_u8, 0..60_u32), 0..60),
        ) {
            let mut sorted = Sorted::<u32, u32, 4>::default();
            for (key, value) in &before {
                sorted.insert(*key, *value);
            }
            let copy = sorted.clone();
            for (step, key) in steps {
                match step {
                    0 => drop(sorted.insert(key, 0)),
                    1 => drop(sorted.remove(sought(key))),
                    _ => drop(sorted.take_first(2, |known| *known < key)),
                }
            }
            check(&copy, &before);
        }
    }

    proptest! {
        #[test]
        fn all_at_once_is_as_one_by_one(keys in prop::collection::vec(0..60_u32, 0..60)) {
            let mut one_by_one = Sorted::<u32, (), 4>::default();
            for key in &keys {
                one_by_one.insert(*key, ());
            }
            let at_once = Sorted::<u32, (), 4>::of(keys);
            prop_assert!(at_once.iter().eq(one_by_one.iter()));
            prop_assert!(at_once.rows.iter().all(|row| (1..=4).contains(&row.keys.len()) && row.values.len() == row.keys.len()));
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_rows() {
        let mut sorted = Sorted::<u32, (), 8>::default();
        (0..80).for_each(|key| assert_eq!(sorted.insert(key, ()), None));
        assert!(sorted.rows.iter().all(|row| row.keys.len() == 8), "{:?}", sorted.rows);
        (0..79).for_each(|key| assert_eq!(sorted.remove(sought(key)), Some(())));
        assert_eq!((sorted.rows.len(), sorted.first()), (1, Some((&79, &()))));
    }

    /// Names in no order, as keys are: little room is left over.
    #[test]
    fn rows_are_packed() {
        let mut sorted = Sorted::<u64, ()>::default();
        (0..100_000_u64)
            .for_each(|number| assert_eq!(sorted.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), ()), None));
        let room: usize = sorted.rows.iter().map(|row| row.keys.capacity()).sum();
        assert!(room < 112_000, "room for {room}");
        assert!(sorted.rows.len() > 195);
    }
}
