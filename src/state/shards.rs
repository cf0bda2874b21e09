//! A large ordered map in many small shared pieces, so that a consistent view of all of it costs a few thousand
//! reference counts and writing goes on meanwhile.
//!
//! A piece that a view still holds is copied when it is next written: some hundred entries, not a million. Which piece an
//! item lies in is a fixed function of its name, the same on every node, because digests walk the pieces in order.

use super::sorted::Sorted;
use crate::limiter::Key;
use siphasher::sip::SipHasher13;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt::Debug;
use std::sync::Arc;

/// Number of pieces: with a million items each holds some 250, which copy in a few microseconds.
const SHARDS: usize = 4_096;

/// Items in a row of a piece. All pieces grow alike, and the blocks of memory that they leave behind for larger ones at nearly the
/// same time fit nobody: with rows of 512 the allocator held 70 bytes a key that nobody used. Short rows are in all stages at any time.
const ROW: usize = 32;

/// What places an item: any fixed, well spread 64-bit function of its name.
pub(super) trait Placed {
    /// What items of a piece are sorted by before their names; nothing where comparing names costs nothing.
    type Tag: Ord + Copy + Debug;
    /// The same for equal names, on every node, for ever.
    fn place(&self) -> u64;
    fn tag(place: u64) -> Self::Tag;
}

/// SipHash-1-3 with a fixed key, which everybody can know. Names come from outside: by a weaker function anybody could make
/// thousands that have one place, and what is found by its place ([`Shards::at`]) would have to be searched for among them. Of this one
/// nobody has shown more than what trying gives: two, after some billion attempts.
///
/// A hostile choice of names makes one piece larger, and an ordered map in it still answers in logarithmic time. A search compares
/// numbers, and then one name.
impl Placed for str {
    type Tag = u64;

    fn place(&self) -> u64 {
        SipHasher13::new().hash(self.as_bytes())
    }

    fn tag(place: u64) -> u64 {
        place
    }
}

impl Placed for Key {
    type Tag = u64;

    fn place(&self) -> u64 {
        self.as_str().place()
    }

    fn tag(place: u64) -> u64 {
        place
    }
}

/// Request ids are hashes already.
impl Placed for u128 {
    type Tag = ();

    fn place(&self) -> u64 {
        u64::try_from(*self & u128::from(u64::MAX)).unwrap_or(u64::MAX)
    }

    fn tag(_: u64) {}
}

/// A name, and before it what it is sorted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tagged<K, T> {
    tag: T,
    name: K,
}

/// One piece.
#[derive(Debug, Clone)]
pub(super) struct Shard<K: Placed, V>(Arc<Sorted<Tagged<K, K::Tag>, V, ROW>>);

impl<K: Ord + Clone + Placed, V: Clone> Shard<K, V> {
    /// Its items, in an order that is the same on every node.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(tagged, value)| (&tagged.name, value))
    }

    fn mutable(&mut self) -> &mut Sorted<Tagged<K, K::Tag>, V, ROW> {
        Arc::make_mut(&mut self.0)
    }
}

/// The map.
#[derive(Debug, Clone)]
pub(super) struct Shards<K: Placed, V> {
    pieces: Vec<Shard<K, V>>,
    len: usize,
}

impl<K: Ord + Clone + Placed, V: Clone> Shards<K, V> {
    pub(super) fn new() -> Self {
        Self { pieces: (0..SHARDS).map(|_| Shard(Arc::default())).collect(), len: 0 }
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
        Q: Ord + Placed<Tag = K::Tag> + ?Sized,
    {
        self.get_at(name, name.place())
    }

    /// The same for who knows the place of the name already.
    pub(super) fn get_at<Q>(&self, name: &Q, place: u64) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + Placed<Tag = K::Tag> + ?Sized,
    {
        debug_assert_eq!(name.place(), place, "a name has one place");
        self.pieces[index(place)].0.get(sought(name, place))
    }

    pub(super) fn get_mut<Q>(&mut self, name: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + Placed<Tag = K::Tag> + ?Sized,
    {
        let place = name.place();
        self.pieces[index(place)].mutable().get_mut(sought(name, place))
    }

    /// What has this place: one item, as a rule.
    pub(super) fn at(&self, place: u64) -> impl Iterator<Item = (&K, &V)>
    where
        K: Placed<Tag = u64>,
    {
        let items = self.pieces[index(place)].0.equal(move |known| known.tag.cmp(&place));
        items.map(|(tagged, value)| (&tagged.name, value))
    }

    /// Inserts or replaces.
    pub(super) fn insert(&mut self, name: K, value: V) {
        let place = name.place();
        let piece = self.pieces[index(place)].mutable();
        if piece.insert(Tagged { tag: K::tag(place), name }, value).is_none() {
            self.len += 1;
        }
    }

    /// Changes what is there, or puts in what `change` makes of nothing. What `change` says besides. `place` is the name's.
    pub(super) fn upsert<R>(
        &mut self,
        (name, place): (&K, u64),
        change: impl FnOnce(Option<&mut V>) -> (Option<V>, R),
    ) -> R {
        debug_assert_eq!(name.place(), place, "a name has one place");
        let tagged = || Tagged { tag: K::tag(place), name: name.clone() };
        let (is_new, said) = self.pieces[index(place)].mutable().upsert(sought(name, place), tagged, change);
        self.len += usize::from(is_new);
        said
    }

    /// Of what has this place keeps what `keep` says so of, which may change it.
    pub(super) fn retain_at(&mut self, place: u64, keep: impl FnMut(&mut V) -> bool)
    where
        K: Placed<Tag = u64>,
    {
        self.len -= self.pieces[index(place)].mutable().retain_equal(|known| known.tag.cmp(&place), keep);
    }

    pub(super) fn remove<Q>(&mut self, name: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + Placed<Tag = K::Tag> + ?Sized,
    {
        let place = name.place();
        if self.pieces[index(place)].mutable().remove(sought(name, place)).is_some() {
            self.len -= 1;
        }
    }
}

/// How a name of a piece compares to the one that is sought.
fn sought<K, Q>(name: &Q, place: u64) -> impl Fn(&Tagged<K, K::Tag>) -> Ordering
where
    K: Placed + Borrow<Q>,
    Q: Ord + ?Sized,
{
    let tag = K::tag(place);
    move |known| known.tag.cmp(&tag).then_with(|| known.name.borrow().cmp(name))
}

fn index(place: u64) -> usize {
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

    /// "A fixed function of its name": a name that moved would change every digest. Reckoned by another program.
    #[test]
    fn places_are_for_ever() {
        let names = ["", "a", "foobar"];
        let places = [0xd1fb_a762_150c_532c, 0x4074_48d2_b89b_1813, 0x7738_ae0a_5df0_9b34];
        assert_eq!(names.map(Placed::place), places);
        assert_eq!(names.map(|name| index(name.place())), [1_102, 193, 1_342]);
        assert_eq!(Key::new("foobar").unwrap().place(), "foobar".place(), "a key lies where its text is looked for");
        assert_eq!([0, 1, 1 << 32, u128::MAX, 1 << 64].map(|id: u128| index(id.place())), [0, 1, 1, 0, 0]);
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
