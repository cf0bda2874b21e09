//! How each system is asked for one decision, and what its answers mean.
//!
//! All are asked for the same thing: a register of "not before", of one of many keys, whose limit is never hit.

use memchr::memmem;
use std::fmt::Write as _;

/// The rate everybody is asked to keep: far above what any of them decides a second.
const RATE_PER_SECOND: u64 = 1_000_000;
/// How far ahead a register may be, so that nothing is denied.
const RESERVED_MAX: u64 = 10_000;

/// That limit as our own are asked for it.
pub(super) fn limit() -> String {
    format!(r#"{{"rate":"{RATE_PER_SECOND}/s","max_reserved":{RESERVED_MAX}}}"#)
}

/// The register as a script for Redis, in whole microseconds of its own clock.
pub(super) const REDIS_SCRIPT: &str = "local t = redis.call('TIME') \
     local now = t[1] * 1000000 + t[2] \
     local free = tonumber(redis.call('GET', KEYS[1]) or '0') \
     local slot = free > now and free or now \
     if slot - now > tonumber(ARGV[2]) then return {0, slot - now} end \
     redis.call('SET', KEYS[1], string.format('%.0f', slot + ARGV[1]), 'PX', 60000) \
     return {1, slot - now}";

/// A way of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dialect {
    /// `POST /acquire`.
    Acquire {
        /// How to wait for the slot.
        wait: WaitMode,
        /// Whether every request has an id of its own.
        ids: bool,
    },
    /// `POST /acquire/batch` of so many.
    Batch(usize),
    /// A put through etcd's JSON gateway.
    EtcdPut,
    /// The register as a script in Redis, by the digest it was loaded under.
    RedisScript(String),
    /// throttlecrab's `POST /throttle`.
    Throttle,
}

/// `wait` of `POST /acquire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// The answer comes at once, with the slot.
    Client,
    /// The answer is held until the slot has come.
    Server,
    /// Free now, or denied.
    None,
}

impl WaitMode {
    const fn word(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::None => "none",
        }
    }
}

/// What an answer was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// So many decisions, all granted.
    Granted(u64),
    /// Decided, but not granted.
    Denied(u64),
    /// No decision.
    Failed,
}

/// One HTTP response or reply of Redis, as far as anybody here looks at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Response<'a> {
    /// HTTP's status; 200 for any reply of Redis but an error.
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

impl Dialect {
    /// Whether it is HTTP.
    pub(super) const fn is_http(&self) -> bool {
        !matches!(self, Self::RedisScript(_))
    }

    /// Decisions that one request asks for.
    pub const fn decisions(&self) -> usize {
        if let Self::Batch(count) = self { *count } else { 1 }
    }

    /// Writes a request for these keys; `number` is different for each request of a run, and `limit` is for our own.
    pub(super) fn write(&self, out: &mut Vec<u8>, keys: &mut impl FnMut() -> u64, number: u64, limit: &str) {
        let mut body = String::with_capacity(160);
        // Writing into a string does not fail.
        let path = match self {
            Self::Acquire { wait, ids } => {
                let _ = write!(body, r#"{{"key":"bench:{:010}","limit":{}"#, keys(), limit);
                if *wait != WaitMode::Client {
                    let _ = write!(body, r#","wait":"{}""#, wait.word());
                }
                if *ids {
                    let _ = write!(body, r#","request_id":"bench-{number:016x}""#);
                }
                body.push('}');
                "/acquire"
            }
            Self::Batch(count) => {
                body.push_str(r#"{"requests":["#);
                for at in 0..*count {
                    let comma = if at == 0 { "" } else { "," };
                    let _ = write!(body, r#"{comma}{{"key":"bench:{:010}","limit":{}}}"#, keys(), limit);
                }
                body.push_str("]}");
                "/acquire/batch"
            }
            Self::EtcdPut => {
                let _ = write!(body, r#"{{"key":"{}","value":"{}"}}"#, base64(keys()), base64(number));
                "/v3/kv/put"
            }
            Self::Throttle => {
                let _ = write!(
                    body,
                    r#"{{"key":"bench:{:010}","max_burst":{RESERVED_MAX},"count_per_period":{RATE_PER_SECOND},"period":1,"quantity":1}}"#,
                    keys()
                );
                "/throttle"
            }
            Self::RedisScript(digest) => {
                let _ = write!(body, "bench:{:010}", keys());
                let interval = 1_000_000 / RATE_PER_SECOND;
                for word in ["EVALSHA", digest, "1", &body, &interval.to_string(), &RESERVED_MAX.to_string()]
                    .iter()
                    .enumerate()
                    .map(|(at, word)| (if at == 0 { "*6\r\n" } else { "" }, *word))
                {
                    out.extend_from_slice(format!("{}${}\r\n{}\r\n", word.0, word.1.len(), word.1).as_bytes());
                }
                return;
            }
        };
        out.extend_from_slice(b"POST ");
        out.extend_from_slice(path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: ");
        out.extend_from_slice(body.len().to_string().as_bytes());
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(body.as_bytes());
    }

    /// What an answer was. Granted is only what says so.
    pub(super) fn judge(&self, response: &Response<'_>) -> Answer {
        let says = |words: &str| memmem::find_iter(response.body, words).count();
        let (granted, decided) = match (self, response.status) {
            (Self::Acquire { .. }, 200 | 429) | (Self::Batch(_), 200) => (says(r#""granted":true"#), self.decisions()),
            (Self::EtcdPut, 200) => (says(r#""revision""#), 1),
            (Self::Throttle, 200) => (says(r#""allowed":true"#), 1),
            (Self::RedisScript(_), 200) => (usize::from(response.body.starts_with(b"*2\r\n:1\r\n")), 1),
            _ => return Answer::Failed,
        };
        if granted == decided { Answer::Granted(decided as u64) } else { Answer::Denied(decided as u64) }
    }
}

/// The digits of a number as base64, which is what etcd's gateway takes.
fn base64(number: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = format!("{number:015}");
    let mut text = String::with_capacity(28);
    for three in digits.as_bytes().chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = usize::try_from(bits >> (18 - 6 * at) & 63).unwrap_or(0);
            text.push(if at <= three.len() { char::from(LETTERS[letter]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dialect: &Dialect) -> String {
        let (mut out, mut next) = (Vec::new(), 41);
        dialect.write(
            &mut out,
            &mut || {
                next += 1;
                next
            },
            9,
            &limit(),
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_are_whole() {
        for dialect in [
            Dialect::Acquire { wait: WaitMode::Client, ids: false },
            Dialect::Acquire { wait: WaitMode::Server, ids: true },
            Dialect::Batch(3),
            Dialect::EtcdPut,
            Dialect::Throttle,
        ] {
            let text = written(&dialect);
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.ends_with(&format!("Content-Length: {}", body.len())), "{text}");
            let value: serde_json::Value = serde_json::from_str(body).unwrap();
            assert!(value.is_object(), "{text}");
        }
        let with_id = written(&Dialect::Acquire { wait: WaitMode::Server, ids: true });
        assert!(with_id.contains(r#""wait":"server","request_id":"bench-0000000000000009""#), "{with_id}");
        let batch = written(&Dialect::Batch(3));
        assert!(batch.contains("bench:0000000042") && batch.contains("bench:0000000044"), "{batch}");
        let redis = written(&Dialect::RedisScript("abc".to_owned()));
        assert!(
            redis.starts_with("*6\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n$1\r\n1\r\n$16\r\nbench:0000000042\r\n"),
            "{redis}"
        );
    }

    #[test]
    fn base64_is_that_of_others() {
        assert_eq!(base64(0), "MDAwMDAwMDAwMDAwMDAw");
        assert_eq!(base64(1_234_567_890_123_456), "MTIzNDU2Nzg5MDEyMzQ1Ng==");
    }

    #[test]
    fn only_what_says_so_is_granted() {
        let acquire = Dialect::Acquire { wait: WaitMode::Client, ids: false };
        let redis = Dialect::RedisScript(String::new());
        for (dialect, status, body, answer) in [
            (&acquire, 200, r#"{"granted":true}"#, Answer::Granted(1)),
            (&acquire, 200, "{}", Answer::Denied(1)),
            (&acquire, 429, r#"{"granted":false}"#, Answer::Denied(1)),
            (&acquire, 503, r#"{"granted":true}"#, Answer::Failed),
            (&Dialect::Batch(2), 200, r#"[{"granted":true},{"granted":true}]"#, Answer::Granted(2)),
            (&Dialect::Batch(2), 200, r#"[{"granted":true},{"granted":false}]"#, Answer::Denied(2)),
            (&Dialect::EtcdPut, 200, r#"{"header":{"revision":"7"}}"#, Answer::Granted(1)),
            (&Dialect::Throttle, 200, r#"{"allowed":true}"#, Answer::Granted(1)),
            (&Dialect::Throttle, 200, r#"{"allowed":false}"#, Answer::Denied(1)),
            (&redis, 200, "*2\r\n:1\r\n:0\r\n", Answer::Granted(1)),
            (&redis, 200, "*2\r\n:0\r\n:9\r\n", Answer::Denied(1)),
            (&redis, 500, "-NOSCRIPT\r\n", Answer::Failed),
        ] {
            assert_eq!(
                dialect.judge(&Response { status, body: body.as_bytes() }),
                answer,
                "{dialect:?} {status} {body}"
            );
        }
    }
}
