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
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// From one look whether somebody is late to the next.
const LOOK: Duration = Duration::from_millis(1);
/// From one message to the next for those who are not needed.
pub(super) const STEP: Duration = Duration::from_millis(4);
/// Who takes so many times as long as usual to answer an append is late, within these bounds: it is not prompt.
const LATE_TIMES: u32 = 4;
const LATE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(5);
/// One that takes so many times as long as the quickest, and this much longer, is not needed where others are prompt.
const SLOW_TIMES: u32 = 2;
const SLOW_BY: Duration = Duration::from_millis(1);
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
}

#[derive(Debug, Default)]
struct Follower {
    /// When those appends were sent that have no answer yet.
    unanswered: VecDeque<Stopwatch>,
    /// How long an answer takes, smoothed. `None` before the first one, and after a connection was lost.
    takes: Option<Duration>,
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
    pub(super) fn begun(&self, follower: u64) {
        self.lock().followers.insert(follower, Follower::default());
    }

    /// An append was sent.
    pub(super) fn sent(&self, follower: u64) {
        self.lock().followers.entry(follower).or_default().unanswered.push_back(Stopwatch::start());
    }

    /// The oldest append was answered.
    pub(super) fn answered(&self, follower: u64) {
        let mut known = self.lock();
        let follower = known.followers.entry(follower).or_default();
        if let Some(since) = follower.unanswered.pop_front() {
            let took = since.elapsed();
            follower.takes = Some(follower.takes.map_or(took, |takes| (takes * (SMOOTH - 1) + took) / SMOOTH));
        }
    }

    /// Waits until it is this follower's turn: at once for those who are needed. `left` is when the last message went to it.
    pub(super) async fn turn(&self, follower: u64, left: Stopwatch) {
        loop {
            let rest = STEP.saturating_sub(left.elapsed());
            if rest.is_zero() || self.is_needed(follower) {
                return;
            }
            tokio::time::sleep_until(Deadline::after(rest.min(LOOK)).instant()).await;
        }
    }

    fn is_needed(&self, follower: u64) -> bool {
        self.lock().is_needed(follower, self.own.append_waited())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// `own` is how long this node's own disk keeps an append waiting.
    fn is_needed(&self, follower: u64, own: Duration) -> bool {
        if !self.others.contains(&follower) {
            return true;
        }
        let prompt = || self.others.iter().filter_map(|id| Some((*id, self.followers.get(id)?.prompt()?)));
        let Some(quickest) = prompt().map(|(_, takes)| takes).min() else { return true };
        // Of all that vote, this node among them unless its disk is late itself.
        let needed = self.others.len().div_ceil(2) + usize::from(is_late(own, quickest));
        let is_slow = |takes: Duration| takes > SLOW_TIMES * quickest + SLOW_BY;
        let mut best: Vec<_> = prompt().map(|(id, takes)| (is_slow(takes), id)).collect();
        best.sort_unstable();
        best.len() < needed || best[..needed].iter().any(|(_, id)| *id == follower)
    }
}

impl Follower {
    /// How long it takes to answer, if it answers.
    fn prompt(&self) -> Option<Duration> {
        self.takes.filter(|takes| self.unanswered.front().is_none_or(|oldest| !is_late(oldest.elapsed(), *takes)))
    }
}

/// Whether somebody who usually takes `takes` is late after having `waited` so long.
fn is_late(waited: Duration, takes: Duration) -> bool {
    waited >= (LATE_TIMES * takes).clamp(*LATE.start(), *LATE.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    fn pace(others: impl IntoIterator<Item = u64>) -> Pace {
        let pace = Pace::default();
        pace.set_others(others.into_iter().collect());
        pace
    }

    async fn answers(pace: &Pace, follower: u64, within: Duration) {
        pace.sent(follower);
        advance(within).await;
        pace.answered(follower);
    }

    fn needed<const N: usize>(pace: &Pace, followers: [u64; N]) -> [bool; N] {
        followers.map(|follower| pace.is_needed(follower))
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_are_needed_as_a_majority_takes() {
        let quick = Duration::from_micros(100);
        for (others, expected) in
            [(2..=2, [true; 4]), (2..=3, [true, false, true, true]), (2..=5, [true, true, false, false])]
        {
            let pace = pace(others.clone());
            for follower in others {
                answers(&pace, follower, quick).await;
            }
            assert_eq!(needed(&pace, [2, 3, 4, 5]), expected, "who does not vote is never held up");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_needed_until_enough_are_prompt() {
        let pace = pace([2, 3]);
        assert_eq!(needed(&pace, [2, 3]), [true, true], "nobody has answered anything");
        answers(&pace, 3, Duration::from_micros(100)).await;
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
        answers(&pace, 2, Duration::from_micros(200)).await;
        assert_eq!(needed(&pace, [2, 3]), [true, false], "of equals the first");
        pace.sent(2);
        pace.sent(2);
        advance(*LATE.start()).await;
        assert_eq!(needed(&pace, [2, 3]), [false, true], "it has stalled");
        pace.sent(3);
        advance(*LATE.start()).await;
        assert_eq!(needed(&pace, [2, 3]), [true, true], "both have");
        pace.begun(2);
        pace.answered(3);
        assert_eq!(needed(&pace, [2, 3]), [false, true], "a new connection proves itself first");
        pace.set_others(BTreeSet::new());
        assert_eq!(needed(&pace, [2, 3]), [true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn everybody_is_needed_while_the_leaders_own_disk_is_late() {
        let own = Synced::default();
        let pace = Pace::new(own.clone());
        pace.set_others([2, 3].into());
        for follower in [2, 3] {
            answers(&pace, follower, Duration::from_micros(500)).await;
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
    async fn late_is_who_takes_long_for_himself_but_no_longer_than_a_step_or_so() {
        for (takes, late) in [(100, 1_000), (700, 2_800), (3_000, 5_000)] {
            let pace = pace([2]);
            answers(&pace, 2, Duration::from_micros(takes)).await;
            pace.sent(2);
            advance(Duration::from_micros(late - 1)).await;
            assert!(pace.lock().followers[&2].prompt().is_some(), "{takes}");
            advance(Duration::from_micros(1)).await;
            assert!(pace.lock().followers[&2].prompt().is_none(), "{takes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_disk_is_not_waited_for_while_there_is_a_quicker_one() {
        let pace = pace([2, 3]);
        for _ in 0..50 {
            answers(&pace, 2, Duration::from_millis(4)).await;
            answers(&pace, 3, Duration::from_micros(300)).await;
        }
        assert_eq!(needed(&pace, [2, 3]), [false, true]);
        for _ in 0..50 {
            answers(&pace, 2, Duration::from_micros(900)).await;
        }
        assert_eq!(needed(&pace, [2, 3]), [true, false], "not so slow that it would matter");
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_needed_waits_for_the_rest_of_a_step_and_others_not_at_all() {
        let pace = pace([2, 3]);
        for follower in [2, 3] {
            answers(&pace, follower, Duration::from_micros(100)).await;
        }
        let left = Stopwatch::start();
        pace.turn(2, left).await;
        assert_eq!(left.elapsed(), Duration::ZERO);
        advance(STEP / 4).await;
        pace.turn(3, left).await;
        assert!((STEP..2 * STEP).contains(&left.elapsed()), "{:?}", left.elapsed());
        let since = Stopwatch::start();
        pace.turn(3, left).await;
        assert_eq!(since.elapsed(), Duration::ZERO, "its turn has come");
        let left = Stopwatch::start();
        pace.sent(2);
        pace.turn(3, left).await;
        assert!((*LATE.start()..STEP).contains(&left.elapsed()), "the other one is late: {:?}", left.elapsed());
    }
}
