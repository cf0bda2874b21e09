//! Milliseconds on the wire: JSON numbers with up to three decimals, whole microseconds inside.
//!
//! A float only ever exists between this type and the JSON text, where a double carries every number of microseconds
//! below 2^53 (285 years) without loss.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Past this many microseconds a length of time no longer fits into 64 bits of nanoseconds (584 years).
const MICROS_MAX: u64 = u64::MAX / 1_000;

/// A length of time, or an instant since the cluster was formed, in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(u64);

impl Millis {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// From nanoseconds, rounded **up**: for waits, which may only get longer.
    pub const fn up_from_ns(ns: u64) -> Self {
        Self(ns.div_ceil(1_000))
    }

    /// From nanoseconds, rounded **down**: for deadlines, which may only come sooner.
    pub const fn down_from_ns(ns: u64) -> Self {
        Self(ns / 1_000)
    }

    /// From a duration, rounded **up**; saturates after 584 years.
    pub fn up_from(duration: Duration) -> Self {
        Self::up_from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whole microseconds.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The same in nanoseconds; saturates after 584 years.
    pub const fn ns(self) -> u64 {
        self.0.saturating_mul(1_000)
    }

    /// The same as the standard library has it.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

/// `5999.876`, `6000`: as in the JSON.
impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1_000, self.0 % 1_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let decimals = format!("{rest:03}");
        write!(f, "{whole}.{}", decimals.trim_end_matches('0'))
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1_000) {
            return serializer.serialize_u64(self.0 / 1_000);
        }
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53 microseconds, which is 285 years")]
        serializer.serialize_f64(self.0 as f64 / 1_000.0)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MillisVisitor)
    }
}

struct MillisVisitor;

impl Visitor<'_> for MillisVisitor {
    type Value = Millis;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of milliseconds")
    }

    fn visit_u64<E: Error>(self, whole: u64) -> Result<Millis, E> {
        match whole.checked_mul(1_000) {
            Some(micros) if micros <= MICROS_MAX => Ok(Millis(micros)),
            _ => Err(E::custom(format_args!("{whole} milliseconds is longer than any time here may be"))),
        }
    }

    fn visit_i64<E: Error>(self, whole: i64) -> Result<Millis, E> {
        match u64::try_from(whole) {
            Ok(whole) => self.visit_u64(whole),
            Err(_) => Err(E::custom(format_args!("a time is not negative, this one is {whole}"))),
        }
    }

    fn visit_f64<E: Error>(self, millis: f64) -> Result<Millis, E> {
        // More than three decimals are noise of somebody's floats: 5999.876000000001 means the nearest microsecond.
        let micros = (millis * 1_000.0).round();
        if !micros.is_finite() {
            return Err(E::custom("a time is a finite number"));
        }
        if millis < 0.0 {
            return Err(E::custom(format_args!("a time is not negative, this one is {millis}")));
        }
        #[expect(clippy::cast_precision_loss, reason = "only the size of the bound matters, not its last digits")]
        if micros > MICROS_MAX as f64 {
            return Err(E::custom(format_args!("{millis} milliseconds is longer than any time here may be")));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked just above")]
        Ok(Millis(micros as u64))
    }
}

impl PartialSchema for Millis {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::Number)
            .description(Some("Milliseconds, with up to three decimals"))
            .minimum(Some(0))
            .build()
            .into()
    }
}

impl ToSchema for Millis {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Millis, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_keep_their_three_decimals() {
        for (text, micros) in [
            ("0", 0),
            ("0.0", 0),
            ("6000", 6_000_000),
            ("5999.876", 5_999_876),
            ("5999.8760000001", 5_999_876),
            ("86400123.5", 86_400_123_500),
            ("1e3", 1_000_000),
            ("0.001", 1),
            ("-0.0", 0),
            ("31622400000", 31_622_400_000_000),
        ] {
            assert_eq!(read(text), Ok(Millis(micros)), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_of_time_is_refused() {
        for (text, why) in [
            ("-1", "a time is not negative, this one is -1"),
            ("-0.5", "a time is not negative, this one is -0.5"),
            ("1e300", "longer than any time here may be"),
            ("1e999", "out of range"),
            ("18446744073709551615", "longer than any time here may be"),
            ("NaN", "expected value"),
            ("\"6s\"", "expected a number of milliseconds"),
            ("null", "expected a number of milliseconds"),
            ("[]", "expected a number of milliseconds"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn writing_and_reading_is_exact_for_a_century() {
        let century_micros: u64 = 100 * 366 * 86_400 * 1_000_000;
        for micros in (0..3_000).chain((0..100_000).map(|i| century_micros / 100_003 * i + i)) {
            let text = serde_json::to_string(&Millis(micros)).unwrap();
            assert_eq!(text, Millis(micros).to_string());
            assert_eq!(read(&text), Ok(Millis(micros)), "{text}");
        }
    }

    #[test]
    fn rounding_says_its_direction() {
        assert_eq!(Millis::up_from_ns(1_001), Millis(2));
        assert_eq!(Millis::down_from_ns(1_999), Millis(1));
        assert_eq!(Millis::up_from(Duration::from_nanos(1)), Millis(1));
        assert_eq!(Millis(7).ns(), 7_000);
        assert_eq!(Millis(7).duration(), Duration::from_micros(7));
    }
}
