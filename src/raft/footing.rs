//! How far a node's disk is known to have got: its vote, and the last entry that is both committed and synced there.
//!
//! Neither ever goes back on a disk that keeps what it was given. Peers remember the farthest they have heard of each other,
//! durably, so a node that comes back with less has lost what it acknowledged: its directory is an old copy.

use super::codec::WireLogId;
use serde::{Deserialize, Serialize};

/// A vote and an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Footing {
    /// The term it last voted in.
    vote_term: u64,
    /// Term of the entry; zero if there is none.
    entry_term: u64,
    /// Its index.
    entry_index: u64,
}

impl Footing {
    pub(super) fn new(vote_term: Option<u64>, entry: Option<WireLogId>) -> Self {
        let (entry_term, entry_index) = entry.map_or((0, 0), |entry| (entry.leader.term, entry.index));
        Self { vote_term: vote_term.unwrap_or(0), entry_term, entry_index }
    }

    /// Whether a node that stands here can have stood there before.
    pub(super) fn covers(&self, before: &Self) -> bool {
        self.vote_term >= before.vote_term && self.entry() >= before.entry()
    }

    /// The farther of both, in each respect.
    pub(super) fn farthest(self, other: Self) -> Self {
        let (entry_term, entry_index) = self.entry().max(other.entry());
        Self { vote_term: self.vote_term.max(other.vote_term), entry_term, entry_index }
    }

    /// In the order of logs: a later term is farther, whatever the index.
    const fn entry(&self) -> (u64, u64) {
        (self.entry_term, self.entry_index)
    }
}

impl std::fmt::Display for Footing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vote of term {}, entry {} of term {}", self.vote_term, self.entry_index, self.entry_term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::LeaderId;

    fn footing(vote: u64, term: u64, index: u64) -> Footing {
        Footing::new(Some(vote), Some(WireLogId { leader: LeaderId { term, node: 1 }, index }))
    }

    #[test]
    fn neither_vote_nor_entry_may_go_back() {
        let before = footing(4, 4, 100);
        assert!(footing(4, 4, 100).covers(&before) && footing(7, 4, 101).covers(&before));
        assert!(!footing(4, 4, 99).covers(&before) && !footing(3, 4, 100).covers(&before));
        assert!(!footing(4, 3, 5_000).covers(&before), "a longer log of an older term is not ahead");
        assert!(footing(5, 5, 90).covers(&before) && !Footing::default().covers(&before));
        assert_eq!(footing(2, 9, 1).farthest(before), footing(4, 9, 1));
    }
}
