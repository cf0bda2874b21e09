//! A sorted map in wide rows, for millions of small items: it takes little more room than what is in it.
//!
//! The standard library's tree has room for eleven items in a node, and with names in no order a third of it stays empty. Here a
//! row has up to `WIDTH` items and at most an eighth of it is free. Finding something is two binary searches; putting something
//! in moves half a row, a few kilobytes.
//!
//! Invariants
//! - No row is empty or has more than `WIDTH` items; all of them in order, and the rows too.
//! - Where rows begin depends on what came when. Nothing that is replicated may look at it.

use std::borrow::Borrow;

/// Rows of some kilobytes: larger ones take long to change, smaller ones are many.
const WIDTH: usize = 512;
/// A row that is full gets room for an eighth more.
const ROOM_SHARE: usize = 8;
const ROOM_MIN: usize = 4;

/// The map.
#[derive(Debug, Clone)]
pub(super) struct Sorted<K, V, const W: usize = WIDTH> {
    rows: Vec<Vec<(K, V)>>,
}

impl<K, V, const W: usize> Default for Sorted<K, V, W> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<K: Ord, V, const W: usize> Sorted<K, V, W> {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows.iter().flatten().map(|(key, value)| (key, value))
    }

    pub(super) fn first(&self) -> Option<(&K, &V)> {
        let (key, value) = self.rows.first()?.first()?;
        Some((key, value))
    }

    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (row, at) = self.find(key);
        Some(&self.rows.get(row)?[at.ok()?].1)
    }

    pub(super) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (row, at) = self.find(key);
        Some(&mut self.rows.get_mut(row)?[at.ok()?].1)
    }

    /// Inserts or replaces. What was there before.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (row, found) = self.find(&key);
        match found {
            Ok(at) => Some(std::mem::replace(&mut self.rows[row][at].1, value)),
            Err(at) => {
                self.place(row, at, key, value);
                None
            }
        }
    }

    /// Changes what is there, or puts in what `change` makes of nothing. Whether that was new, and what `change` says.
    pub(super) fn upsert<R>(&mut self, key: &K, change: impl FnOnce(Option<&mut V>) -> (Option<V>, R)) -> (bool, R)
    where
        K: Clone,
    {
        let (row, found) = self.find(key);
        match found {
            Ok(at) => (false, change(Some(&mut self.rows[row][at].1)).1),
            Err(at) => {
                let (new, said) = change(None);
                let is_new = new.is_some();
                if let Some(value) = new {
                    self.place(row, at, key.clone(), value);
                }
                (is_new, said)
            }
        }
    }

    /// Puts a new item where it belongs.
    fn place(&mut self, mut row: usize, mut at: usize, key: K, value: V) {
        if self.rows.is_empty() || (at == W && row + 1 == self.rows.len()) {
            // Behind everything, as all do that come in order: the row before it stays full.
            self.rows.push(vec![(key, value)]);
            return;
        }
        if self.rows[row].len() >= W {
            let upper = self.rows[row].split_off(W / 2);
            self.rows[row].shrink_to_fit();
            self.rows.insert(row + 1, upper);
            if at > W / 2 {
                (row, at) = (row + 1, at - W / 2);
            }
        }
        let items = &mut self.rows[row];
        if items.len() == items.capacity() {
            items.reserve_exact((items.len() / ROOM_SHARE).max(ROOM_MIN));
        }
        items.insert(at, (key, value));
    }

    /// Takes the first items for as long as they are wanted, `most` of them.
    pub(super) fn take_first(&mut self, most: usize, wanted: impl Fn(&K) -> bool) -> Vec<(K, V)> {
        let (mut taken, mut emptied) = (Vec::new(), 0);
        for row in &mut self.rows {
            let count = row.iter().take(most - taken.len()).take_while(|(key, _)| wanted(key)).count();
            if count == row.len() {
                taken.append(row);
                emptied += 1;
                continue;
            }
            taken.extend(row.drain(..count));
            shrink(row);
            break;
        }
        self.rows.drain(..emptied);
        taken
    }

    /// Removes. What was there.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (row, at) = self.find(key);
        let items = self.rows.get_mut(row)?;
        let (_, value) = items.remove(at.ok()?);
        if items.is_empty() {
            self.rows.remove(row);
        } else {
            shrink(items);
        }
        Some(value)
    }

    /// The row that a key belongs to, and where it is in it or would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> (usize, Result<usize, usize>)
    where
        K: Borrow<Q>,
    {
        let begins_before = |row: &Vec<(K, V)>| row.first().is_some_and(|(first, _)| first.borrow() <= key);
        let row = self.rows.partition_point(begins_before).saturating_sub(1);
        let at = self.rows.get(row).map_or(Err(0), |row| row.binary_search_by(|(known, _)| known.borrow().cmp(key)));
        (row, at)
    }
}

/// Gives room back that a row has too much of.
fn shrink<T>(row: &mut Vec<T>) {
    if row.len() <= row.capacity() / 2 {
        row.shrink_to(row.len() + row.len() / ROOM_SHARE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn check<const W: usize>(sorted: &Sorted<u32, u32, W>, oracle: &BTreeMap<u32, u32>) {
        assert!(sorted.iter().eq(oracle.iter()));
        assert_eq!(sorted.first(), oracle.first_key_value());
        assert!(sorted.rows.iter().all(|row| (1..=W).contains(&row.len())));
        let fits = |row: &Vec<(u32, u32)>| row.capacity() <= (2 * row.len()).max(row.len() + ROOM_MIN);
        assert!(sorted.rows.iter().all(fits), "{:?}", sorted.rows.iter().map(Vec::capacity).collect::<Vec<_>>());
    }

    proptest! {
        /// The standard library's map is the oracle. Rows of four, so that they are begun and left often.
        #[test]
        fn it_does_what_a_tree_does(steps in prop::collection::vec((0..10_u32, 0..60_u32, any::<u32>()), 0..400)) {
            let (mut sorted, mut oracle) = (Sorted::<u32, u32, 4>::default(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0..4 => prop_assert_eq!(sorted.insert(key, value), oracle.insert(key, value)),
                    4..7 => prop_assert_eq!(sorted.remove(&key), oracle.remove(&key)),
                    7 => {
                        let most = value as usize % 9;
                        let first: Vec<_> = oracle.range(..key).take(most).map(|(key, value)| (*key, *value)).collect();
                        for (key, _) in &first {
                            assert!(oracle.remove(key).is_some());
                        }
                        prop_assert_eq!(sorted.take_first(most, |known| *known < key), first);
                    }
                    _ => {
                        let before = oracle.get(&key).copied();
                        let put = value.is_multiple_of(2);
                        let found = sorted.upsert(&key, |known| {
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
                if let Some(value) = sorted.get_mut(&(key / 2)) {
                    *value ^= 1;
                    oracle.entry(key / 2).and_modify(|value| *value ^= 1);
                }
                prop_assert_eq!(sorted.get(&key), oracle.get(&key));
                check(&sorted, &oracle);
            }
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_rows() {
        let mut sorted = Sorted::<u32, (), 8>::default();
        (0..80).for_each(|key| assert_eq!(sorted.insert(key, ()), None));
        assert!(sorted.rows.iter().all(|row| row.len() == 8), "{:?}", sorted.rows);
        (0..79).for_each(|key| assert_eq!(sorted.remove(&key), Some(())));
        assert_eq!((sorted.rows.len(), sorted.first()), (1, Some((&79, &()))));
    }

    /// Names in no order, as keys are: little room is left over.
    #[test]
    fn rows_are_packed() {
        let mut sorted = Sorted::<u64, ()>::default();
        (0..100_000_u64)
            .for_each(|number| assert_eq!(sorted.insert(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), ()), None));
        let room: usize = sorted.rows.iter().map(Vec::capacity).sum();
        assert!(room < 112_000, "room for {room}");
        assert!(sorted.rows.len() > 195);
    }
}
