//! What belongs to one connection and not to the message (RFC 9110, section 7.6), and what a proxy adds.

use http::header::{
    CONNECTION, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Never passed on, whether or not `Connection` names them.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes out what ends here.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Prepares the headers of a request for the upstream.
pub(super) fn towards_upstream(headers: &mut HeaderMap, host: &HeaderValue, client: &str, version: Version) {
    strip(headers);
    // Answered here, when the body is first wanted.
    headers.remove(EXPECT);
    // What a client says of hosts and protocols before this one is not known to be true. Of addresses, the last one is ours.
    headers.remove(FORWARDED);
    headers.remove(X_FORWARDED_HOST);
    if let Some(asked) = headers.insert(HOST, host.clone()) {
        headers.insert(X_FORWARDED_HOST, asked);
    }
    if let Ok(client) = HeaderValue::from_str(client) {
        headers.append(X_FORWARDED_FOR, client);
    }
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    headers.append(VIA, via(version));
}

/// Prepares the headers of an answer for the client.
pub(super) fn towards_client(headers: &mut HeaderMap, version: Version) {
    strip(headers);
    headers.append(VIA, via(version));
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(if version == Version::HTTP_10 { "1.0 quorate" } else { "1.1 quorate" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    /// "Intermediaries … remove … any header field listed in Connection": also those that nobody knows.
    #[test]
    fn what_belongs_to_the_connection_ends_here() {
        let mut map = headers(&[
            ("connection", "close, X-Secret"),
            ("connection", "x-other"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("x-kept", "3"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-authorization", "Basic eA=="),
            ("content-length", "3"),
        ]);
        strip(&mut map);
        assert_eq!(names(&map), ["content-length", "x-kept"]);
    }

    #[test]
    fn the_upstream_learns_who_asked_and_through_whom() {
        let mut map = headers(&[("host", "api.example"), ("x-forwarded-for", "10.0.0.9"), ("expect", "100-continue")]);
        towards_upstream(&mut map, &HeaderValue::from_static("127.0.0.1:9000"), "10.0.0.1", Version::HTTP_11);
        assert_eq!(names(&map), ["host", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]);
        assert_eq!(map["host"], "127.0.0.1:9000");
        assert_eq!(map["x-forwarded-host"], "api.example");
        let chain: Vec<_> = map.get_all("x-forwarded-for").iter().collect();
        assert_eq!(chain, ["10.0.0.9", "10.0.0.1"]);
        assert_eq!(map["via"], "1.1 quorate");
    }

    #[test]
    fn what_a_client_claims_of_itself_is_not_passed_on_as_ours() {
        let mut map = headers(&[
            ("host", "api.example"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "host=evil.example"),
        ]);
        towards_upstream(&mut map, &HeaderValue::from_static("127.0.0.1:9000"), "10.0.0.1", Version::HTTP_11);
        assert_eq!(
            (&map["x-forwarded-host"], &map["x-forwarded-proto"]),
            (&"api.example".parse().unwrap(), &"http".parse().unwrap())
        );
        assert!(!map.contains_key("forwarded"));
    }
}
