//! Where a record lies: typed key spaces over the store's plain bytes.
//!
//! A prefix byte names the space; names carry their length, so that none is the beginning of another; numbers are
//! big-endian, so that the order of bytes is the order of time. Usage has its time before its name: what is old lies
//! together, and one scan over a stretch of time meets every name.

use crate::limiter::{Key, Time};
use std::sync::Arc;

/// Longest name in a place, in bytes: keys have at most as many, names of policies are cut.
pub(super) const NAME_BYTES_MAX: usize = 256;

const HEADER: u8 = 0;
const PERMIT: u8 = 1;
const RELEASED: u8 = 2;
const DENIED: u8 = 3;
const USAGE: u8 = 4;
const AUDIT: u8 = 5;

/// The width of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Grain {
    /// One second of cluster time.
    Second = 0,
    /// One minute of cluster time.
    Minute = 1,
}

impl Grain {
    const fn ns(self) -> u64 {
        match self {
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
        }
    }

    /// The number of the bucket that an instant falls into.
    pub(super) const fn bucket(self, at: Time) -> u64 {
        at.0 / self.ns()
    }

    /// Where a bucket begins.
    pub(super) const fn start(self, bucket: u64) -> Time {
        Time(bucket.saturating_mul(self.ns()))
    }
}

/// Whose usage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    /// Everything.
    All,
    /// What one stored rule decided.
    Policy(Arc<str>),
    /// One key.
    Key(Key),
}

/// Where one record lies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Header,
    Permit {
        key: Key,
        permit: u64,
    },
    Released {
        key: Key,
        permit: u64,
    },
    /// Denials have no number of their own: the log index, and how many were before it in the entry.
    Denied {
        key: Key,
        index: u64,
        ordinal: u32,
    },
    Usage {
        grain: Grain,
        bucket: u64,
        scope: Scope,
    },
    Audit {
        number: u64,
    },
}

impl Place {
    /// The key in the store.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(48);
        match self {
            Self::Header => bytes.push(HEADER),
            Self::Permit { key, permit } => {
                named(&mut bytes, PERMIT, key.as_str());
                bytes.extend(permit.to_be_bytes());
            }
            Self::Released { key, permit } => {
                named(&mut bytes, RELEASED, key.as_str());
                bytes.extend(permit.to_be_bytes());
            }
            Self::Denied { key, index, ordinal } => {
                named(&mut bytes, DENIED, key.as_str());
                bytes.extend(index.to_be_bytes());
                bytes.extend(ordinal.to_be_bytes());
            }
            Self::Usage { grain, bucket, scope } => {
                bytes = usage_from(*grain, *bucket);
                match scope {
                    Scope::All => named(&mut bytes, 0, ""),
                    Scope::Policy(name) => named(&mut bytes, 1, name),
                    Scope::Key(key) => named(&mut bytes, 2, key.as_str()),
                }
            }
            Self::Audit { number } => {
                bytes.push(AUDIT);
                bytes.extend(number.to_be_bytes());
            }
        }
        bytes
    }

    /// The place of these bytes, if they are one.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let place = match byte(&mut rest)? {
            HEADER => Self::Header,
            PERMIT => Self::Permit { key: key(&mut rest)?, permit: number(&mut rest)? },
            RELEASED => Self::Released { key: key(&mut rest)?, permit: number(&mut rest)? },
            DENIED => Self::Denied {
                key: key(&mut rest)?,
                index: number(&mut rest)?,
                ordinal: u32::from_be_bytes(array(&mut rest)?),
            },
            USAGE => {
                let grain = match byte(&mut rest)? {
                    0 => Grain::Second,
                    1 => Grain::Minute,
                    _ => return None,
                };
                let bucket = number(&mut rest)?;
                let scope = match byte(&mut rest)? {
                    0 => name(&mut rest)?.is_empty().then_some(Scope::All)?,
                    1 => Scope::Policy(name(&mut rest)?.into()),
                    2 => Scope::Key(key(&mut rest)?),
                    _ => return None,
                };
                Self::Usage { grain, bucket, scope }
            }
            AUDIT => Self::Audit { number: number(&mut rest)? },
            _ => return None,
        };
        rest.is_empty().then_some(place)
    }
}

/// What all permits of a key begin with.
pub(super) fn permits_of(key: &Key) -> Vec<u8> {
    prefix(PERMIT, key)
}

/// What all releases of a key begin with.
pub(super) fn releases_of(key: &Key) -> Vec<u8> {
    prefix(RELEASED, key)
}

/// What all denials of a key begin with.
pub(super) fn denials_of(key: &Key) -> Vec<u8> {
    prefix(DENIED, key)
}

/// Where the usage of a bucket begins.
pub(super) fn usage_from(grain: Grain, bucket: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    bytes.extend([USAGE, grain as u8]);
    bytes.extend(bucket.to_be_bytes());
    bytes
}

/// Where the audit trail begins; nothing comes after it.
pub(super) fn audit_from() -> Vec<u8> {
    vec![AUDIT]
}

fn prefix(space: u8, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(48);
    named(&mut bytes, space, key.as_str());
    bytes
}

/// A byte, the length of a name, the name.
fn named(bytes: &mut Vec<u8>, space: u8, name: &str) {
    let name = cut(name, NAME_BYTES_MAX);
    bytes.push(space);
    bytes.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend(name.as_bytes());
}

/// The beginning of a text, in whole characters.
pub(super) fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

fn byte(rest: &mut &[u8]) -> Option<u8> {
    array::<1>(rest).map(|[byte]| byte)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    array(rest).map(u64::from_be_bytes)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk::<N>()?;
    *rest = others;
    Some(*first)
}

fn name<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::from(u16::from_be_bytes(array(rest)?));
    let (name, others) = rest.split_at_checked(length)?;
    *rest = others;
    std::str::from_utf8(name).ok()
}

fn key(rest: &mut &[u8]) -> Option<Key> {
    Key::new(name(rest)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn places_read_back() {
        for place in [
            Place::Header,
            Place::Permit { key: key("a"), permit: 7 },
            Place::Released { key: key(&"ü".repeat(128)), permit: u64::MAX },
            Place::Denied { key: key("a/b"), index: 1, ordinal: 2 },
            Place::Usage { grain: Grain::Second, bucket: 3, scope: Scope::All },
            Place::Usage { grain: Grain::Minute, bucket: 3, scope: Scope::Policy("p".into()) },
            Place::Usage { grain: Grain::Minute, bucket: 3, scope: Scope::Key(key("k")) },
            Place::Audit { number: 9 },
        ] {
            let bytes = place.bytes();
            assert_eq!(Place::read(&bytes), Some(place));
            for end in 0..bytes.len() {
                assert_eq!(Place::read(&bytes[..end]), None, "cut at {end}");
            }
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 0xff;
                let _ = Place::read(&bad);
            }
        }
        assert_eq!(Place::read(&[9]), None);
    }

    #[test]
    fn the_order_of_bytes_is_the_order_of_time_and_no_name_hides_in_another() {
        let permit = |name: &str, permit| Place::Permit { key: key(name), permit }.bytes();
        assert!(permit("a", 255) < permit("a", 256));
        assert!(!permit("ab", 1).starts_with(&permits_of(&key("a"))));
        assert!(permit("a", 1).starts_with(&permits_of(&key("a"))));
        let usage = |bucket, scope| Place::Usage { grain: Grain::Minute, bucket, scope }.bytes();
        assert!(usage(255, Scope::Key(key("z"))) < usage(256, Scope::All));
        assert!(usage(255, Scope::All).starts_with(&usage_from(Grain::Minute, 255)));
    }

    #[test]
    fn long_names_are_cut_at_whole_characters() {
        assert_eq!((cut("aü", 2), cut("aü", 3), cut("", 5)), ("a", "aü", ""));
        let long = Place::Usage { grain: Grain::Minute, bucket: 1, scope: Scope::Policy("ü".repeat(1_000).into()) };
        let read = Place::read(&long.bytes()).unwrap();
        assert_eq!(
            read,
            Place::Usage { grain: Grain::Minute, bucket: 1, scope: Scope::Policy("ü".repeat(128).into()) }
        );
    }
}
