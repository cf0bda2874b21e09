//! What whoever stands between two peers can tell from the first frame: who calls whom. For the proxies of the fault tests.

use super::codec;
use super::frame::Kind;
use super::identity::Hello;

/// The caller and the called node, from the bytes of a connection so far: `None` while the greeting is not complete.
pub fn caller_of(bytes: &[u8]) -> Option<(u64, u64)> {
    /// Length, format, kind and number come before the body.
    const HEAD_BYTES: usize = 4 + 1 + 1 + 8;
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let body = bytes.get(HEAD_BYTES..4 + length)?;
    if bytes[5] != Kind::Hello as u8 {
        return None;
    }
    codec::decode::<Hello>(body).ok().map(|hello| hello.parties())
}
