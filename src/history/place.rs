//! Where a row lies: typed key spaces over the store's plain bytes.
//!
//! A prefix byte names the space; numbers are big-endian, so that the order of bytes is the order of time. Names do not stand
//! in places: each belongs to one of [`GROUPS`] groups, and a row is of a group. Usage has its time before its group: what is
//! old lies together, and one scan over a stretch of time meets every name.
//!
//! Invariant: a name is in the same group for ever. Another hash, or another number of groups, is another format.

/// Rows that a write of many keys comes down to, in each space. A change of the tree costs the store 5 to 30 µs, whatever its
/// size: with one of its own for every key, that would be most of what a permit costs. With fewer groups, a look at one key
/// would read more of the others.
pub(super) const GROUPS: u16 = 512;

const HEADER: u8 = 0;
const PERMITS: u8 = 1;
const DENIALS: u8 = 2;
const USAGE: u8 = 3;
const AUDIT: u8 = 4;

/// What the lines of a row are. Each kind has a space, so that looking for one does not read the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Permits, and which of them were given back.
    Permits = 0,
    /// Denials.
    Denials = 1,
}

/// Where one row lies. Numbers of rows go up by one with every row that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Header,
    Lines { kind: Kind, group: u16, number: u64 },
    Usage { minute: u64, group: u16, number: u64 },
    Audit { number: u64 },
}

impl Place {
    /// The key in the store.
    pub(super) fn bytes(self) -> Vec<u8> {
        match self {
            Self::Header => vec![HEADER],
            Self::Lines { kind, group, number } => lines_of(kind, group, Some(number)),
            Self::Usage { minute, group, number } => usage_of(minute, Some(group), Some(number)),
            Self::Audit { number } => joined(AUDIT, &[&number.to_be_bytes()]),
        }
    }

    /// The place of these bytes, if they are one.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [space] = array(&mut rest)?;
        let place = match space {
            HEADER => Self::Header,
            PERMITS => Self::Lines { kind: Kind::Permits, group: group(&mut rest)?, number: number(&mut rest)? },
            DENIALS => Self::Lines { kind: Kind::Denials, group: group(&mut rest)?, number: number(&mut rest)? },
            USAGE => Self::Usage { minute: number(&mut rest)?, group: group(&mut rest)?, number: number(&mut rest)? },
            AUDIT => Self::Audit { number: number(&mut rest)? },
            _ => return None,
        };
        rest.is_empty().then_some(place)
    }
}

/// The group of a name: FNV-1a, because it has to be the same tomorrow.
pub(super) fn group_of(name: &str) -> u16 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step);
    u16::try_from((hash ^ (hash >> 32)) % u64::from(GROUPS)).unwrap_or(0)
}

/// What all rows of one kind and group begin with, or where one of them lies.
pub(super) fn lines_of(kind: Kind, group: u16, number: Option<u64>) -> Vec<u8> {
    let space = match kind {
        Kind::Permits => PERMITS,
        Kind::Denials => DENIALS,
    };
    let number = number.map(u64::to_be_bytes);
    joined(space, &[&group.to_be_bytes(), number.as_ref().map_or(&[], |number| number)])
}

/// Where the usage of a minute begins, or that of one group in it, or where one row of that lies.
pub(super) fn usage_of(minute: u64, group: Option<u16>, number: Option<u64>) -> Vec<u8> {
    let (group, number) = (group.map(u16::to_be_bytes), number.map(u64::to_be_bytes));
    let group: &[u8] = group.as_ref().map_or(&[], |group| group);
    joined(USAGE, &[&minute.to_be_bytes(), group, number.as_ref().map_or(&[], |number| number)])
}

/// Where the audit trail begins, behind all usage; nothing comes after it.
pub(super) fn audit_from() -> Vec<u8> {
    vec![AUDIT]
}

fn joined(space: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(19);
    bytes.push(space);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

fn group(rest: &mut &[u8]) -> Option<u16> {
    array(rest).map(u16::from_be_bytes).filter(|group| *group < GROUPS)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    array(rest).map(u64::from_be_bytes)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk::<N>()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back() {
        for place in [
            Place::Header,
            Place::Lines { kind: Kind::Permits, group: 7, number: u64::MAX },
            Place::Lines { kind: Kind::Denials, group: GROUPS - 1, number: 2 },
            Place::Usage { minute: 3, group: 4, number: 5 },
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
    fn the_order_of_bytes_is_the_order_of_time_and_no_group_hides_in_another() {
        let lines = |group, number| Place::Lines { kind: Kind::Permits, group, number }.bytes();
        assert!(lines(1, 255) < lines(1, 256));
        assert!(lines(1, 1).starts_with(&lines_of(Kind::Permits, 1, None)));
        assert!(!lines(257, 1).starts_with(&lines_of(Kind::Permits, 1, None)));
        assert!(!lines(1, 1).starts_with(&lines_of(Kind::Denials, 1, None)));
        let usage = |minute, group, number| Place::Usage { minute, group, number }.bytes();
        assert!(usage(255, 511, 9) < usage(256, 0, 1), "time before names");
        assert!(usage(255, 3, 9).starts_with(&usage_of(255, Some(3), None)));
        assert!(usage(u64::MAX, 511, u64::MAX) < audit_from());
    }

    /// A name that changed its group would not be found again.
    #[test]
    fn a_name_stays_in_its_group_and_groups_are_about_as_large() {
        assert_eq!(["", "k", "customer/0001", "ü"].map(group_of), [449, 454, 202, 493]);
        let mut sizes = vec![0_u32; usize::from(GROUPS)];
        (0..51_200).for_each(|key| sizes[usize::from(group_of(&format!("customer/{key}")))] += 1);
        assert!(sizes.iter().all(|size| (50..=150).contains(size)), "{sizes:?}");
    }
}
