//! Rules for headers that cross the gateway.

use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, TE, VIA};
use http::{HeaderValue, Version};
use seawall_engine::credential::Credentials;
use seawall_engine::credential_names::is_credential;
use seawall_engine::runtime::{LiveEndpoint, LiveUpstream};
use seawall_http::h1::{RawRequestHeaders, RawResponseHeaders};
use seawall_http::header_text::text;
use seawall_store::headers::StoredHeaders;
use std::borrow::Cow;

/// The headers of a message that the gateway must act on. One pass over the present headers is cheaper than a lookup for each possible one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderMarks(u16);

impl HeaderMarks {
    /// Any hop-by-hop header.
    pub(crate) const HOP: Self = Self(1);
    pub(crate) const UPGRADE: Self = Self(1 << 1);
    pub(crate) const CODING: Self = Self(1 << 2);
    pub(crate) const TE: Self = Self(1 << 3);
    pub(crate) const VIA: Self = Self(1 << 4);
    pub(crate) const EXPECT: Self = Self(1 << 5);
    pub(crate) const TRACE: Self = Self(1 << 6);
    /// `Idempotency-Key`.
    pub(crate) const KEY: Self = Self(1 << 7);
    pub(crate) const EARLY: Self = Self(1 << 8);
    /// Any of our own headers.
    pub(crate) const OURS: Self = Self(1 << 9);
    pub(crate) const PREFER: Self = Self(1 << 10);
    pub(crate) const LENGTH: Self = Self(1 << 11);
    /// A credential of the caller.
    pub(crate) const CREDENTIAL: Self = Self(1 << 12);
    /// A header with URLs of the upstream.
    pub(crate) const LINK: Self = Self(1 << 13);

    pub(crate) fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |marks, name| marks | Self::mark(name.as_str())))
    }

    pub(crate) const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    /// Returns the marks of a name: hop-by-hop (RFC 9110 §7.6.1), besides the names that `Connection` lists, or otherwise relevant.
    fn mark(name: &str) -> u16 {
        let (hop, own) = match name {
            "upgrade" => (Self::HOP, Self::UPGRADE),
            "transfer-encoding" => (Self::HOP, Self::CODING),
            "te" => (Self::HOP, Self::TE),
            "connection" | "trailer" | "keep-alive" | "proxy-connection" | "alt-svc" => (Self::HOP, Self(0)),
            "proxy-authenticate" | "proxy-authorization" => (Self::HOP, Self(0)),
            "via" => (Self(0), Self::VIA),
            "expect" => (Self(0), Self::EXPECT),
            "traceparent" => (Self(0), Self::TRACE),
            "idempotency-key" => (Self(0), Self::KEY),
            "early-data" => (Self(0), Self::EARLY),
            "prefer" => (Self(0), Self::PREFER),
            "content-length" => (Self(0), Self::LENGTH),
            "location" | "content-location" | "link" | "refresh" => (Self(0), Self::LINK),
            name if is_credential(name) => (Self(0), Self::CREDENTIAL),
            _ => (Self(0), if is_ours(name) { Self::OURS } else { Self(0) }),
        };
        hop.0 | own.0
    }
}

/// Removes hop-by-hop headers, including the names that `Connection` lists.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in nominated(headers) {
        headers.remove(name);
    }
    remove_where(headers, |name| HeaderMarks(HeaderMarks::mark(name)).has(HeaderMarks::HOP));
}

/// Returns whether a header of this name is relayed: the names that `Connection` lists are not.
pub(crate) fn is_forwarded(headers: &HeaderMap, marks: HeaderMarks, name: &HeaderName) -> bool {
    !marks.has(HeaderMarks::HOP) || !nominated(headers).contains(name)
}

/// Returns the names that `Connection` lists besides its own options. A peer cannot remove the framing headers in this way.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    let plain =
        |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive") || value.as_bytes().eq_ignore_ascii_case(b"close");
    headers
        .get_all(CONNECTION)
        .iter()
        .filter(|value| !plain(value))
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect()
}

/// Headers that only Seawall may set on requests to an upstream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnHeaders<'a> {
    pub credentials: Option<&'a Credentials>,
    pub deadline: Option<&'a str>,
    /// Our name for `Via`, if the upstream may see it.
    pub name: Option<&'a Pseudonym>,
    /// The upstream may see `Forwarded` and similar headers.
    pub forwards: bool,
}

impl<'a> OwnHeaders<'a> {
    pub(crate) fn of(upstream: &'a LiveUpstream, endpoint: &'a LiveEndpoint, name: &'a Pseudonym) -> Self {
        Self {
            credentials: upstream.credentials.as_ref(),
            deadline: endpoint.spec.policy.deadline_header.as_deref(),
            name: upstream.spec.via.then_some(name),
            forwards: upstream.spec.forwarded,
        }
    }

    /// Returns whether any unparsed header is one of these or resembles one.
    pub(crate) fn are_among(&self, unread: &RawRequestHeaders) -> bool {
        unread.names().any(|name| std::str::from_utf8(name).is_ok_and(|name| self.has(name)))
    }

    fn has(&self, name: &str) -> bool {
        let injected = self.credentials.is_some_and(|own| {
            reads_as(name, AUTHORIZATION.as_str()) || own.header().is_some_and(|header| reads_as(name, header.as_str()))
        });
        let told = || !self.forwards && says_where_from(name);
        injected || self.deadline.is_some_and(|deadline| reads_as(name, deadline)) || is_ours(name) || told()
    }
}

/// Removes the request headers that the upstream must not see. Our own headers and the caller's credentials for us are removed.
pub(crate) fn to_upstream(headers: &mut HeaderMap, marks: HeaderMarks, ours: OwnHeaders<'_>, version: Version) {
    let trailers = marks.has(HeaderMarks::TE) && headers.get(TE).is_some_and(|value| value == "trailers");
    if marks.has(HeaderMarks::HOP) {
        strip_hop_by_hop(headers);
    }
    headers.remove(HOST);
    if marks.has(HeaderMarks::LENGTH) {
        headers.remove(CONTENT_LENGTH);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    // The body is here already, or the caller is asked for it when it is relayed.
    if marks.has(HeaderMarks::EXPECT) && headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue")) {
        headers.remove(EXPECT);
    }
    remove_where(headers, |name| ours.has(name));
    if headers.len() > headers.keys_len() {
        join_cookies(headers);
    }
    if let Some(pseudonym) = ours.name {
        headers.append(VIA, pseudonym.value(version).clone());
    }
}

fn remove_where(headers: &mut HeaderMap, unwanted: impl Fn(&str) -> bool) {
    if headers.keys().any(|name| unwanted(name.as_str())) {
        let names: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name.as_str())).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// HTTP/2 lets a client split its cookies; HTTP/1.1 wants one field (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) {
        let mut whole = first.as_bytes().to_vec();
        for crumb in std::iter::once(second).chain(crumbs) {
            whole.extend_from_slice(b"; ");
            whole.extend_from_slice(crumb.as_bytes());
        }
        if let Ok(whole) = HeaderValue::from_bytes(&whole) {
            headers.insert(COOKIE, whole);
        }
    }
}

/// Returns whether a server that reads `_`, `.` and the like as `-` takes the names for the same.
fn reads_as(name: &str, as_name: &str) -> bool {
    let plain = |b: u8| if b.is_ascii_alphanumeric() { b.to_ascii_lowercase() } else { b'-' };
    name.len() == as_name.len() && name.bytes().map(plain).eq(as_name.bytes().map(plain))
}

/// Returns whether the name is `Seawall-…`, also for servers that read `_` and the like as `-`.
fn is_ours(name: &str) -> bool {
    let mut bytes = name.bytes().map(|b| if b.is_ascii_alphanumeric() { b } else { b'-' });
    b"seawall-".iter().all(|expected| bytes.next() == Some(*expected))
}

/// Returns whether a header tells the origin of a request, also in disguise. Addresses of callers and earlier hosts are private, and an
/// upstream that trusts these headers could be deceived.
fn says_where_from(name: &str) -> bool {
    const PREFIX: &str = "x-forwarded-";
    const NAMES: [&str; 7] =
        ["forwarded", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip", "x-cluster-client-ip", "x-original-forwarded-for"];
    // Fast path: most names begin with none of these letters.
    matches!(name.as_bytes().first(), Some(b'x' | b'X' | b'f' | b'F' | b't' | b'T' | b'c' | b'C'))
        && (name.get(..PREFIX.len()).is_some_and(|start| reads_as(start, PREFIX)) || NAMES.iter().any(|known| reads_as(name, known)))
}

/// Returns whether a response header is relayed unchanged, by its name in any case. Links may have to be rewritten.
pub(crate) fn passes(name: &[u8]) -> bool {
    if let b"Server" | b"server" | b"Content-Type" | b"content-type" | b"Cache-Control" | b"cache-control" = name {
        // Fast path: the most frequent spellings, without a comparison letter by letter.
        return true;
    }
    let mut lower = [0; 64];
    let Some(lower) = lower.get_mut(..name.len()) else { return false };
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower)
        .is_ok_and(|name| HeaderMarks::mark(name) & (HeaderMarks::HOP.0 | HeaderMarks::OURS.0 | HeaderMarks::LINK.0) == 0)
}

/// Removes the response headers that the caller must not see, and adds `Via`.
pub(crate) fn to_caller(headers: &mut HeaderMap, version: Version, pseudonym: &Pseudonym) {
    relayed(headers);
    headers.append(VIA, pseudonym.value(version).clone());
}

/// Does the same without `Via`. The upstream cannot set our own headers.
pub(crate) fn relayed(headers: &mut HeaderMap) {
    let marks = HeaderMarks::of(headers);
    if marks.has(HeaderMarks::CODING) {
        // The chunked framing takes precedence (RFC 9112 §6.3); a length beside it may be an attack.
        headers.remove(CONTENT_LENGTH);
    }
    if marks.has(HeaderMarks::HOP) {
        strip_hop_by_hop(headers);
    }
    if marks.has(HeaderMarks::OURS) {
        remove_where(headers, is_ours);
    }
}

/// Returns a response's headers in stored form, with `Via`.
pub(crate) fn to_store(
    mut headers: HeaderMap,
    verbatim: Option<&RawResponseHeaders>,
    version: Version,
    pseudonym: &Pseudonym,
) -> StoredHeaders {
    let via = [(VIA.as_str(), text(pseudonym.value(version).as_bytes()))];
    if let Some(verbatim) = verbatim {
        return verbatim.texts().chain(via).collect();
    }
    relayed(&mut headers);
    texts(&headers).chain(via).collect()
}

/// Converts headers to their stored form.
pub(crate) fn pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    texts(headers).map(|(name, value)| (name.to_owned(), value.into_owned())).collect()
}

fn texts(headers: &HeaderMap) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    headers.iter().map(|(name, value)| (name.as_str(), text(value.as_bytes())))
}

/// Our name in `Via`, with prebuilt header values.
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

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the `Via` value for a message of this version.
    pub(crate) const fn value(&self, version: Version) -> &HeaderValue {
        match version {
            Version::HTTP_10 => &self.http_1_0,
            Version::HTTP_2 => &self.http_2,
            _ => &self.http_1_1,
        }
    }
}

/// Returns whether the request has passed through this process before.
pub(crate) fn is_loop(headers: &HeaderMap, pseudonym: &Pseudonym) -> bool {
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
            ("x-forwarded-for", "1.2.3.4"),
            ("x_forwarded_host", "inside"),
            ("x-forwarded-anything", "1"),
            ("forwarded", "for=1.2.3.4"),
            ("x-real-ip", "1.2.3.4"),
        ]);
        let told = headers.clone();
        let marks = HeaderMarks::of(&headers);
        let name = Pseudonym::new("seawall-1");
        to_upstream(&mut headers, marks, OwnHeaders { name: Some(&name), ..OwnHeaders::default() }, Version::HTTP_11);
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-end", "via"]);
        assert_eq!(headers[VIA], "1.1 seawall-1");
        let mut shown = told;
        to_upstream(&mut shown, marks, OwnHeaders { forwards: true, ..OwnHeaders::default() }, Version::HTTP_11);
        assert_eq!((shown.len(), &shown["x-forwarded-for"]), (6, &HeaderValue::from_static("1.2.3.4")), "where the upstream is trusted");
        assert!(is_loop(&headers, &Pseudonym::new("seawall-1")) && !is_loop(&headers, &Pseudonym::new("seawall-2")));
    }

    #[test]
    fn what_passes_as_it_came_is_what_would_have_been_relayed() {
        for name in [
            "Server",
            "content-type",
            "X-Request-Id",
            "Strict-Transport-Security",
            "Access-Control-Allow-Credentials",
            "Via",
            "Retry-After",
            "CONNECTION",
            "Keep-Alive",
            "proxy-connection",
            "Proxy-Authenticate",
            "PROXY-AUTHORIZATION",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "Upgrade",
            "Alt-Svc",
            "Seawall-Outcome",
            "SEAWALL_CALL",
            "seawall-a-name-that-is-longer-than-any-that-we-give",
        ] {
            let mut headers = map(&[(name, "a")]);
            relayed(&mut headers);
            assert_eq!(passes(name.as_bytes()), !headers.is_empty(), "{name}");
        }
        assert!(!passes(&[b'a'; 65]), "what is longer is looked at");
        for name in ["Location", "CONTENT-LOCATION", "link", "Refresh"] {
            assert!(!passes(name.as_bytes()), "{name} may have to be rewritten");
        }
    }

    #[test]
    fn a_connection_header_cannot_take_the_framing_away() {
        let mut headers = map(&[("connection", "content-length, host"), ("content-length", "3"), ("host", "h")]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers.len(), 2);
    }
}
