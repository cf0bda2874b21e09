//! The rule under test and the wrong ones that the harness has to catch.

/// Which rule a history runs under. All but the first are mistakes, each one away from the sound rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// As `clock/` has it: a new leader continues from the last entry in its own log order.
    Sound,
    /// "A new leader continues from the latest time it knows": the maximum of `C` + elapsed over all observations.
    LatestKnown,
    /// The same maximum, over the entries of the last leader only.
    LatestOfLastLeader,
    /// A leader reads all its stamps off the base of its election, which lets a slew be made up for at full speed.
    OneBase,
    /// Apply does not compare the leader id in the entry with that of its log id.
    NoLeaderCheck,
    /// Apply rejects stale entries, but a new leader takes them for a base.
    StaleEntryAsBase,
    /// A retry measures the worker's deadline from the last send, not from the first.
    DeadlineFromRetry,
    /// A truncated entry's observation stays behind and passes to the entry that takes its place.
    ObservationOutlivesEntry,
    /// An installed snapshot brings the sender's observation along.
    ObservationOfSender,
    /// Observations are used whatever clocks they were read on.
    AnyClock,
    /// Only the monotonic clock counts, which chrony may slew.
    MonotonicOnly,
    /// The worker's window is not shrunk by the drift: `W` in place of `W'`.
    WholeWindow,
}
