//! Headers that may cross the gateway and headers that may not.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA};
use http::{HeaderValue, Version};
use seawall_engine::credential::Credentials;

/// Meant for one hop (RFC 9110 §7.6.1), besides whatever `Connection` names.
const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authenticate"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("alt-svc"),
];

/// Takes hop-by-hop headers out, and those that `Connection` nominates.
pub(super) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let nominated: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
            // A message's framing is not the peer's to take away.
            .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
            .collect();
        for name in nominated {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// A request's headers as the upstream may see them. Our own and the caller's credentials for us stay here.
pub(super) fn outward(headers: &mut HeaderMap, credentials: Option<&Credentials>, version: Version, pseudonym: &str) {
    let trailers = headers.get(TE).is_some_and(|value| value == "trailers");
    strip_hop_by_hop(headers);
    headers.remove(HOST);
    headers.remove(CONTENT_LENGTH);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    let own: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name.as_str())).cloned().collect();
    for name in own {
        headers.remove(name);
    }
    if let Some(credentials) = credentials {
        headers.remove(AUTHORIZATION);
        if let Some(name) = credentials.header() {
            headers.remove(name);
        }
    }
    via(headers, version, pseudonym);
}

/// `Seawall-…`, also in disguise: some servers read `_` as `-`.
fn is_ours(name: &str) -> bool {
    let mut bytes = name.bytes().map(|b| if b == b'_' { b'-' } else { b });
    b"seawall-".iter().all(|expected| bytes.next() == Some(*expected))
}

/// An answer's headers as the caller may see them.
pub(super) fn inward(headers: &mut HeaderMap, version: Version, pseudonym: &str) {
    strip_hop_by_hop(headers);
    via(headers, version, pseudonym);
}

fn via(headers: &mut HeaderMap, version: Version, pseudonym: &str) {
    let protocol = match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2.0",
        _ => "1.1",
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{protocol} {pseudonym}")) {
        headers.append(VIA, value);
    }
}

/// Whether the request has been here before.
pub(super) fn is_loop(headers: &HeaderMap, pseudonym: &str) -> bool {
    headers.get_all(VIA).iter().any(|value| value.to_str().is_ok_and(|value| value.split([',', ' ']).any(|part| part.trim() == pseudonym)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_end_to_end_headers_go_on() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("te", "gzip;q=0.5"),
            ("upgrade", "websocket"),
            ("seawall-timeout-ms", "5"),
            ("seawall_token", "t"),
            ("host", "here"),
            ("x-end", "2"),
        ]);
        outward(&mut headers, None, Version::HTTP_11, "seawall-1");
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-end", "via"]);
        assert_eq!(headers[VIA], "1.1 seawall-1");
        assert!(is_loop(&headers, "seawall-1") && !is_loop(&headers, "seawall-2"));
    }

    #[test]
    fn a_connection_header_cannot_take_the_framing_away() {
        let mut headers = map(&[("connection", "content-length, host"), ("content-length", "3"), ("host", "h")]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.len(), 2);
    }
}
