//! A request's raw headers. Most requests have no header that a gateway must act upon, and parsing them into a map only to write them again
//! would cost more than the rest of the request.

use super::fields::{HeaderLines, put, trimmed};
use super::plain_response::{NotPlain, Plain};
use super::raw_response::{HeaderPlace, is_spelled};
use super::writer::HeadWriter;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{HOST, HeaderValue, VIA};

/// Headers that are relayed unchanged, except `Host` and `Connection`, which belong to one hop.
#[derive(Debug)]
pub struct RawRequestHeaders {
    /// Lines, with their ends.
    fields: Bytes,
    host: HeaderPlace,
    connection: Option<HeaderPlace>,
    /// The `Via` header of the hops so far.
    pub via: Option<HeaderValue>,
}

/// The raw headers, and what they say about the connection.
pub(super) struct RawRequest {
    pub(super) unread: RawRequestHeaders,
    pub(super) stays: bool,
    /// The length of the whole head.
    pub(super) end: usize,
}

impl RawRequestHeaders {
    /// Reads the headers of an HTTP/1.1 request from `start` on, once all have arrived: exactly one `Host`, and at most `most` headers.
    /// None of the headers that stay raw announces a body.
    pub(super) fn read(bytes: &Bytes, within: &[u8], start: usize, most: usize) -> Result<Option<RawRequest>, NotPlain> {
        let (mut plain, mut at, mut lines) = (Plain::new(within.get(start..).ok_or(NotPlain)?), 0, 0);
        let (mut host, mut connection, mut stays) = (None, None, true);
        loop {
            let Some(line) = plain.next()? else { return Ok(None) };
            if line.is_empty() {
                break;
            }
            if lines == most {
                return Err(NotPlain);
            }
            if is_spelled(line, b"Host:", b"host:") {
                if host.replace(HeaderPlace::of(at..plain.start)?).is_some() {
                    return Err(NotPlain);
                }
            } else if is_spelled(line, b"Connection:", b"connection:") {
                let value = trimmed(&line[b"connection:".len()..]);
                stays = value == b"keep-alive";
                if connection.replace(HeaderPlace::of(at..plain.start)?).is_some() || !(stays || value == b"close") {
                    return Err(NotPlain);
                }
            } else if !is_common(line) {
                return Err(NotPlain);
            }
            (at, lines) = (plain.start, lines + 1);
        }
        let unread = Self { fields: bytes.slice(start..start + at), host: host.ok_or(NotPlain)?, connection, via: None };
        Ok(Some(RawRequest { unread, stays, end: start + plain.start }))
    }

    /// The value of `Host`.
    #[must_use]
    pub fn host(&self) -> &[u8] {
        trimmed(self.host.of_line(&self.fields).get(b"host:".len()..).unwrap_or_default())
    }

    /// The same, as shared bytes without a copy.
    #[must_use]
    pub fn shared_host(&self) -> Bytes {
        self.fields.slice_ref(self.host())
    }

    /// Names of the headers that are relayed.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.lines().map(|line| line.split(|byte| *byte == b':').next().unwrap_or_default())
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces().into_iter().flat_map(HeaderLines::of_fields)
    }

    /// The relayed lines as contiguous pieces.
    fn pieces(&self) -> [&[u8]; 3] {
        HeaderPlace::between(&self.fields, [Some(self.host), self.connection])
    }

    pub fn write(&self, out: &mut HeadWriter<'_>) {
        self.pieces().into_iter().for_each(|piece| out.lines(piece));
        if let Some(via) = &self.via {
            out.field(&VIA, via);
        }
    }

    /// Parses the headers into a map, if a caller must act upon them after all.
    pub fn add_to_header_map(&self, headers: &mut HeaderMap) {
        for line in self.lines() {
            put(headers, &self.fields, line).expect("what was read as headers are headers");
        }
        if let Some(via) = &self.via {
            headers.append(VIA, via.clone());
        }
    }

    /// All headers as a map, `Host` included.
    #[must_use]
    pub fn to_header_map(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(8);
        let host = HeaderValue::from_bytes(self.host()).expect("what was read as a header is one");
        headers.insert(HOST, host);
        self.add_to_header_map(&mut headers);
        headers
    }
}

/// Whether a line has a common header, in a common spelling, that a gateway need not handle. A cache, a limit or a rewrite may still
/// depend on such a header and then must read it. Any header that is not on this list is parsed, so that an omission is safe.
fn is_common(line: &[u8]) -> bool {
    let is = |upper, lower| is_spelled(line, upper, lower);
    match line.first() {
        Some(b'A' | b'a') => {
            is(b"Accept:", b"accept:") || is(b"Accept-Encoding:", b"accept-encoding:") || is(b"Accept-Language:", b"accept-language:")
        }
        Some(b'C' | b'c') => is(b"Cache-Control:", b"cache-control:"),
        Some(b'P' | b'p') => is(b"Pragma:", b"pragma:"),
        Some(b'S' | b's') => is(b"Sec-Fetch-Mode:", b"sec-fetch-mode:"),
        Some(b'U' | b'u') => is(b"User-Agent:", b"user-agent:"),
        Some(_) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_head::{self, RequestInfo};
    use super::*;
    use http::{Request, request};
    use proptest::prelude::*;

    const LINE: &str = "GET /a HTTP/1.1\r\n";

    fn heard(fields: &str) -> Option<RawRequestHeaders> {
        let bytes = Bytes::from(format!("{LINE}{fields}\r\n"));
        RawRequestHeaders::read(&bytes, &bytes, LINE.len(), 100).ok()?.map(|heard| heard.unread)
    }

    fn written(unread: &RawRequestHeaders) -> String {
        let mut out = Vec::new();
        unread.write(&mut HeadWriter::new(&mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn headers_go_on_as_they_came_but_for_host_and_connection() {
        let mut unread = heard("User-Agent: a\r\nhost:  b:1 \r\nAccept:*/*\r\nConnection: keep-alive\r\naccept:  c\r\n").unwrap();
        assert_eq!(unread.host(), b"b:1");
        assert_eq!(written(&unread), "User-Agent: a\r\nAccept:*/*\r\naccept:  c\r\n");
        assert_eq!(unread.names().collect::<Vec<_>>(), [&b"User-Agent"[..], b"Accept", b"accept"]);
        unread.via = Some(HeaderValue::from_static("1.1 us"));
        assert_eq!(written(&unread), "User-Agent: a\r\nAccept:*/*\r\naccept:  c\r\nvia: 1.1 us\r\n");
        let whole: Vec<_> = unread.to_header_map().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        assert_eq!(whole, ["host: b:1", "user-agent: a", "accept: */*", "accept: c", "via: 1.1 us"]);
    }

    #[test]
    fn what_is_not_known_to_be_harmless_is_looked_at() {
        for fields in [
            "",
            "Host: a\r\nHost: a\r\n",
            "HOST: a\r\n",
            "Host: a\r\nX-A: b\r\n",
            "Host: a\r\nAuthorization: b\r\n",
            "Host: a\r\nCookie: b\r\n",
            "Host: a\r\nContent-Length: 0\r\n",
            "Host: a\r\nTransfer-Encoding: chunked\r\n",
            "Host: a\r\nTE: trailers\r\n",
            "Host: a\r\nExpect: 100-continue\r\n",
            "Host: a\r\nConnection: keep-alive, X-A\r\n",
            "Host: a\r\nConnection: close\r\nConnection: close\r\n",
            "Host: a\r\nConnection: Upgrade\r\n",
            "Host: a\r\nUser_Agent: b\r\n",
            "Host: a\r\nAccept : b\r\n",
            "Host: a\r\nAccept: b\n",
            "Host: a\r\nAccept: b\r\n c\r\n",
            "Host: a\r\nAccept: \0\r\n",
            " Host: a\r\n",
        ] {
            assert!(heard(fields).is_none(), "{fields:?}");
        }
        assert!(heard("Host: a\r\n").is_some());
        assert!(heard(&format!("Host: a\r\n{}", "Accept: b\r\n".repeat(99))).is_some());
        assert!(heard(&format!("Host: a\r\n{}", "Accept: b\r\n".repeat(100))).is_none());
    }

    /// Fragments of valid headers and of attacks.
    fn piece() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(vec![
            "Host: a\r\n",
            "host:b:1 \r\n",
            "Host:\r\n",
            "HOST: a\r\n",
            "Accept: */*\r\n",
            "accept:\t1\r\n",
            "Accept-Encoding: \r\n",
            "accept-language: \u{e4}\r\n",
            "User-Agent: a\r\n",
            "Cache-Control: no-cache\r\n",
            "Pragma: no-cache\r\n",
            "sec-fetch-mode: cors\r\n",
            "Connection: keep-alive\r\n",
            "Connection: close\r\n",
            "connection:close\r\n",
            "Connection: x-a\r\n",
            "Content-Length: 0\r\n",
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "X-A: 1\r\n",
            "\r\n",
            "\r",
            "\n",
            ":",
            " ",
            "\0",
            "\u{7f}",
            "Accept",
        ])
    }

    /// Parses a head, keeping raw headers if possible.
    fn read(bytes: &Bytes) -> (Result<Option<RequestInfo>, request_head::HeadError>, request::Parts) {
        let (mut head, ()) = Request::new(()).into_parts();
        (request_head::read(bytes, &mut 0, &mut head), head)
    }

    proptest! {
        #[test]
        fn what_is_left_unread_is_what_would_have_been_read(
            line in proptest::sample::select(vec![LINE, "HEAD / HTTP/1.1\r\n", "GET /a HTTP/1.0\r\n", "GET /a HTTP/1.1\n"]),
            pieces in proptest::collection::vec(piece(), 0..9),
            cut in 0..200usize,
        ) {
            let bytes = Bytes::from(format!("{line}Host: h\r\n{}\r\n", pieces.concat()));
            let bytes = bytes.slice(..cut.min(bytes.len()));
            // An uncommon header in front forces the general parser.
            let slow = Bytes::from([line.as_bytes(), b"x-slow: 1\r\n", bytes.get(line.len()..).unwrap_or_default()].concat());
            let (ours, head) = read(&bytes);
            if bytes.len() < line.len() {
                return Ok(());
            }
            let (other, mut others) = read(&slow);
            let Ok(Some(RequestInfo { length, body, stays, unread: Some(unread) })) = ours else {
                let length = |asked: Result<Option<RequestInfo>, _>, more| asked.map(|asked| asked.map(|asked| asked.length + more));
                prop_assert_eq!(length(ours, b"x-slow: 1\r\n".len()), length(other, 0));
                return Ok(());
            };
            let other = other.unwrap().unwrap();
            prop_assert!(other.unread.is_none() && head.headers.is_empty());
            prop_assert_eq!((length + b"x-slow: 1\r\n".len(), body, stays), (other.length, other.body, other.stays));
            prop_assert_eq!((&head.method, &head.uri, head.version), (&others.method, &others.uri, others.version));
            others.headers.remove("x-slow");
            prop_assert_eq!(&unread.to_header_map(), &others.headers);
            // The next hop's parser reads the same.
            let again = Bytes::from(format!("{LINE}x-slow: 1\r\n{}\r\n", written(&unread)));
            let (_, mut again) = read(&again);
            again.headers.remove("x-slow");
            others.headers.remove(HOST);
            prop_assert_eq!(&again.headers, &others.headers);
        }
    }
}
