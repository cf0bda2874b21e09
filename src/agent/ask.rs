//! Reading a worker's request: can it be served from a block, or is it for the cluster?
//!
//! Whatever is unusual is put to the cluster, which says precisely what is wrong with it.

use super::block::Terms;
use crate::api::{AcquireRequest, Code, IDEMPOTENCY_KEY, Kind, Limit, Millis, Problem, Wait};
use crate::http::limit_of;
use crate::limiter::Limit as Meaning;
use crate::limits::{KEY_BYTES_MAX, LEAD_NS_MAX, REQUEST_ID_BYTES_MAX, WAIT_NS_MAX, WORKER_BYTES_MAX};
use http::HeaderMap;
use std::sync::Arc;

/// A key under one limit: what blocks are of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Which {
    /// The key.
    pub(super) key: String,
    /// What the limit means that the request brings along: however it is written, it is the same.
    pub(super) limit: Option<Meaning>,
}

/// A request that a block can serve.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) which: Arc<Which>,
    pub(super) limit: Option<Limit>,
    pub(super) terms: Terms,
    pub(super) id: Option<String>,
    pub(super) worker: Option<String>,
}

/// Whose business a request is.
#[derive(Debug)]
pub(super) enum Asked {
    Lease(Lease),
    /// The cluster's, under this id.
    Pass(Box<AcquireRequest>),
}

/// Reads a request. One without an id that is passed on gets one from `fresh_id`, so that it can be repeated.
pub(super) fn read(body: &[u8], headers: &HeaderMap, fresh_id: impl FnOnce() -> String) -> Result<Asked, Box<Problem>> {
    let mut request: AcquireRequest = serde_json::from_slice(body)
        .map_err(|error| Box::new(Problem::new(Code::BadRequest, format!("the body is no request: {error}"))))?;
    if let Some(value) = headers.get(IDEMPOTENCY_KEY) {
        let text = value.to_str().map_err(|_| {
            Box::new(Problem::new(
                Code::BadRequest,
                "Idempotency-Key: only visible ASCII characters are understood here",
            ))
        })?;
        let id = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
        if request.request_id.get_or_insert_with(|| id.to_owned()) != id {
            let detail = "request_id: differs from the header Idempotency-Key, and a request has one id";
            return Err(Box::new(Problem::new(Code::BadRequest, detail)));
        }
    }
    if let Some(lease) = leased(&request) {
        return Ok(Asked::Lease(lease));
    }
    request.request_id.get_or_insert_with(fresh_id);
    Ok(Asked::Pass(Box::new(request)))
}

fn leased(request: &AcquireRequest) -> Option<Lease> {
    let plain = |text: &str, most: usize| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    let key = request.key.as_ref().filter(|key| plain(key, KEY_BYTES_MAX))?;
    if request.all_of.is_some() || request.cost.unwrap_or(1) != 1 || request.wait == Wait::Server {
        return None;
    }
    let is_odd = |text: &Option<String>, most| text.as_ref().is_some_and(|text| !plain(text, most));
    if is_odd(&request.request_id, REQUEST_ID_BYTES_MAX) || is_odd(&request.worker, WORKER_BYTES_MAX) {
        return None;
    }
    // What is wrong with a limit the cluster says.
    let limit = request.limit.as_ref().map(limit_of).transpose().ok()?;
    if matches!(limit, Some(Meaning::Window(_) | Meaning::Concurrency(_))) {
        return None;
    }
    let lead = request.lead_ms.map_or(0, Millis::ns);
    let max_wait = request.max_wait_ms.map(Millis::ns);
    let now_only = request.wait == Wait::None;
    if lead > LEAD_NS_MAX || max_wait.is_some_and(|wait| wait > WAIT_NS_MAX) || now_only && lead > 0 {
        return None;
    }
    Some(Lease {
        which: Arc::new(Which { key: key.clone(), limit }),
        limit: request.limit.clone(),
        terms: Terms { lead, max_wait, now_only },
        id: request.request_id.clone(),
        worker: request.worker.clone(),
    })
}

/// Whether permits of this limit are slots on a line. Of a limit that only the cluster knows, the first answer will tell.
pub(super) fn has_slots(limit: Option<&Limit>) -> bool {
    match limit {
        None | Some(Limit::Text(_)) => true,
        Some(Limit::Members(members)) => matches!(members.kind, None | Some(Kind::Spacing | Kind::Bucket)),
    }
}

/// Whether it is a bucket, whose slots do not follow each other by themselves.
pub(super) fn is_bucket(limit: Option<&Limit>) -> bool {
    matches!(limit, Some(Limit::Members(members)) if members.kind == Some(Kind::Bucket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Asked {
        read(body.as_bytes(), &HeaderMap::new(), || "fresh".to_owned()).unwrap()
    }

    #[test]
    fn only_single_slots_are_leased() {
        for body in [
            r#"{"key":"k"}"#,
            r#"{"key":"k","limit":"1/6s","cost":1,"lead_ms":5,"max_wait_ms":100}"#,
            r#"{"key":"k","limit":{"kind":"bucket","rate":"1/s","burst":5},"wait":"none"}"#,
            r#"{"key":"k","limit":{"rate":"1/s"},"request_id":"a"}"#,
        ] {
            assert!(matches!(asked(body), Asked::Lease(_)), "{body}");
        }
        for body in [
            r#"{"key":"k","cost":2}"#,
            r#"{"key":"k","wait":"server"}"#,
            r#"{"key":"k","limit":{"kind":"window","rate":"10/s"}}"#,
            r#"{"key":"k","limit":{"kind":"concurrency","max":3}}"#,
            r#"{"all_of":[{"key":"a"},{"key":"b"}]}"#,
            r#"{"key":""}"#,
            r#"{"key":"k","request_id":""}"#,
            r#"{"key":"k","wait":"none","lead_ms":5}"#,
            r#"{"key":"k","limit":"nonsense"}"#,
            r#"{"key":"k","limit":"1/367d"}"#,
            r#"{"key":"k","limit":{"rate":"1/s","burst":5}}"#,
            r#"{"key":"k","limit":{"kind":"bucket","rate":"1/s"}}"#,
            r#"{"key":"k","worker":""}"#,
        ] {
            let Asked::Pass(request) = asked(body) else { panic!("{body}") };
            assert!(request.request_id.is_some(), "{body}");
        }
    }

    #[test]
    fn a_limit_is_what_it_means_and_not_how_it_is_written() {
        let which = |limit: &str| match asked(&format!(r#"{{"key":"k","limit":{limit}}}"#)) {
            Asked::Lease(lease) => lease.which,
            Asked::Pass(_) => panic!("{limit}"),
        };
        let plain = which(r#""100/1m""#);
        for same in [
            r#""100/m""#,
            r#""100/60s""#,
            r#"{"rate":"100/m"}"#,
            r#"{"kind":"spacing","rate":"100/m","max_reserved":10}"#,
        ] {
            assert_eq!(which(same), plain, "{same}");
        }
        for other in [r#""10/m""#, r#"{"rate":"100/m","max_reserved":11}"#, r#"{"rate":"100/m","start_window":"1s"}"#] {
            assert_ne!(which(other), plain, "{other}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_here() {
        for body in ["", "[]", "{}", r#"{"key":"k","kee":1}"#] {
            let problem = read(body.as_bytes(), &HeaderMap::new(), String::new).unwrap_err();
            assert_eq!(problem.code, Code::BadRequest, "{body}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, "\"a\"".parse().unwrap());
        let Ok(Asked::Lease(lease)) = read(br#"{"key":"k"}"#, &headers, String::new) else { panic!("a lease") };
        assert_eq!(lease.id.as_deref(), Some("a"));
        assert!(read(br#"{"key":"k","request_id":"b"}"#, &headers, String::new).is_err());
    }
}
