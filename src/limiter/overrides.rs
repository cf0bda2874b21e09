//! What a request may bring along itself where a stored rule has the limit.

use super::bucket::Bucket;
use super::concurrency::Concurrency;
use super::limit::{Limit, LimitError};
use super::ramp::Ramp;
use super::rate::Rate;
use super::spacing::Spacing;
use super::window::Window;
use serde::{Deserialize, Serialize};

/// A member of a limit, or all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Member {
    /// Everything, the kind included.
    Limit,
    /// `rate`.
    Rate,
    /// `burst`.
    Burst,
    /// `max_reserved`.
    MaxReserved,
    /// `start_window`.
    StartWindow,
    /// `ramp`.
    Ramp,
    /// `resolution`.
    Resolution,
    /// `aligned`.
    Aligned,
    /// `max`.
    Max,
    /// `lease`.
    Lease,
}

impl Member {
    /// All of them, in the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::Limit,
        Self::Rate,
        Self::Burst,
        Self::MaxReserved,
        Self::StartWindow,
        Self::Ramp,
        Self::Resolution,
        Self::Aligned,
        Self::Max,
        Self::Lease,
    ];

    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Rate => "rate",
            Self::Burst => "burst",
            Self::MaxReserved => "max_reserved",
            Self::StartWindow => "start_window",
            Self::Ramp => "ramp",
            Self::Resolution => "resolution",
            Self::Aligned => "aligned",
            Self::Max => "max",
            Self::Lease => "lease",
        }
    }
}

/// A set of members. Nothing by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Overrides(u16);

impl Overrides {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// The same and `member`.
    #[must_use]
    pub const fn with(self, member: Member) -> Self {
        Self(self.0 | 1 << member as u8)
    }

    /// Whether `member` is in it.
    pub const fn has(self, member: Member) -> bool {
        self.0 & 1 << member as u8 != 0
    }

    /// The members in it.
    pub fn members(self) -> impl Iterator<Item = Member> {
        Member::ALL.into_iter().filter(move |member| self.has(*member))
    }

    /// The limit of a rule with what the request may bring along. A request that brings a limit brings all its members, those it
    /// does not say by default; a limit of another kind brings none, unless everything may be brought.
    pub fn merge(self, rule: &Limit, asked: &Limit) -> Result<Limit, LimitError> {
        if self.has(Member::Limit) {
            return Ok(*asked);
        }
        let pick = |member| self.has(member);
        Ok(match (rule, asked) {
            (Limit::Spacing(rule), Limit::Spacing(asked)) => {
                let rate = if pick(Member::Rate) { asked } else { rule }.rate();
                let start_window = if pick(Member::StartWindow) { asked } else { rule }.start_window();
                let max_reserved = if pick(Member::MaxReserved) { asked } else { rule }.max_reserved();
                let ramp = if pick(Member::Ramp) { asked } else { rule }.ramp();
                Limit::Spacing(ramped(Spacing::new(rate, start_window, max_reserved)?, ramp, Spacing::with_ramp)?)
            }
            (Limit::Bucket(rule), Limit::Bucket(asked)) => {
                let rate = if pick(Member::Rate) { asked } else { rule }.rate();
                let burst = if pick(Member::Burst) { asked } else { rule }.burst();
                let start_window = if pick(Member::StartWindow) { asked } else { rule }.start_window();
                let max_reserved = if pick(Member::MaxReserved) { asked } else { rule }.max_reserved();
                let ramp = if pick(Member::Ramp) { asked } else { rule }.ramp();
                let plain = Bucket::new(rate, burst, start_window, max_reserved)?;
                Limit::Bucket(ramped(plain, ramp, Bucket::with_ramp)?)
            }
            (Limit::Window(rule), Limit::Window(asked)) => {
                let rate: Rate = if pick(Member::Rate) { asked } else { rule }.rate();
                let resolution = if pick(Member::Resolution) { asked } else { rule }.resolution();
                let aligned = if pick(Member::Aligned) { asked } else { rule }.is_aligned();
                let window = if aligned { Window::aligned(rate) } else { Window::sliding(rate, Some(resolution))? };
                Limit::Window(window)
            }
            (Limit::Concurrency(rule), Limit::Concurrency(asked)) => {
                let max = if pick(Member::Max) { asked } else { rule }.max();
                let lease = if pick(Member::Lease) { asked } else { rule }.lease();
                Limit::Concurrency(Concurrency::new(max, lease)?)
            }
            _ => *rule,
        })
    }
}

fn ramped<T>(
    plain: T,
    ramp: Option<Ramp>,
    with: impl FnOnce(T, Ramp) -> Result<T, LimitError>,
) -> Result<T, LimitError> {
    match ramp {
        Some(ramp) => with(plain, ramp),
        None => Ok(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Span;

    fn spacing(rate: &str, max_reserved: u32) -> Limit {
        Limit::Spacing(Spacing::new(rate.parse().unwrap(), Span::ZERO, max_reserved).unwrap())
    }

    fn window(rate: &str, resolution_secs: u64) -> Limit {
        Limit::Window(Window::sliding(rate.parse().unwrap(), Some(Span::from_secs(resolution_secs))).unwrap())
    }

    #[test]
    fn nothing_by_default_and_only_what_is_listed() {
        let (rule, asked) = (spacing("1/6s", 10), spacing("10/s", 99));
        assert_eq!(Overrides::NONE.merge(&rule, &asked), Ok(rule));
        assert_eq!(Overrides::NONE.with(Member::MaxReserved).merge(&rule, &asked), Ok(spacing("1/6s", 99)));
        assert_eq!(Overrides::NONE.with(Member::Rate).merge(&rule, &asked), Ok(spacing("10/s", 10)));
        assert_eq!(Overrides::NONE.with(Member::Limit).merge(&rule, &window("1/s", 1)), Ok(window("1/s", 1)));
        assert_eq!(Overrides::NONE.with(Member::Rate).merge(&rule, &window("1/s", 1)), Ok(rule), "another kind");
    }

    #[test]
    fn a_merge_that_makes_no_sense_says_so() {
        let finer = Overrides::NONE.with(Member::Rate);
        assert!(finer.merge(&window("10/10s", 5), &window("10/6s", 1)).is_err(), "5 s do not divide 6 s");
        assert_eq!(Overrides::NONE.with(Member::Burst).members().map(Member::as_str).collect::<Vec<_>>(), ["burst"]);
    }
}
