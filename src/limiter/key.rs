//! The name of what is limited.

use crate::limits::KEY_BYTES_MAX;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;
use std::borrow::Borrow;
use std::fmt;

use thiserror::Error;

/// A key: 1 to 256 bytes of UTF-8 without control characters. Cheap to clone: up to 23 bytes stand
/// in it, longer ones are shared. Read and written as a string.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmolStr);

/// What is wrong with the text of a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Nothing there.
    #[error("a key has at least one byte")]
    Empty,
    /// Longer than the bound.
    #[error("a key has at most {KEY_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// A control character: it would make logs and terminals lie.
    #[error("a key has no control characters, this one has U+{0:04X} at byte {1}")]
    Control(u32, usize),
}

impl Key {
    /// Checks the text and keeps it.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        if text.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong(text.len()));
        }
        // Nearly every key is printable ASCII, which is soon seen.
        let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let control = if plain { None } else { text.char_indices().find(|(_, c)| c.is_control()) };
        match control {
            Some((at, found)) => Err(KeyError::Control(found as u32, at)),
            None => Ok(Self(text.into())),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Text)
    }
}

/// Takes a key from wherever the text lies, without a copy in between.
struct Text;

impl Visitor<'_> for Text {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Key, E> {
        Key::new(text).map_err(E::custom)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_bounded_and_printable() {
        assert_eq!(Key::new(""), Err(KeyError::Empty));
        assert_eq!(Key::new(&"x".repeat(257)), Err(KeyError::TooLong(257)));
        assert_eq!(Key::new("a\nb"), Err(KeyError::Control(10, 1)));
        assert!(Key::new(&"x".repeat(256)).is_ok());
        assert!(Key::new("github: Zürich/ключ").is_ok());
    }
}
