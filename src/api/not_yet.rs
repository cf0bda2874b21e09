//! Members that the contract names and this version cannot honour yet.
//!
//! Ignoring them would grant something else than what was asked for, and "unknown field" would call a documented member
//! a typing error.

use serde::de::{Deserialize, Deserializer, Error};

/// Stands for the value of such a member: never read, always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotYet {}

impl<'de> Deserialize<'de> for NotYet {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("this version does not know this member yet"))
    }
}
