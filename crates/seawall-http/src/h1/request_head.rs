//! The parser of a caller's request head. A head that the upstream reads differently lets an attacker smuggle requests into other callers'
//! connections, so anything that is not plainly a request is refused.

use super::body_reader::{BodyReader, Length};
use super::fields::{BareLineFeed, HeaderFields, HeaderLines};
use super::raw_request::{RawRequest, RawRequestHeaders};
use bytes::Bytes;
use http::{Method, Uri, Version, request};
use std::task::{Context, Poll, ready};
use tokio::io::AsyncRead;

/// Longer heads are refused.
const MAX_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 100;
/// The most bytes of empty lines between two requests.
const MAX_EMPTY: usize = 1024;

/// The reason why a head was refused. Nothing after it on the connection can be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    #[error("the request is malformed")]
    Malformed,
    /// `line` is the length of its first line, at least.
    #[error("the head is too large, {line} bytes of it before its first line ends")]
    TooLarge { line: usize },
}

impl From<BareLineFeed> for HeadError {
    fn from(_: BareLineFeed) -> Self {
        Self::Malformed
    }
}

/// The framing and connection options of a head.
#[derive(Debug)]
pub(super) struct RequestInfo {
    pub(super) length: usize,
    pub(super) body: Length,
    pub(super) stays: bool,
    /// Its headers, if all of them may stay raw. Then the head has no others.
    pub(super) unread: Option<RawRequestHeaders>,
}

/// The progress in reading the next head.
#[derive(Debug, Default)]
pub(super) struct HeadProgress {
    /// The bytes that were there at the last attempt.
    looked: usize,
    /// Bytes of empty lines so far.
    skipped: usize,
}

/// Reads from a connection up to the end of a request's head; `None` if the caller closes before.
pub(super) fn poll(
    reading: &mut BodyReader,
    io: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    progress: &mut HeadProgress,
    head: &mut request::Parts,
) -> Poll<Result<Option<RequestInfo>, HeadError>> {
    loop {
        let skipped = empty(&reading.ahead);
        if skipped > 0 {
            drop(reading.ahead.split_to(skipped));
            progress.skipped += skipped;
            if progress.skipped > MAX_EMPTY {
                return Poll::Ready(Err(HeadError::Malformed));
            }
        }
        if !reading.ahead.is_empty()
            && let Some(asked) = read(&reading.ahead, &mut progress.looked, head)?
        {
            progress.skipped = 0;
            return Poll::Ready(Ok(Some(asked)));
        }
        match ready!(reading.poll_more(io, cx)) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Poll::Ready(Ok(None)),
        }
    }
}

/// Parses a head once all of it has arrived, into its final place: it is large, and each return would copy it. `looked` is the length at
/// the last attempt, so that a head which arrives byte by byte is not parsed again and again.
pub(super) fn read(bytes: &Bytes, looked: &mut usize, head: &mut request::Parts) -> Result<Option<RequestInfo>, HeadError> {
    let within = bytes.get(..bytes.len().min(MAX_BYTES)).unwrap_or_default();
    let mut lines = HeaderLines { rest: within };
    if *looked > 0 && !has_end(within, looked.saturating_sub(3)) {
        *looked = within.len();
        return unfinished(bytes, within);
    }
    *looked = within.len();
    let Some(first) = lines.next().transpose()? else { return unfinished(bytes, within) };
    let (method, uri, version) = request_line(bytes, first).ok_or(HeadError::Malformed)?;
    if version == Version::HTTP_11
        && let Ok(heard) = RawRequestHeaders::read(bytes, within, within.len() - lines.rest.len(), MAX_HEADERS)
    {
        let Some(RawRequest { unread, stays, end }) = heard else { return unfinished(bytes, within) };
        (head.method, head.uri, head.version) = (method, uri, version);
        head.headers.clear();
        *looked = 0;
        return Ok(Some(RequestInfo { length: end, body: Length::None, stays, unread: Some(unread) }));
    }
    let mut fields = HeaderFields::new(version, lines.rest);
    loop {
        match lines.next().transpose()? {
            None => return unfinished(bytes, within),
            Some([]) => break,
            Some(_) if fields.headers.len() == MAX_HEADERS => return Err(HeadError::TooLarge { line: first.len() }),
            Some(line) => fields.add(bytes, line).ok_or(HeadError::Malformed)?,
        }
    }
    let body = length(&fields, version).ok_or(HeadError::Malformed)?;
    let stays = fields.keeps_alive();
    (head.method, head.uri, head.version, head.headers) = (method, uri, version, fields.headers);
    *looked = 0;
    Ok(Some(RequestInfo { length: within.len() - lines.rest.len(), body, stays, unread: None }))
}

/// The length of leading empty lines, which a server should ignore (RFC 9112 §2.2).
fn empty(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let [b'\n', more @ ..] | [b'\r', b'\n', more @ ..] = rest {
        rest = more;
    }
    bytes.len() - rest.len()
}

/// Whether an empty line ends a head somewhere from `start` on.
fn has_end(bytes: &[u8], start: usize) -> bool {
    let fresh = bytes.get(start..).unwrap_or_default();
    memchr::memchr_iter(b'\n', fresh).any(|at| matches!(fresh.get(at + 1..), Some([b'\n', ..] | [b'\r', b'\n', ..])))
}

/// Decides about an incomplete head. If it does not begin like a request, waiting is no use.
fn unfinished(bytes: &Bytes, head: &[u8]) -> Result<Option<RequestInfo>, HeadError> {
    if head != b"\r" && head.first().is_some_and(|byte| !byte.is_ascii_alphanumeric() && !b"!#$%&'*+-.^_`|~".contains(byte)) {
        return Err(HeadError::Malformed);
    }
    if bytes.len() > head.len() || head.len() == MAX_BYTES {
        return Err(HeadError::TooLarge { line: memchr::memchr(b'\n', head).unwrap_or(head.len()) });
    }
    Ok(None)
}

/// `GET /path HTTP/1.1`, with single spaces.
fn request_line(bytes: &Bytes, line: &[u8]) -> Option<(Method, Uri, Version)> {
    let (line, version) = line.split_at_checked(line.len().checked_sub(9)?)?;
    let version = match version {
        b" HTTP/1.1" => Version::HTTP_11,
        b" HTTP/1.0" => Version::HTTP_10,
        _ => return None,
    };
    let (method, target) = line.split_at(memchr::memchr(b' ', line)?);
    // A fragment is not allowed in a target and is dropped without parsing; nothing that could end a line hides in it.
    let target = target.get(1..).filter(|target| target.iter().all(|byte| *byte > b' ' && *byte != 0x7f))?;
    std::str::from_utf8(target).ok()?;
    Some((Method::from_bytes(method).ok()?, Uri::from_maybe_shared(bytes.slice_ref(target)).ok()?, version))
}

/// The length of a request's body (RFC 9112 §6.3): unknown if the last coding is not `chunked`, so `None`.
fn length(fields: &HeaderFields, version: Version) -> Option<Length> {
    let Some(last) = fields.coding() else {
        return Some(fields.length.filter(|length| *length > 0).map_or(Length::None, Length::Known));
    };
    (version == Version::HTTP_11 && last).then_some(Length::Chunked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses a head into a value of its own.
    fn read(bytes: &Bytes, looked: &mut usize) -> Result<Option<(RequestInfo, request::Parts)>, HeadError> {
        let (mut head, ()) = http::Request::new(()).into_parts();
        let Some(asked) = super::read(bytes, looked, &mut head)? else { return Ok(None) };
        if let Some(unread) = &asked.unread {
            head.headers = unread.to_header_map();
        }
        Ok(Some((asked, head)))
    }

    fn whole(text: &str) -> RequestInfo {
        read(&Bytes::from(text.to_owned()), &mut 0).unwrap().unwrap().0
    }

    #[test]
    fn heads_say_how_long_their_bodies_are() {
        for (head, length) in [
            ("GET / HTTP/1.1", Length::None),
            ("POST / HTTP/1.1\r\ncontent-length: 5", Length::Known(5)),
            ("POST / HTTP/1.1\r\ncontent-length: 0", Length::None),
            ("POST / HTTP/1.1\r\ntransfer-encoding: gzip, Chunked", Length::Chunked),
        ] {
            assert_eq!(whole(&format!("{head}\r\n\r\n")).body, length, "{head}");
        }
    }

    #[test]
    fn connections_stay_as_both_versions_have_it() {
        for (head, stays) in [
            ("GET / HTTP/1.1", true),
            ("GET / HTTP/1.1\r\nconnection: close", false),
            ("GET / HTTP/1.0", false),
            ("GET / HTTP/1.0\r\nconnection: Keep-Alive", true),
        ] {
            assert_eq!(whole(&format!("{head}\r\n\r\n")).stays, stays, "{head}");
        }
    }

    #[test]
    fn a_head_is_the_same_however_it_is_cut() {
        let text = "POST /a?b=c HTTP/1.1\r\nHost: h\r\nX-A:  b \r\nContent-Length: 3\r\n\r\nabc";
        let bytes = Bytes::from(text);
        for step in 1..bytes.len() {
            let (mut looked, mut found) = (0, None);
            for end in (step..bytes.len() + step).step_by(step) {
                found = read(&bytes.slice(..end.min(bytes.len())), &mut looked).unwrap();
                if found.is_some() {
                    break;
                }
            }
            let (asked, head) = found.unwrap();
            assert_eq!(&bytes[asked.length..], b"abc", "{step}");
            assert_eq!((head.uri.path(), &head.headers["x-a"]), ("/a", &http::HeaderValue::from_static("b")));
        }
    }

    #[test]
    fn what_is_no_request_is_malformed() {
        for text in [
            "GET / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n",
            "GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "GET / HTTP/1.1\r\na b: c\r\n\r\n",
            "GET / HTTP/1.1\r\n a: c\r\n\r\n",
            "GET / HTTP/1.1\r\na\r\n\r\n",
            "GET / HTTP/1.1\nhost: h\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: h\n\r\n",
            "GET / HTTP/1.1\r\nhost: h\r\n\n",
            "GET / HTTP/1.1\r\nhost: h\r\na: b\ntransfer-encoding: chunked\r\n\r\n",
            "GET  / HTTP/1.1\r\n\r\n",
            "GET /  HTTP/1.1\r\n\r\n",
            "GET HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.2\r\n\r\n",
            "G\u{e4}T / HTTP/1.1\r\n\r\n",
            "\u{16}\u{3}\u{1}",
            " GET",
        ] {
            assert_eq!(read(&Bytes::from(text), &mut 0).unwrap_err(), HeadError::Malformed, "{text:?}");
        }
    }

    /// Fragments of valid heads and of attacks.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let texts = [
            "GET",
            " ",
            "/a",
            "?b=c",
            " HTTP/1.1",
            " HTTP/1.0",
            "\r\n",
            "\n",
            "\r",
            ":",
            "Host",
            "Host: h\r\n",
            "X-A: b\r\n",
            "\t",
            "\0",
            "\u{b}",
            "\u{c}",
            "Content-Length: 5\r\n",
            "Transfer-Encoding: chunked\r\n",
            "\"",
            "<",
            "{",
            "#",
            "\u{7f}",
            "\u{e4}",
            ",",
            "\r\n\r\n",
        ];
        let texts: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        prop_oneof![4 => proptest::sample::select(texts), 1 => proptest::collection::vec(any::<u8>(), 1..3)]
    }

    proptest! {
        #[test]
        fn what_we_take_for_a_request_others_read_alike(
            before in proptest::collection::vec(piece(), 0..3),
            within in proptest::collection::vec(piece(), 0..6),
            cut in 0..40usize,
        ) {
            let line = b"POST /path?q=1 HTTP/1.1\r\nHost: h\r\nX-End: 1\r\n\r\n";
            let (head, tail) = line.split_at(cut.min(line.len()));
            let bytes = Bytes::from([&before.concat()[..], head, &within.concat()[..], tail].concat());
            let start = empty(&bytes);
            let Ok(Some((asked, parts))) = read(&bytes.slice(start..), &mut 0) else { return Ok(()) };
            let mut space = [httparse::EMPTY_HEADER; 128];
            let mut other = httparse::Request::new(&mut space);
            prop_assert_eq!(other.parse(&bytes), Ok(httparse::Status::Complete(start + asked.length)), "{:?}", bytes);
            prop_assert_eq!(other.method, Some(parts.method.as_str()));
            prop_assert_eq!(other.version, Some(u8::from(parts.version == Version::HTTP_11)));
            let ours = |name: &str| name != "connection" && name != "content-length";
            let mut theirs: Vec<(String, &[u8])> = other.headers.iter().map(|of| (of.name.to_ascii_lowercase(), of.value)).collect();
            let mut read: Vec<(String, &[u8])> = parts.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes())).collect();
            for list in [&mut theirs, &mut read] {
                list.retain(|(name, _)| ours(name));
                list.sort();
            }
            prop_assert_eq!(read, theirs);
        }
    }

    #[test]
    fn heads_are_bounded() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(read(&Bytes::from(many), &mut 0).unwrap_err(), HeadError::TooLarge { line: 14 });
        let long = Bytes::from(format!("GET /{}", "a".repeat(MAX_BYTES)));
        assert_eq!(read(&long, &mut 0).unwrap_err(), HeadError::TooLarge { line: MAX_BYTES });
        assert!(read(&long.slice(..99), &mut 0).unwrap().is_none());
    }
}
