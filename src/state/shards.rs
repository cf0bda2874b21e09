//! A large ordered map in many small shared pieces, so that a consistent view of all of it costs a few thousand
//! reference counts and writing goes on meanwhile.
//!
//! A piece that a view still holds is copied when it is next written: some hundred entries, not a million. Which piece an
//! item lies in is a fixed function of its name, the same on every node, because digests walk the pieces in order.

use super::sorted::Sorted;
use crate::limiter::Key;
use std::borrow::Borrow;
use std::sync::Arc;

/// Number of pieces: with a million items each holds some 250, which copy in a few microseconds.
const SHARDS: usize = 4_096;

/// What places an item: any fixed, well spread 64-bit function of its name.
pub(super) trait Placed {
    /// The same for equal names, on every node, for ever.
    fn place(&self) -> u64;
}

/// FNV-1a: ten lines, and the spread is all that matters. A hostile choice of names makes one piece larger, and an ordered
/// map in it still answers in logarithmic time.
impl Placed for str {
    fn place(&self) -> u64 {
        self.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}

impl Placed for Key {
    fn place(&self) -> u64 {
        self.as_str().place()
    }
}

/// Request ids are hashes already.
impl Placed for u128 {
    fn place(&self) -> u64 {
        u64::try_from(*self & u128::from(u64::MAX)).unwrap_or(u64::MAX)
    }
}

/// One piece.
pub(super) type Shard<K, V> = Arc<Sorted<K, V>>;

/// The map.
#[derive(Debug, Clone)]
pub(super) struct Shards<K, V> {
    pieces: Vec<Shard<K, V>>,
    len: usize,
}

impl<K: Ord + Clone + Placed, V: Clone> Shards<K, V> {
    pub(super) fn new() -> Self {
        Self { pieces: (0..SHARDS).map(|_| Arc::default()).collect(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// All pieces, in an order that is the same on every node.
    pub(super) fn pieces(&self) -> &[Shard<K, V>] {
        &self.pieces
    }

    pub(super) fn get<Q>(&self, name: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + Placed + ?Sized,
    {
        self.pieces[index(name)].get(name)
    }

    pub(super) fn get_mut<Q>(&mut self, name: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + Placed + ?Sized,
    {
        Arc::make_mut(&mut self.pieces[index(name)]).get_mut(name)
    }

    /// Inserts or replaces.
    pub(super) fn insert(&mut self, name: K, value: V) {
        let piece = Arc::make_mut(&mut self.pieces[index(&name)]);
        if piece.insert(name, value).is_none() {
            self.len += 1;
        }
    }

    /// Changes what is there, or puts in what `change` makes of nothing. What `change` says besides.
    pub(super) fn upsert<R>(&mut self, name: &K, change: impl FnOnce(Option<&mut V>) -> (Option<V>, R)) -> R {
        let (is_new, said) = Arc::make_mut(&mut self.pieces[index(name)]).upsert(name, change);
        self.len += usize::from(is_new);
        said
    }

    /// Keeps what is there if `keep` says so, which may change it.
    pub(super) fn retain_one(&mut self, name: &K, keep: impl FnOnce(&mut V) -> bool) {
        let piece = Arc::make_mut(&mut self.pieces[index(name)]);
        if piece.get_mut(name).is_some_and(|value| !keep(value)) && piece.remove(name).is_some() {
            self.len -= 1;
        }
    }

    pub(super) fn remove<Q>(&mut self, name: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + Placed + ?Sized,
    {
        if Arc::make_mut(&mut self.pieces[index(name)]).remove(name).is_some() {
            self.len -= 1;
        }
    }
}

fn index<Q: Placed + ?Sized>(name: &Q) -> usize {
    // FNV's low bits are its weakest: fold the high ones in.
    let place = name.place();
    usize::try_from((place ^ (place >> 32)) % SHARDS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_stays_as_it_was_while_writing_goes_on() {
        let mut map = Shards::new();
        for name in 0..10_000_u128 {
            map.insert(name, name * 2);
        }
        let view = map.clone();
        for name in 0..10_000_u128 {
            match name % 3 {
                0 => map.remove(&name),
                1 => map.insert(name, 0),
                _ => *map.get_mut(&name).unwrap() += 1,
            }
        }
        assert_eq!((view.len(), map.len()), (10_000, 6_666));
        assert!((0..10_000_u128).all(|name| view.get(&name) == Some(&(name * 2))));
        assert_eq!([0, 1, 2].map(|name: u128| map.get(&name).copied()), [None, Some(0), Some(5)]);
    }

    #[test]
    fn the_length_counts_names_not_writes() {
        let mut map = Shards::new();
        map.insert(7_u128, 'a');
        map.insert(7, 'b');
        map.remove(&8);
        assert_eq!((map.len(), map.get(&7)), (1, Some(&'b')));
        map.remove(&7);
        map.remove(&7);
        assert_eq!((map.len(), map.get(&7)), (0, None));
    }

    /// "A fixed function of its name": a name that moved would change every digest. The published values of FNV-1a, folded.
    #[test]
    fn places_are_for_ever() {
        assert_eq!(["", "a", "foobar"].map(index), [4_033, 192, 1_689]);
        assert_eq!(index(&Key::new("foobar").unwrap()), index("foobar"), "a key lies where its text is looked for");
        assert_eq!([0, 1, 1 << 32, u128::MAX, 1 << 64].map(|id: u128| index(&id)), [0, 1, 1, 0, 0]);
    }

    #[test]
    fn names_spread_over_the_pieces() {
        let mut map = Shards::new();
        for index in 0..100 * SHARDS {
            map.insert(Key::new(&format!("user/{index}")).unwrap(), ());
        }
        let largest = map.pieces().iter().map(|piece| piece.iter().count()).max();
        assert!(largest < Some(200), "100 on average, and {largest:?} in the largest");
    }
}
