//! The name of what is limited.

use crate::limits::KEY_BYTES_MAX;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// A key: 1 to 256 bytes of UTF-8 without control characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Arc<str>);

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
        if let Some((at, found)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(KeyError::Control(found as u32, at));
        }
        Ok(Self(text.into()))
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

impl TryFrom<String> for Key {
    type Error = KeyError;
    fn try_from(text: String) -> Result<Self, KeyError> {
        Self::new(&text)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0.as_ref().to_owned()
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
