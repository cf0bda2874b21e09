//! What a proxy is told when it starts.

use crate::api::Limit;
use crate::edge::Peer;
use crate::limits::KEY_BYTES_MAX;
use http::HeaderName;
use http::request::Parts;
use http::uri::{Authority, Uri};
use std::str::FromStr;
use std::time::Duration;

/// How a proxy works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where requests go.
    pub upstream: Authority,
    /// What a request is limited by.
    pub key: KeySource,
    /// The limit, where no stored policy matches the key.
    pub limit: Option<Limit>,
    /// Longest time that a request is held.
    pub max_wait: Duration,
    /// Requests held at once.
    pub waiting_max: usize,
    /// Connections at once.
    pub connections_max: usize,
    /// Longest silence of the upstream: before its answer and in the middle of it.
    pub upstream_timeout: Duration,
    /// Time for requests in flight when it stops.
    pub grace: Duration,
}

/// Where the key of a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// Its path, without the query: `/v1/items`.
    Path,
    /// The value of a header.
    Header(HeaderName),
    /// Always the same.
    Const(String),
}

impl KeySource {
    /// The key of a request; else why it has none.
    pub(super) fn of(&self, parts: &Parts) -> Result<String, String> {
        match self {
            Self::Path => Ok(key_of_path(parts.uri.path())),
            Self::Const(key) => Ok(key.clone()),
            Self::Header(name) => {
                let mut values = parts.headers.get_all(name).iter();
                let Some(value) = values.next() else { return Err(format!("the header {name} is missing")) };
                if values.next().is_some() {
                    return Err(format!("the header {name} is there more than once"));
                }
                match std::str::from_utf8(value.as_bytes()) {
                    Ok(key) if !key.is_empty() => Ok(key.to_owned()),
                    Ok(_) => Err(format!("the header {name} is empty")),
                    Err(_) => Err(format!("the header {name} is not UTF-8")),
                }
            }
        }
    }
}

/// The key of a path: the path itself, or if that is too long for a key, its beginning and a hash of all of it. A `#` is never
/// part of a path, so no other path has this key.
fn key_of_path(path: &str) -> String {
    const HASH_DIGITS: usize = 32;
    if path.len() <= KEY_BYTES_MAX {
        return path.to_owned();
    }
    let hash = blake3::hash(path.as_bytes()).to_hex();
    let cut = (0..KEY_BYTES_MAX - HASH_DIGITS).rev().find(|at| path.is_char_boundary(*at)).unwrap_or(0);
    format!("{}#{}", &path[..cut], &hash[..HASH_DIGITS])
}

impl FromStr for KeySource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "path" => Ok(Self::Path),
            Some(("header", name)) => {
                name.parse().map(Self::Header).map_err(|_| format!("{name:?} is no name of a header"))
            }
            Some(("const", key)) if !key.is_empty() => Ok(Self::Const(key.to_owned())),
            _ => Err("has to be path, header:NAME or const:NAME".to_owned()),
        }
    }
}

/// The host and port of an upstream URL. There is no TLS here, and no path that would be put before every other.
pub fn upstream(text: &str) -> Result<Authority, String> {
    let uri: Uri = text.parse().map_err(|error| format!("no URL: {error}"))?;
    if uri.scheme_str() != Some("http") {
        return Err("has to begin with http://".to_owned());
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err("nothing comes behind the port: paths are passed on as they are".to_owned());
    }
    let authority = uri.authority().ok_or("has no host")?;
    if authority.as_str().contains('@') {
        return Err("has a user in it, which a proxy does not send".to_owned());
    }
    Ok(authority.clone())
}

/// Whoever sent a request, as the next one is told.
pub(super) fn client_of(peer: &Peer) -> String {
    peer.address.ip().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn keys_come_from_where_they_are_said_to() {
        let key = |source: &str, parts: &Parts| source.parse::<KeySource>().unwrap().of(parts);
        let request = parts("/v1/items?page=2", &[("x-tenant", "acme")]);
        assert_eq!(key("path", &request), Ok("/v1/items".to_owned()));
        assert_eq!(key("header:X-Tenant", &request), Ok("acme".to_owned()));
        assert_eq!(key("const:github", &request), Ok("github".to_owned()));
        assert_eq!(key("header:x-user", &request), Err("the header x-user is missing".to_owned()));
        let twice = parts("/", &[("x-tenant", "a"), ("x-tenant", "b")]);
        assert!(key("header:x-tenant", &twice).unwrap_err().contains("more than once"));
        assert!(key("header:x-tenant", &parts("/", &[("x-tenant", "")])).unwrap_err().contains("empty"));
        let long = |end: &str| key("path", &parts(&format!("/{}{end}", "x".repeat(300)), &[])).unwrap();
        assert_eq!((long("a").len(), long("a")), (KEY_BYTES_MAX, long("a")));
        assert_ne!(long("a"), long("b"), "all of it counts");
        let exact = format!("/{}", "x".repeat(KEY_BYTES_MAX - 1));
        assert_eq!(key("path", &parts(&exact, &[])), Ok(exact));
        for bad in ["", "host", "header:", "header:a b", "const:"] {
            assert!(bad.parse::<KeySource>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        assert_eq!(upstream("http://127.0.0.1:9000/").unwrap().as_str(), "127.0.0.1:9000");
        assert_eq!(upstream("http://api.internal").unwrap().as_str(), "api.internal");
        for bad in ["", "api", "https://api", "http://api/v1", "http://api?x", "http://user:word@api", "ftp://x"] {
            assert!(upstream(bad).is_err(), "{bad}");
        }
    }
}
