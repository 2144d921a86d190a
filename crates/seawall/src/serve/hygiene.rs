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
    // One pass over the few headers there are is cheaper than ten look-ups of headers that are not there.
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name)) {
        return;
    }
    let nominated: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        // A message's framing is not the peer's to take away.
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect();
    for name in nominated.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// A request's headers as the upstream may see them. Our own and the caller's credentials for us stay here.
pub(super) fn outward(headers: &mut HeaderMap, credentials: Option<&Credentials>, version: Version, pseudonym: &Pseudonym) {
    let trailers = headers.get(TE).is_some_and(|value| value == "trailers");
    strip_hop_by_hop(headers);
    headers.remove(HOST);
    headers.remove(CONTENT_LENGTH);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if headers.keys().any(|name| is_ours(name.as_str())) {
        let own: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name.as_str())).cloned().collect();
        for name in own {
            headers.remove(name);
        }
    }
    if let Some(credentials) = credentials {
        headers.remove(AUTHORIZATION);
        if let Some(name) = credentials.header() {
            headers.remove(name);
        }
    }
    pseudonym.via(headers, version);
}

/// `Seawall-…`, also in disguise: some servers read `_` as `-`.
fn is_ours(name: &str) -> bool {
    let mut bytes = name.bytes().map(|b| if b == b'_' { b'-' } else { b });
    b"seawall-".iter().all(|expected| bytes.next() == Some(*expected))
}

/// An answer's headers as the caller may see them.
pub(super) fn inward(headers: &mut HeaderMap, version: Version, pseudonym: &Pseudonym) {
    strip_hop_by_hop(headers);
    pseudonym.via(headers, version);
}

/// What we call ourselves in `Via`, with the header values made once.
#[derive(Debug)]
pub(crate) struct Pseudonym {
    name: String,
    http_1_0: HeaderValue,
    http_1_1: HeaderValue,
    http_2: HeaderValue,
}

impl Pseudonym {
    pub(crate) fn new(name: &str) -> Self {
        let value = |protocol: &str| HeaderValue::from_str(&format!("{protocol} {name}")).expect("our name fits a header");
        Self { name: name.to_owned(), http_1_0: value("1.0"), http_1_1: value("1.1"), http_2: value("2.0") }
    }

    fn via(&self, headers: &mut HeaderMap, version: Version) {
        let value = match version {
            Version::HTTP_10 => &self.http_1_0,
            Version::HTTP_2 => &self.http_2,
            _ => &self.http_1_1,
        };
        headers.append(VIA, value.clone());
    }
}

/// Whether the request has been here before.
pub(super) fn is_loop(headers: &HeaderMap, pseudonym: &Pseudonym) -> bool {
    headers
        .get_all(VIA)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.split([',', ' ']).any(|part| part.trim() == pseudonym.name)))
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
        outward(&mut headers, None, Version::HTTP_11, &Pseudonym::new("seawall-1"));
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-end", "via"]);
        assert_eq!(headers[VIA], "1.1 seawall-1");
        assert!(is_loop(&headers, &Pseudonym::new("seawall-1")) && !is_loop(&headers, &Pseudonym::new("seawall-2")));
    }

    #[test]
    fn a_connection_header_cannot_take_the_framing_away() {
        let mut headers = map(&[("connection", "content-length, host"), ("content-length", "3"), ("host", "h")]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.len(), 2);
    }
}
