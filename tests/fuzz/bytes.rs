//! Messages and records: bytes in, a value or an error out.

use super::memory::bounded;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quorate::limiter::{Key, Limit, Spacing, Span, Terms, Time};
use quorate::raft::Decoder;
use quorate::state::{Acquire, Batch, Command, Held, LeaderId, Several, SeveralRule, Stamp, Withdraw};

/// So many cases, or as many times that as the environment wants.
pub(crate) fn cases(count: u32) -> Config {
    let times = std::env::var("FUZZ_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    Config { cases: count.saturating_mul(times), failure_persistence: None, ..Config::default() }
}

/// One thing done to good bytes.
#[derive(Debug, Clone)]
pub(crate) enum Harm {
    Flip(usize, u8),
    Put(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Repeat(usize, usize),
    /// A number that claims very much, as the formats write lengths: seven bits a byte.
    Claim(usize),
}

pub(crate) fn harm() -> impl Strategy<Value = Vec<Harm>> {
    let one = prop_oneof![
        4 => (any::<usize>(), 0_u8..8).prop_map(|(at, bit)| Harm::Flip(at, bit)),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Harm::Put(at, byte)),
        1 => any::<usize>().prop_map(Harm::Cut),
        1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Harm::Insert(at, bytes)),
        1 => (any::<usize>(), 1_usize..32).prop_map(|(at, count)| Harm::Remove(at, count)),
        1 => (any::<usize>(), 1_usize..64).prop_map(|(at, count)| Harm::Repeat(at, count)),
        2 => any::<usize>().prop_map(Harm::Claim),
    ];
    prop::collection::vec(one, 1..6)
}

/// The bytes with all of that done to them.
pub(crate) fn harmed(good: &[u8], harms: &[Harm]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for harm in harms {
        let place = |at: usize| if bytes.is_empty() { 0 } else { at % bytes.len() };
        match harm {
            _ if bytes.is_empty() => break,
            Harm::Flip(at, bit) => {
                let at = place(*at);
                bytes[at] ^= 1 << bit;
            }
            Harm::Put(at, byte) => {
                let at = place(*at);
                bytes[at] = *byte;
            }
            Harm::Cut(at) => bytes.truncate(place(*at)),
            Harm::Insert(at, more) => {
                let at = place(*at);
                bytes.splice(at..at, more.iter().copied());
            }
            Harm::Remove(at, count) => {
                let at = place(*at);
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Harm::Repeat(at, count) => {
                let at = place(*at);
                let again = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, again);
            }
            Harm::Claim(at) => {
                let at = place(*at);
                let many = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
                bytes.splice(at..=at, many);
            }
        }
    }
    bytes
}

#[test]
fn no_message_and_no_record_is_too_strange() {
    bounded(|| {
        let mut runner = TestRunner::new(cases(20_000));
        // The format byte is right in most: what is behind it is the point.
        let bytes = (prop::bool::weighted(0.9), prop::collection::vec(any::<u8>(), 0..300));
        runner
            .run(&bytes, |(formatted, mut bytes)| {
                if formatted {
                    bytes.insert(0, FORMAT);
                }
                for decoder in Decoder::ALL {
                    let _ = decoder.reads(&bytes);
                }
                Ok(())
            })
            .unwrap();
    });
    let good = Decoder::good(some_batch());
    bounded(|| {
        for (decoder, bytes) in &good {
            assert!(decoder.reads(bytes), "{decoder:?}");
            let mut runner = TestRunner::new(cases(10_000));
            runner
                .run(&harm(), |harms| {
                    let _ = decoder.reads(&harmed(bytes, &harms));
                    Ok(())
                })
                .unwrap();
        }
    });
}

/// A command of every kind.
fn some_batch() -> Batch {
    let key = |text: &str| Key::new(text).unwrap();
    let held = || Held { key: key("held"), permit: 7 };
    let limit = Spacing::new("1/6s".parse().unwrap(), Span::ZERO, 10).unwrap();
    let acquire = || Acquire::one(key("a"), Some(Limit::Spacing(limit)), 2, Terms::default());
    let commands = vec![
        Command::Acquire(acquire()),
        Command::Several(Several { acquires: vec![acquire(), acquire()], rule: SeveralRule::InLine }),
        Command::Release(held()),
        Command::Renew(held()),
        Command::Withdraw(Withdraw { id: 5, claim: 6, keys: vec![key("x"), key("y")] }),
        Command::Reset(key("z")),
    ];
    let stamp = Stamp { leader: LeaderId { term: 3, node: 2 }, time: Time(1_000_000_000) };
    Batch { stamp, keys_max: 10, commands }
}

/// The version in front of every message and record.
const FORMAT: u8 = 2;

#[test]
fn frames_are_cut_anywhere() {
    let frame = |kind: u8, body: &[u8]| {
        let length = u32::try_from(10 + body.len()).unwrap();
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([1, kind]);
        bytes.extend(7_u64.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    };
    let good: Vec<u8> = (1..9).flat_map(|kind| frame(kind, b"some bytes of a body")).collect();
    bounded(|| {
        let mut runner = TestRunner::new(cases(20_000));
        runner
            .run(&harm(), |harms| {
                let _ = Decoder::Frames.reads(&harmed(&good, &harms));
                Ok(())
            })
            .unwrap();
        // The longest that may be claimed, and nothing behind it.
        let mut claim = frame(1, b"");
        claim[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(!Decoder::Frames.reads(&claim));
        assert!(Decoder::Frames.reads(&good[..34]), "and good ones are read");
    });
}
