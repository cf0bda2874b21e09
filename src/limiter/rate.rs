//! The text of rates and durations: `1/6s`, `10/s`, `5/250ms`; `250ms`, `6s`, `1m`, `1h`, `1d`.
//!
//! Errors say what was wrong and at which column (counted from 1, in bytes).

use super::time::Span;
use crate::limits::{INTERVAL_NS_MAX, INTERVAL_NS_MIN, RATE_COUNT_MAX, RATE_TEXT_BYTES_MAX};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

const UNITS: [(&str, u64); 6] = [
    // Not for people: a tenth of a millisecond is the shortest cell that a window gets by default.
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// `count` permits in every `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u64, Span)", into = "(u64, Span)")]
pub struct Rate {
    count: u64,
    per: Span,
}

/// What is wrong with the text of a rate or a duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RateError {
    /// The text does not follow the grammar.
    #[error("expected {expected} at column {column} of {text:?}, found {found}")]
    Syntax {
        /// What the grammar wants there.
        expected: &'static str,
        /// Where, in bytes from 1.
        column: usize,
        /// What stands there.
        found: String,
        /// The whole text, shortened if it is long.
        text: String,
    },
    /// Longer than any sensible text.
    #[error("a rate or duration has at most {RATE_TEXT_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// The grammar is right, the value can never work.
    #[error("{0}")]
    Absurd(String),
}

impl Rate {
    /// A rate from its two numbers, checked against the bounds.
    pub fn new(count: u64, per: Span) -> Result<Self, RateError> {
        let rate = Self { count, per };
        if count == 0 {
            return Err(RateError::Absurd(format!("a rate of 0 in {per} never grants anything")));
        }
        if count > RATE_COUNT_MAX {
            return Err(RateError::Absurd(format!("a rate counts at most {RATE_COUNT_MAX}, this one {count}")));
        }
        if per.0 == 0 {
            return Err(RateError::Absurd("a rate over no time at all limits nothing".to_owned()));
        }
        let interval = rate.interval();
        // Of a long period with many permits the interval is fine, so it cannot be what the message complains about.
        if count > 1 && per.0 > INTERVAL_NS_MAX {
            return Err(RateError::Absurd(format!(
                "{rate} counts over {per}; a rate counts over at most {}",
                Span(INTERVAL_NS_MAX)
            )));
        }
        if interval.0 < INTERVAL_NS_MIN || interval.0 > INTERVAL_NS_MAX {
            return Err(RateError::Absurd(format!(
                "{rate} is one every {interval}; the interval has to lie between {} and {}",
                Span(INTERVAL_NS_MIN),
                Span(INTERVAL_NS_MAX)
            )));
        }
        Ok(rate)
    }

    /// The time between two permits, rounded **up** to a nanosecond: never faster than asked for.
    pub const fn interval(self) -> Span {
        Span(self.per.0.div_ceil(self.count))
    }

    /// The `N` of `N/T`.
    pub const fn count(self) -> u64 {
        self.count
    }

    /// The `T` of `N/T`.
    pub const fn per(self) -> Span {
        self.per
    }
}

/// Bytes from a log or a peer are checked like any other input.
impl TryFrom<(u64, Span)> for Rate {
    type Error = RateError;
    fn try_from((count, per): (u64, Span)) -> Result<Self, RateError> {
        Self::new(count, per)
    }
}

impl From<Rate> for (u64, Span) {
    fn from(rate: Rate) -> Self {
        (rate.count, rate.per)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let mut cursor = Cursor::new(text)?;
        let count = cursor.number("a count such as the 10 of \"10/s\"")?;
        cursor.literal('/', "'/'")?;
        let per = cursor.span(true)?;
        cursor.end()?;
        Self::new(count, per)
    }
}

/// `10/s`, `1/6s`: parses back to the same rate.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per = self.per.to_string();
        let unit_only = per.strip_prefix('1').filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit()));
        write!(f, "{}/{}", self.count, unit_only.unwrap_or(&per))
    }
}

/// Reads a duration such as `250ms`, `6s`, `1m`, `1h`, `1d`.
pub fn parse_duration(text: &str) -> Result<Span, RateError> {
    let mut cursor = Cursor::new(text)?;
    let span = cursor.span(false)?;
    cursor.end()?;
    if span.0 > INTERVAL_NS_MAX {
        return Err(RateError::Absurd(format!("a duration is at most {}, this one is {span}", Span(INTERVAL_NS_MAX))));
    }
    Ok(span)
}

/// Reads from left to right and remembers where it is.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Result<Self, RateError> {
        if text.len() > RATE_TEXT_BYTES_MAX { Err(RateError::TooLong(text.len())) } else { Ok(Self { text, at: 0 }) }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn wrong(&self, expected: &'static str) -> RateError {
        let found = match self.rest().chars().next() {
            Some(c) => format!("{c:?}"),
            None => "the end".to_owned(),
        };
        RateError::Syntax { expected, column: self.at + 1, found, text: self.text.to_owned() }
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, RateError> {
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            return Err(self.wrong(expected));
        }
        let text = &self.rest()[..digits];
        let number =
            text.parse().map_err(|_| RateError::Absurd(format!("{text} is larger than any number here may be")))?;
        self.at += digits;
        Ok(number)
    }

    fn literal(&mut self, wanted: char, expected: &'static str) -> Result<(), RateError> {
        if !self.rest().starts_with(wanted) {
            return Err(self.wrong(expected));
        }
        self.at += wanted.len_utf8();
        Ok(())
    }

    /// A number and a unit; the number may be left out in `10/s`.
    fn span(&mut self, unit_alone: bool) -> Result<Span, RateError> {
        let starts_with_digit = self.rest().starts_with(|c: char| c.is_ascii_digit());
        let number =
            if unit_alone && !starts_with_digit { 1 } else { self.number("a number such as the 6 of \"6s\"")? };
        let unit_text = self.rest();
        let letters = unit_text.bytes().take_while(u8::is_ascii_alphabetic).count();
        let Some((name, unit)) = UNITS.iter().find(|(name, _)| *name == &unit_text[..letters]) else {
            return Err(self.wrong("a unit (ms, s, m, h or d)"));
        };
        self.at += letters;
        Span(*unit).times(number).ok_or_else(|| RateError::Absurd(format!("{number}{name} is longer than time itself")))
    }

    fn end(&self) -> Result<(), RateError> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.wrong("the end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_texts() {
        for (text, interval) in [
            ("1/6s", Span::from_secs(6)),
            ("10/s", Span::from_millis(100)),
            ("5/250ms", Span::from_millis(50)),
            ("100/1m", Span::from_millis(600)),
            ("1/h", Span::from_secs(3_600)),
            ("1/366d", Span(INTERVAL_NS_MAX)),
            ("1/100us", Span(100_000)),
            ("3/s", Span(333_333_334)),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().interval(), interval, "{text}");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        for (text, message) in [
            ("", r#"expected a count such as the 10 of "10/s" at column 1 of "", found the end"#),
            ("-1/s", r#"expected a count such as the 10 of "10/s" at column 1 of "-1/s", found '-'"#),
            ("NaN", r#"expected a count such as the 10 of "10/s" at column 1 of "NaN", found 'N'"#),
            ("10", r#"expected '/' at column 3 of "10", found the end"#),
            ("1.5/s", r#"expected '/' at column 2 of "1.5/s", found '.'"#),
            ("1/6", r#"expected a unit (ms, s, m, h or d) at column 4 of "1/6", found the end"#),
            ("1/6x", r#"expected a unit (ms, s, m, h or d) at column 4 of "1/6x", found 'x'"#),
            ("1/6s ", r#"expected the end at column 5 of "1/6s ", found ' '"#),
            ("1/é", r#"expected a unit (ms, s, m, h or d) at column 3 of "1/é", found 'é'"#),
            ("0/s", "a rate of 0 in 1s never grants anything"),
            ("1/0s", "a rate over no time at all limits nothing"),
            ("99999999999999999999/s", "99999999999999999999 is larger than any number here may be"),
            ("1/18446744073709551615d", "18446744073709551615d is longer than time itself"),
            ("1000000000/s", "1000000000/s is one every 1ns; the interval has to lie between 1us and 366d"),
            ("1/367d", "1/367d is one every 367d; the interval has to lie between 1us and 366d"),
            ("2/732d", "2/732d counts over 732d; a rate counts over at most 366d"),
            ("1000000/400d", "1000000/400d counts over 400d; a rate counts over at most 366d"),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap_err().to_string(), message, "{text}");
        }
        assert!(matches!("1".repeat(99).parse::<Rate>(), Err(RateError::TooLong(99))));
        assert!(parse_duration("s").is_err());
        assert_eq!(parse_duration("250ms"), Ok(Span::from_millis(250)));
    }

    #[test]
    fn printing_and_reading_agree() {
        for text in ["1/6s", "10/s", "5/250ms", "100/m", "90/90s", "11/d"] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }
}
