//! From the bytes of `POST /acquire` to what is put to the cluster: everything that can be refused without asking it.
//!
//! What cannot be read is `bad_request` or `too_large`; what can be read but never granted is `never`. Details name the
//! member.

use super::limit;
use super::respond::shortened;
use crate::api::{self, AcquireRequest, Code, PartRequest, Problem, Wait};
use crate::limiter::{Key, KeyError, Limit, Span, Terms};
use crate::limits::{ALL_OF_MAX, COST_MAX, LEAD_NS_MAX, REQUEST_ID_BYTES_MAX, WAIT_NS_MAX, WORKER_BYTES_MAX};
use crate::state::{Acquire, Identity, Wanted};
use http::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// A request that makes sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// For the cluster.
    pub(super) acquire: Acquire,
    /// Who waits.
    pub(super) wait: Wait,
    /// Whether it was written as `all_of`, and is to be answered so.
    pub(super) all_of: bool,
    /// What every part said of its limit, for the answer.
    pub(super) limits: Vec<Option<api::Limit>>,
}

impl Asked {
    /// The key at `index`, as text.
    pub(super) fn key(&self, index: usize) -> &str {
        self.acquire.wanted().nth(index).map_or("", |wanted| wanted.key.as_str())
    }

    /// The limit the request brought along for the key at `index`.
    pub(super) fn limit(&self, index: usize) -> Option<&Limit> {
        self.acquire.wanted().nth(index).and_then(|wanted| wanted.limit.as_ref())
    }
}

/// Boxed, because a problem is large and rare.
pub(super) type Refused = Box<Problem>;

/// Reads and checks a request.
pub(super) fn read(body: &[u8], headers: &HeaderMap) -> Result<Asked, Refused> {
    let mut request: AcquireRequest = parse(body, "a `key`")?;
    let request_id = match idempotency_key(headers)? {
        Some(from_header) => Some(agreed(from_header, request.request_id.take())?),
        None => request.request_id.take(),
    };
    check(request, request_id.as_deref())
}

pub(super) fn refused(code: Code, detail: impl Into<String>) -> Refused {
    Box::new(Problem::new(code, detail))
}

pub(super) fn bad_request(detail: impl Into<String>) -> Refused {
    refused(Code::BadRequest, detail)
}

/// Parses in one cheap pass; only a body that fails is parsed again to find out where.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8], wanted: &str) -> Result<T, Refused> {
    // What is derived for a struct would take its members from a list as well.
    if body.trim_ascii_start().first() == Some(&b'[') {
        return Err(bad_request(format!("the body is a list: expected an object with {wanted}")));
    }
    serde_json::from_slice(body).map_err(|error| explain::<T>(body, &error, wanted))
}

fn explain<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error, wanted: &str) -> Refused {
    if body.iter().all(u8::is_ascii_whitespace) {
        return bad_request(format!("the body is empty: expected a JSON object with {wanted}"));
    }
    if !matches!(error.classify(), Category::Data) {
        return bad_request(format!("the body is not JSON: {error}"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let Err(error) = serde_path_to_error::deserialize::<_, T>(&mut deserializer) else {
        return bad_request(shortened(&error.to_string()));
    };
    let path = error.path().to_string();
    // What serde says repeats what the client sent, which may be long.
    let inner = error.inner().to_string();
    let message = shortened(&inner);
    if path == "." { bad_request(message) } else { bad_request(format!("{}: {message}", shortened(&path))) }
}

/// The id in the header, if there is one. Quotes around it belong to the header's syntax (structured fields) and not to
/// the id; clients in the field send it with and without.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let mut values = headers.get_all(api::IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad_request("Idempotency-Key: given more than once"));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| bad_request("Idempotency-Key: not UTF-8"))?;
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Ok(Some(quoted.filter(|inner| !inner.contains(['"', '\\'])).unwrap_or(text)))
}

fn agreed(from_header: &str, from_body: Option<String>) -> Result<String, Refused> {
    match from_body {
        Some(id) if id != from_header => {
            Err(bad_request("request_id: differs from the header Idempotency-Key, and a request has one id"))
        }
        Some(id) => Ok(id),
        None => Ok(from_header.to_owned()),
    }
}

/// Checks a request that was read, under the id that it has.
pub(super) fn check(request: AcquireRequest, request_id: Option<&str>) -> Result<Asked, Refused> {
    let terms = terms(&request)?;
    if let Some(id) = request_id {
        text_member("request_id", id, 1, REQUEST_ID_BYTES_MAX)?;
    }
    if let Some(worker) = &request.worker {
        text_member("worker", worker, 0, WORKER_BYTES_MAX)?;
    }
    let AcquireRequest { key, limit, cost, all_of, wait, worker, .. } = request;
    let several = all_of.is_some();
    let parts = match all_of {
        Some(parts) => parts,
        None => vec![PartRequest { key: key.unwrap_or_default(), limit, cost }],
    };
    if several && !(2..=ALL_OF_MAX).contains(&parts.len()) {
        return Err(bad_request(format!("all_of: 2 to {ALL_OF_MAX} limits, this one has {}", parts.len())));
    }
    let place = |index: usize| if several { format!("all_of[{index}].") } else { String::new() };
    let mut all = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let wanted = wanted(&place(index), part)?;
        if all.iter().any(|other: &Wanted| other.key == wanted.key) {
            return Err(bad_request(format!("{}key: a key comes only once in one request", place(index))));
        }
        all.push(wanted);
    }
    let identity = request_id.map(|id| Identity::of(id, &all));
    let mut all = all.into_iter();
    let first = all.next().ok_or_else(|| bad_request("all_of: at least one limit"))?;
    let worker = worker.filter(|worker| !worker.is_empty()).map(Into::into);
    let acquire = Acquire { first, more: all.collect(), terms, identity, claim: 0, worker, replay_only: false };
    Ok(Asked { acquire, wait, all_of: several, limits: parts.into_iter().map(|part| part.limit).collect() })
}

fn wanted(place: &str, part: &PartRequest) -> Result<Wanted, Refused> {
    let key = key_at(place, &part.key)?;
    let cost = part.cost.unwrap_or(1);
    if cost == 0 {
        return Err(bad_request(format!("{place}cost: at least 1")));
    }
    if cost > COST_MAX {
        let detail = format!("{place}cost: {cost} is more than the {COST_MAX} one permit may cost");
        return Err(refused(Code::Never, detail));
    }
    // Whether the limit could ever grant this is for the cluster to say: a stored policy may have another one.
    let limit = part.limit.as_ref().map(|said| limit::read(format_args!("{place}limit"), said)).transpose()?;
    Ok(Wanted { key, limit, cost })
}

/// The key, or the problem with it.
pub(super) fn key(text: &str) -> Result<Key, Refused> {
    key_at("", text)
}

fn key_at(place: &str, text: &str) -> Result<Key, Refused> {
    Key::new(text).map_err(|error| {
        let code = if matches!(error, KeyError::TooLong(_)) { Code::TooLarge } else { Code::BadRequest };
        refused(code, format!("{place}key: {error}"))
    })
}

fn terms(request: &AcquireRequest) -> Result<Terms, Refused> {
    let lead = span_member("lead_ms", request.lead_ms, LEAD_NS_MAX)?.unwrap_or(Span::ZERO);
    let max_wait = span_member("max_wait_ms", request.max_wait_ms, WAIT_NS_MAX)?;
    let free_now_only = request.wait == Wait::None;
    if free_now_only && lead > Span::ZERO {
        return Err(bad_request("lead_ms: a slot ahead of now is never free now, so it does not go with wait `none`"));
    }
    Ok(Terms { lead, max_wait, free_now_only })
}

fn span_member(member: &str, millis: Option<api::Millis>, ns_max: u64) -> Result<Option<Span>, Refused> {
    match millis {
        Some(millis) if millis.ns() > ns_max => {
            Err(bad_request(format!("{member}: at most {}, this one is {millis}", api::Millis::down_from_ns(ns_max))))
        }
        millis => Ok(millis.map(|millis| Span(millis.ns()))),
    }
}

fn text_member(member: &str, text: &str, bytes_min: usize, bytes_max: usize) -> Result<(), Refused> {
    if !(bytes_min..=bytes_max).contains(&text.len()) {
        return Err(bad_request(format!("{member}: {bytes_min} to {bytes_max} bytes, this one has {}", text.len())));
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, found)) => Err(bad_request(format!(
            "{member}: no control characters, this one has U+{:04X} at byte {at}",
            found as u32
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Spacing;
    use crate::limits::JSON_DEPTH_MAX;
    use http::HeaderValue;

    fn read_plain(body: &str) -> Result<Asked, Refused> {
        read(body.as_bytes(), &HeaderMap::new())
    }

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(api::IDEMPOTENCY_KEY, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn the_documented_request_makes_sense() {
        let asked = read_plain(
            r#"{"key": "github-token", "limit": {"rate": "1/6s", "start_window": "250ms", "max_reserved": 3}, "cost": 2,
                "max_wait_ms": 30000.5, "wait": "client", "lead_ms": 5, "request_id": "01JD", "worker": "w"}"#,
        )
        .unwrap();
        let limit = Limit::Spacing(Spacing::new("1/6s".parse().unwrap(), Span::from_millis(250), 3).unwrap());
        let wanted = Wanted { key: Key::new("github-token").unwrap(), limit: Some(limit), cost: 2 };
        assert_eq!(asked.acquire.first, wanted);
        let terms = Terms { lead: Span::from_millis(5), max_wait: Some(Span(30_000_500_000)), free_now_only: false };
        assert_eq!(asked.acquire.terms, terms);
        assert_eq!(asked.acquire.identity, Some(Identity::of("01JD", &[wanted])));
        assert_eq!(asked.acquire.worker.as_deref(), Some("w"));
    }

    #[test]
    fn a_list_is_no_object() {
        let problem = parse::<api::BatchRequest>(b" [[{\"key\":\"k\"}],false]", "`requests`").unwrap_err();
        assert!(problem.detail.contains("expected an object with `requests`"), "{problem}");
    }

    #[test]
    fn the_shortest_request_makes_sense() {
        let asked = read_plain(r#"{"key":"k"}"#).unwrap();
        assert_eq!(asked.acquire, Acquire::one(Key::new("k").unwrap(), None, 1, Terms::default()));
        let now = read_plain(r#"{"key":"k","wait":"none","lead_ms":0,"limit":"10/s"}"#).unwrap();
        assert!(now.acquire.terms.free_now_only);
    }

    #[test]
    fn every_bad_input_has_its_status_and_names_the_member() {
        let long_key = format!(r#"{{"key":"{}"}}"#, "x".repeat(10_000));
        let long_id = format!(r#"{{"key":"k","request_id":"{}"}}"#, "x".repeat(129));
        let long_worker = format!(r#"{{"key":"k","worker":"{}"}}"#, "x".repeat(65));
        let long_rate = format!(r#"{{"key":"k","limit":"{}/s"}}"#, "1".repeat(65));
        let deep_key = format!(r#"{{"key":{}"#, "[".repeat(60_000));
        let deep_limit = format!(r#"{{"key":"k","limit":{}"#, r#"{"rate":"#.repeat(8_000));
        let deep_ramp = format!(r#"{{"key":"k","limit":{{"ramp":{}"#, "[".repeat(60_000));
        let long_member = format!(r#"{{"{}":1}}"#, "x".repeat(60_000));
        let cases: [(&str, Code, &str); 43] = [
            ("", Code::BadRequest, "the body is empty"),
            (" \n", Code::BadRequest, "the body is empty"),
            ("hello", Code::BadRequest, "the body is not JSON: expected value at line 1 column 1"),
            ("key=k&limit=1/s", Code::BadRequest, "the body is not JSON"),
            ("{\"key\":\"k\",}", Code::BadRequest, "line 1 column 12"),
            ("{\"key\":\"k\"", Code::BadRequest, "EOF while parsing an object"),
            ("{\"key\":\"k\"} {}", Code::BadRequest, "trailing characters at line 1 column 13"),
            ("[]", Code::BadRequest, "expected an object with a `key`"),
            ("null", Code::BadRequest, "expected an object with a `key`"),
            ("{}", Code::BadRequest, "missing field `key`"),
            (r#"{"key":"k","colour":1}"#, Code::BadRequest, "unknown field `colour`"),
            (r#"{"key":"k","key":"l"}"#, Code::BadRequest, "duplicate field `key`"),
            (r#"{"key":7}"#, Code::BadRequest, "key: invalid type: integer `7`, expected a string"),
            (r#"{"key":""}"#, Code::BadRequest, "key: a key has at least one byte"),
            (r#"{"key":"a\u0000"}"#, Code::BadRequest, "key: a key has no control characters"),
            (&long_key, Code::TooLarge, "key: a key has at most 256 bytes, this one has 10000"),
            (r#"{"key":"k","cost":0}"#, Code::BadRequest, "cost: at least 1"),
            (r#"{"key":"k","cost":-1}"#, Code::BadRequest, "cost: invalid value: integer `-1`"),
            (r#"{"key":"k","cost":1.5}"#, Code::BadRequest, "cost: invalid type: floating point `1.5`"),
            (r#"{"key":"k","cost":9223372036854775808}"#, Code::Never, "cost: 9223372036854775808 is more than"),
            (r#"{"key":"k","cost":1000001}"#, Code::Never, "cost: 1000001 is more than"),
            (r#"{"key":"k","limit":"0/s"}"#, Code::Never, "limit: a rate of 0"),
            (r#"{"key":"k","limit":"-1/s"}"#, Code::BadRequest, "limit: expected a count"),
            (r#"{"key":"k","limit":"1/6"}"#, Code::BadRequest, "limit: expected a unit"),
            (r#"{"key":"k","limit":"NaN/s"}"#, Code::BadRequest, "limit: expected a count"),
            (r#"{"key":"k","limit":"1/0s"}"#, Code::Never, "limit: a rate over no time"),
            (r#"{"key":"k","limit":"1/367d"}"#, Code::Never, "the interval has to lie between"),
            (r#"{"key":"k","limit":"99999999999999999999/s"}"#, Code::Never, "larger than any number"),
            (r#"{"key":"k","limit":7}"#, Code::BadRequest, "limit: invalid type: integer `7`, expected a rate"),
            (&long_rate, Code::BadRequest, "limit: a rate or duration has at most 64 bytes"),
            (r#"{"key":"k","limit":{"rate":"1/x"}}"#, Code::BadRequest, "limit.rate: expected a unit"),
            (
                r#"{"key":"k","limit":{"rate":"1/s","start_window":"soon"}}"#,
                Code::BadRequest,
                "limit.start_window: expected a number",
            ),
            (
                r#"{"key":"k","limit":{"rate":"1/s","max_reserved":4294967296}}"#,
                Code::Never,
                "limit.max_reserved: at most 10000",
            ),
            (
                r#"{"key":"k","limit":{"rate":"1/6s","start_window":"1ms"}}"#,
                Code::Never,
                "limit: start_window 1ms is too short",
            ),
            (r#"{"key":"k","max_wait_ms":-1}"#, Code::BadRequest, "max_wait_ms: a time is not negative"),
            (r#"{"key":"k","max_wait_ms":NaN}"#, Code::BadRequest, "the body is not JSON"),
            (r#"{"key":"k","max_wait_ms":31622400001}"#, Code::BadRequest, "max_wait_ms: at most 31622400000"),
            (r#"{"key":"k","lead_ms":60001}"#, Code::BadRequest, "lead_ms: at most 60000, this one is 60001"),
            (r#"{"key":"k","lead_ms":1,"wait":"none"}"#, Code::BadRequest, "lead_ms: "),
            (r#"{"key":"k","request_id":""}"#, Code::BadRequest, "request_id: 1 to 128 bytes"),
            (&long_id, Code::BadRequest, "request_id: 1 to 128 bytes, this one has 129"),
            (r#"{"key":"k","request_id":"a\nb"}"#, Code::BadRequest, "request_id: no control characters"),
            (&long_worker, Code::BadRequest, "worker: 0 to 64 bytes, this one has 65"),
        ];
        for (body, code, why) in cases {
            let problem = read_plain(body).expect_err(body);
            assert_eq!(problem.code, code, "{body}: {problem}");
            assert!(problem.detail.contains(why), "{body}: {problem}");
        }
        let too_deep =
            format!(r#"{{"key":"k","limit":{}"1/s"{}}}"#, "[".repeat(JSON_DEPTH_MAX), "]".repeat(JSON_DEPTH_MAX));
        for body in [deep_key, deep_limit, deep_ramp, long_member, too_deep] {
            let problem = read_plain(&body).expect_err("nested or long");
            assert_eq!(problem.code, Code::BadRequest, "{problem}");
            assert!(problem.detail.len() < 600, "{}", problem.detail.len());
            assert!(!problem.detail.contains("recursion"), "refused by its type at the first bracket: {problem}");
        }
        assert_eq!(read(b"{\"key\":\"\xff\"}", &HeaderMap::new()).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn several_limits_in_one_request() {
        let asked = read_plain(
            r#"{"all_of":[{"key":"a","limit":"1/s"},{"key":"b","limit":{"kind":"concurrency","max":3},"cost":2}],
                "request_id":"x"}"#,
        )
        .unwrap();
        assert_eq!((asked.key(0), asked.key(1), asked.all_of), ("a", "b", true));
        assert_eq!(asked.acquire.more[0].cost, 2);
        assert_eq!(asked.acquire.identity, Some(Identity::of("x", asked.acquire.wanted())));
        let many = vec![r#"{"key":"k"}"#; 17].join(",");
        for (body, why) in [
            (r#"{"all_of":[]}"#.to_owned(), "all_of: 2 to 16 limits, this one has 0"),
            (r#"{"all_of":[{"key":"a"}]}"#.to_owned(), "all_of: 2 to 16 limits, this one has 1"),
            (format!(r#"{{"all_of":[{many}]}}"#), "all_of: 2 to 16 limits, this one has 17"),
            (r#"{"all_of":[{"key":"a"},{"key":"a"}]}"#.to_owned(), "all_of[1].key: a key comes only once"),
            (r#"{"all_of":[{"key":"a"},{"key":"b","cost":0}]}"#.to_owned(), "all_of[1].cost: at least 1"),
            (r#"{"all_of":[{"key":"a"},{"key":"b","limit":"x"}]}"#.to_owned(), "all_of[1].limit: expected a count"),
            (r#"{"all_of":[{"key":"a"},{"key":"b","max_wait_ms":1}]}"#.to_owned(), "unknown field `max_wait_ms`"),
        ] {
            let problem = read_plain(&body).expect_err(&body);
            assert_eq!(problem.code, Code::BadRequest);
            assert!(problem.detail.contains(why), "{problem}");
        }
    }

    #[test]
    fn the_id_comes_from_the_body_or_the_header_but_not_from_both() {
        let id = |body: &str, values: &[&str]| {
            read(body.as_bytes(), &headers(values))
                .map(|asked| asked.acquire.identity)
                .map_err(|problem| problem.detail)
        };
        let wanted = Wanted { key: Key::new("k").unwrap(), limit: None, cost: 1 };
        let identity = |id: &str| Ok(Some(Identity::of(id, [&wanted])));
        assert_eq!(id(r#"{"key":"k"}"#, &["abc"]), identity("abc"));
        assert_eq!(id(r#"{"key":"k"}"#, &["\"abc\""]), identity("abc"));
        assert_eq!(id(r#"{"key":"k"}"#, &["\"a\"b\""]), identity("\"a\"b\""));
        assert_eq!(id(r#"{"key":"k","request_id":"abc"}"#, &["abc"]), identity("abc"));
        assert!(id(r#"{"key":"k","request_id":"abd"}"#, &["abc"]).unwrap_err().contains("differs"));
        assert!(id(r#"{"key":"k"}"#, &["a", "b"]).unwrap_err().contains("more than once"));
        assert!(id(r#"{"key":"k"}"#, &[""]).unwrap_err().contains("1 to 128 bytes"));
    }
}
