//! A large ordered map in many small shared pieces, so that a consistent view of all of it costs a few thousand
//! reference counts and writing goes on meanwhile.
//!
//! A piece that a view still holds is copied when it is next written: some hundred entries, not a million. Which piece an
//! item lies in is a fixed function of its name, the same on every node, because digests walk the pieces in order.

use crate::limiter::Key;
use std::borrow::Borrow;
use std::collections::BTreeMap;
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
pub(super) type Shard<K, V> = Arc<BTreeMap<K, V>>;

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
