//! The clocks of the operating system. The one file of the project with `unsafe` in it.
//!
//! Read through `libc` and not through `std`, for two reasons: `std` has no raw monotonic clock, and a preloaded library
//! that fakes time (libfaketime, in the fault tests) reaches these calls. The boot-time clock is *not* used: after a
//! suspend it is computed from the hardware's wall clock and may jump.
//!
//! Invariant: two processes have the same `clock_id` only if their clocks have the same zero. Where that cannot be known,
//! the id is random per process, and every observation of an earlier process is worth nothing.
#![expect(unsafe_code, reason = "clock_gettime has no safe counterpart for CLOCK_MONOTONIC_RAW in std")]

use super::reading::{ClockId, Clocks, Reading};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::{fs, io};

#[cfg(target_os = "linux")]
const CLOCK_RAW: libc::clockid_t = libc::CLOCK_MONOTONIC_RAW;
/// Elsewhere the raw clock does not exist or counts otherwise: the monotonic one stands in for both.
#[cfg(not(target_os = "linux"))]
const CLOCK_RAW: libc::clockid_t = libc::CLOCK_MONOTONIC;

/// The clocks of the machine this process runs on.
#[derive(Debug, Clone)]
pub struct SystemClocks {
    clock_id: ClockId,
    survives_restart: bool,
}

impl SystemClocks {
    /// Tries both clocks once and finds out which pair it is. Neither can change under a running process.
    pub fn new() -> io::Result<Self> {
        clock_ns(libc::CLOCK_MONOTONIC)?;
        clock_ns(CLOCK_RAW)?;
        let known = known_id();
        Ok(Self { clock_id: known.unwrap_or_else(random_id), survives_restart: known.is_some() })
    }

    /// Whether an observation stored now can be used after a restart of this process. If not, a node that restarts and
    /// leads before it has appended anything loses the time since the last stamp: safe, and worth a log line.
    pub const fn survives_restart(&self) -> bool {
        self.survives_restart
    }
}

impl Clocks for SystemClocks {
    fn read(&self) -> Reading {
        let ns = |clock| clock_ns(clock).expect("a clock that could be read at the start can always be read");
        Reading { mono_ns: ns(libc::CLOCK_MONOTONIC), raw_ns: ns(CLOCK_RAW), clock_id: self.clock_id }
    }
}

fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `at` is a valid timespec that outlives the call, which writes nothing else.
    if unsafe { libc::clock_gettime(clock, &raw mut at) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (Ok(secs), Ok(nanos)) = (u64::try_from(at.tv_sec), u64::try_from(at.tv_nsec)) else {
        return Err(io::Error::other(format!("the monotonic clock stands at {} s, before its zero", at.tv_sec)));
    };
    Ok(secs * 1_000_000_000 + nanos)
}

/// The id of the clocks if the system can tell: which boot, which time namespace, and how far that one is shifted. The
/// link alone is not enough, because the number in it is free again once its namespace is gone.
fn known_id() -> Option<ClockId> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id").ok().filter(|id| !id.is_empty())?;
    let namespace = fs::read_link("/proc/self/ns/time").ok()?;
    let offsets = fs::read("/proc/self/timens_offsets").ok()?;
    Some(id_of([&boot, namespace.as_os_str().as_encoded_bytes(), &offsets]))
}

fn id_of(parts: [&[u8]; 3]) -> ClockId {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        // The length keeps a byte from wandering from one part to the next unnoticed.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    ClockId(u64::from_le_bytes(first))
}

/// An id no other process has. `RandomState` takes its keys from the operating system's randomness.
fn random_id() -> ClockId {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    ClockId(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_ordered_and_never_cached() {
        let clocks = SystemClocks::new().unwrap();
        let first = clocks.read();
        let mut second = clocks.read();
        while second.mono_ns == first.mono_ns || second.raw_ns == first.raw_ns {
            second = clocks.read();
        }
        assert!(first.precedes(&second));
    }

    #[test]
    fn one_machine_has_one_id_where_it_can_be_known() {
        let (a, b) = (SystemClocks::new().unwrap(), SystemClocks::new().unwrap());
        assert_eq!(a.survives_restart(), b.survives_restart());
        assert_eq!(a.read().clock_id == b.read().clock_id, a.survives_restart());
    }

    #[test]
    fn every_part_of_the_id_counts_and_none_leaks_into_the_next() {
        let id = id_of([b"boot", b"time:[1]", b"0"]);
        assert_eq!(id, id_of([b"boot", b"time:[1]", b"0"]));
        assert_ne!(id, id_of([b"boo", b"time:[1]", b"0"]));
        assert_ne!(id, id_of([b"boot", b"time:[2]", b"0"]));
        assert_ne!(id, id_of([b"boot", b"time:[1]", b"100000"]));
        assert_ne!(id, id_of([b"boott", b"ime:[1]", b"0"]));
        assert_ne!(random_id(), random_id());
    }
}
