//! Whom a commit waits for, and who follows in larger steps (docs/adr/0023).
//!
//! A leader of three needs one follower to commit. The other one gets the same entries, but several at a time: one message, one sync
//! and one answer for all of them. So an entry has its full price on as many nodes as a majority needs, and not on all.
//!
//! Invariants
//! - Those who are needed are sent everything at once. They are as many as a majority takes, the leader with them, and all prompt:
//!   where too few are, everybody is needed.
//! - Who is not needed waits no longer than [`STEP`] after what was sent before, and not at all while it is behind. As soon as
//!   one of the others is late, it does not wait any more.
//! - A guess about time decides who is needed, and nothing else: what is committed is for the engine to say, and a wrong guess
//!   costs up to [`STEP`].

use super::synced::Synced;
use crate::clock::{Deadline, Stopwatch};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// From one look whether somebody is late to the next.
const LOOK: Duration = Duration::from_millis(1);
/// From one message to the next for those who are not needed.
pub(super) const STEP: Duration = Duration::from_millis(4);
/// Who takes so many times as long as usual to answer an append, and this long, is late: it is not prompt.
const LATE_TIMES: u32 = 4;
const LATE: Duration = Duration::from_millis(1);
/// Who was needed before stays so, unless another one needs less than this share of its time, and less by this. Else the two would
/// take turns, and each would find the other one's caches cold.
const STAYS: (u32, u32) = (3, 4);
const STAYS_BY: Duration = Duration::from_micros(200);
/// A new measurement counts for this share of what is known.
const SMOOTH: u32 = 8;
/// A follower that takes so many entries at once is behind, and is not held up.
pub(super) const BEHIND_ENTRIES: usize = 16;

/// What a leader knows of its followers, and of its own disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    known: Arc<Mutex<Known>>,
    own: Synced,
}

#[derive(Debug, Default)]
struct Known {
    /// The members that count, without this node; none while it is not one of them or while they change.
    others: BTreeSet<u64>,
    followers: BTreeMap<u64, Follower>,
    /// Of these, who was needed last.
    needed: BTreeSet<u64>,
    streams: u64,
}

#[derive(Debug, Default)]
struct Follower {
    /// Its newest stream of appends.
    stream: u64,
    unanswered: VecDeque<Append>,
    /// How long an answer takes, smoothed. `None` before the first one, and while it is behind.
    takes: Option<Duration>,
}

/// An append without an answer.
#[derive(Debug)]
struct Append {
    since: Stopwatch,
    /// It has entries, and few: how long that takes says something. A question without entries needs no disk.
    counts: bool,
}

impl Pace {
    pub(super) fn new(own: Synced) -> Self {
        Self { known: Arc::default(), own }
    }

    /// Who votes besides this node. Nobody is held up while `others` is empty.
    pub(super) fn set_others(&self, others: BTreeSet<u64>) {
        self.lock().others = others;
    }

    /// A new stream of appends to this follower: what was asked on an earlier one is not answered any more.
    pub(super) fn begin(&self, follower: u64) -> Paced {
        let mut known = self.lock();
        known.streams += 1;
        let stream = known.streams;
        known.followers.insert(follower, Follower { stream, ..Follower::default() });
        Paced { pace: self.clone(), follower, stream }
    }

    fn is_needed(&self, follower: u64) -> bool {
        self.lock().is_needed(follower, self.own.append_waited())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of appends to one follower. When it ends, nobody waits for that follower until there is a new one.
#[derive(Debug)]
pub(super) struct Paced {
    pace: Pace,
    follower: u64,
    stream: u64,
}

impl Paced {
    /// An append with so many entries was sent.
    pub(super) fn sent(&self, entries: usize) {
        self.update(|follower| {
            let counts = (1..BEHIND_ENTRIES).contains(&entries);
            follower.unanswered.push_back(Append { since: Stopwatch::start(), counts });
            if entries >= BEHIND_ENTRIES {
                follower.takes = None;
            }
        });
    }

    /// The oldest append was answered.
    pub(super) fn answered(&self) {
        self.update(|follower| {
            if let Some(Append { since, counts: true }) = follower.unanswered.pop_front() {
                let took = since.elapsed();
                follower.takes = Some(follower.takes.map_or(took, |takes| (takes * (SMOOTH - 1) + took) / SMOOTH));
            }
        });
    }

    /// Waits until it is this follower's turn: at once for those who are needed. `left` is when the last message went to it.
    pub(super) async fn turn(&self, left: Stopwatch) {
        loop {
            let rest = STEP.saturating_sub(left.elapsed());
            if rest.is_zero() || self.pace.is_needed(self.follower) {
                return;
            }
            tokio::time::sleep_until(Deadline::after(rest.min(LOOK)).instant()).await;
        }
    }

    /// Whatever an earlier stream has to say means nothing any more.
    fn update(&self, change: impl FnOnce(&mut Follower)) {
        let mut known = self.pace.lock();
        if let Some(follower) = known.followers.get_mut(&self.follower).filter(|of| of.stream == self.stream) {
            change(follower);
        }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.update(|follower| follower.takes = None);
    }
}

impl Known {
    /// `own` is how long this node's own disk keeps an append waiting.
    fn is_needed(&mut self, follower: u64, own: Duration) -> bool {
        if !self.others.contains(&follower) {
            return true;
        }
        let mut prompt: Vec<_> =
            self.others.iter().filter_map(|id| Some((self.followers.get(id)?.prompt()?, *id))).collect();
        let Some(quickest) = prompt.iter().map(|(takes, _)| *takes).min() else { return true };
        // Of all that vote, this node among them unless its disk is late itself.
        let needed = self.others.len().div_ceil(2) + usize::from(is_late(own, quickest));
        if prompt.len() < needed {
            return true;
        }
        for (takes, id) in &mut prompt {
            if self.needed.contains(id) {
                *takes = (*takes * STAYS.0 / STAYS.1).saturating_sub(STAYS_BY);
            }
        }
        prompt.sort_unstable();
        self.needed = prompt[..needed].iter().map(|(_, id)| *id).collect();
        self.needed.contains(&follower)
    }
}

impl Follower {
    /// How long it takes to answer, if it answers.
    fn prompt(&self) -> Option<Duration> {
        let oldest = self.unanswered.front().map(|append| append.since.elapsed()).unwrap_or_default();
        self.takes.filter(|takes| !is_late(oldest, *takes))
    }
}

/// Whether somebody who usually takes `takes` is late after having `waited` so long.
fn is_late(waited: Duration, takes: Duration) -> bool {
    waited >= LATE.max(LATE_TIMES * takes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const QUICK: Duration = Duration::from_micros(100);

    /// A leader whose followers, from the second node on, all answer quickly.
    async fn pace(nodes: u64) -> (Pace, Vec<Paced>) {
        let pace = Pace::default();
        pace.set_others((2..=nodes).collect());
        let streams: Vec<_> = (2..=nodes).map(|follower| pace.begin(follower)).collect();
        for stream in &streams {
            answers(stream, QUICK).await;
        }
        (pace, streams)
    }

    async fn answers(stream: &Paced, within: Duration) {
        stream.sent(1);
        advance(within).await;
        stream.answered();
    }

    fn needed<const N: usize>(pace: &Pace, followers: [u64; N]) -> [bool; N] {
        followers.map(|follower| pace.is_needed(follower))
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_are_needed_as_a_majority_takes() {
        for (nodes, expected) in [(2, [true; 4]), (3, [true, false, true, true]), (5, [true, true, false, false])] {
            let (pace, _streams) = pace(nodes).await;
            assert_eq!(needed(&pace, [2, 3, 4, 5]), expected, "who does not vote is never held up");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_needed_until_enough_are_prompt() {
        let pace = Pace::default();
        pace.set_others([2, 3].into());
        assert_eq!(needed(&pace, [2, 3]), [true, true], "nobody has answered anything");
        let three = pace.begin(3);
        answers(&three, QUICK).await;
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
        let two = pace.begin(2);
        answers(&two, QUICK).await;
        assert_eq!(needed(&pace, [2, 3]), [false, true], "who was needed stays so");
        three.sent(1);
        three.sent(1);
        advance(LATE).await;
        assert_eq!(needed(&pace, [2, 3]), [true, false], "it has stalled");
        two.sent(1);
        advance(LATE).await;
        assert_eq!(needed(&pace, [2, 3]), [true, true], "both have");
        let again = pace.begin(3);
        two.answered();
        assert_eq!(needed(&pace, [2, 3]), [true, false], "a new connection proves itself first");
        three.sent(1);
        answers(&again, QUICK).await;
        advance(10 * LATE).await;
        drop(three);
        drop(two);
        assert_eq!(
            needed(&pace, [2, 3]),
            [false, true],
            "what was said on an earlier one means nothing, one that ended neither"
        );
        pace.set_others(BTreeSet::new());
        assert_eq!(needed(&pace, [2, 3]), [true, true]);
    }

    /// A follower that gets a snapshot, or all that it lacks, answers questions without entries meanwhile, and quickly.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_follower_that_is_behind() {
        let (pace, streams) = pace(3).await;
        assert_eq!(needed(&pace, [2, 3]), [true, false]);
        streams[0].sent(BEHIND_ENTRIES);
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
        streams[0].answered();
        streams[0].sent(0);
        streams[0].answered();
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
        let again = pace.begin(2);
        again.sent(0);
        again.answered();
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_needed_while_the_leaders_own_disk_is_late() {
        let own = Synced::default();
        let pace = Pace::new(own.clone());
        pace.set_others([2, 3].into());
        let streams = [2, 3].map(|follower| pace.begin(follower));
        for stream in &streams {
            answers(stream, Duration::from_micros(500)).await;
        }
        own.append_waits();
        advance(Duration::from_micros(1_999)).await;
        assert_eq!(needed(&pace, [2, 3]), [true, false], "four times half a millisecond is not over");
        advance(Duration::from_micros(1)).await;
        assert_eq!(needed(&pace, [2, 3]), [true, true]);
        own.append_told();
        assert_eq!(needed(&pace, [2, 3]), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn late_is_who_takes_long_for_himself() {
        for (takes, late) in [(100, 1_000), (700, 2_800), (30_000, 120_000)] {
            let pace = Pace::default();
            let stream = pace.begin(2);
            answers(&stream, Duration::from_micros(takes)).await;
            stream.sent(1);
            advance(Duration::from_micros(late - 1)).await;
            assert!(pace.lock().followers[&2].prompt().is_some(), "{takes}");
            advance(Duration::from_micros(1)).await;
            assert!(pace.lock().followers[&2].prompt().is_none(), "{takes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_quicker_ones_are_needed_if_it_makes_a_difference() {
        let (pace, streams) = pace(3).await;
        let take = async |two: u64, three: u64| {
            for _ in 0..50 {
                answers(&streams[0], Duration::from_micros(two)).await;
                answers(&streams[1], Duration::from_micros(three)).await;
            }
            needed(&pace, [2, 3])
        };
        assert_eq!(take(100, 100).await, [true, false]);
        assert_eq!(take(400, 200).await, [true, false], "it is as good");
        assert_eq!(take(1_900, 500).await, [false, true]);
        assert_eq!(take(400, 500).await, [false, true], "it is as good");
        assert_eq!(take(9_000, 30_000).await, [true, false], "also where both are far away");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_needed_waits_for_the_rest_of_a_step_and_others_not_at_all() {
        let (_pace, streams) = pace(3).await;
        let left = Stopwatch::start();
        streams[0].turn(left).await;
        assert_eq!(left.elapsed(), Duration::ZERO);
        advance(STEP / 4).await;
        streams[1].turn(left).await;
        assert!((STEP..2 * STEP).contains(&left.elapsed()), "{:?}", left.elapsed());
        let since = Stopwatch::start();
        streams[1].turn(left).await;
        assert_eq!(since.elapsed(), Duration::ZERO, "its turn has come");
        let left = Stopwatch::start();
        streams[0].sent(1);
        streams[1].turn(left).await;
        assert!((LATE..STEP).contains(&left.elapsed()), "the other one is late: {:?}", left.elapsed());
    }
}
