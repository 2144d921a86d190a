//! Heads of messages: as bytes, an answer's out of bytes, and what headers say about a message itself.

use super::reading::{Length, Reading};
use super::verbatim::{Heard, Passes, Verbatim};
use crate::fault::Fault;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST,
    HeaderName, SERVER, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, response};
use hyper::ext::ReasonPhrase;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncRead;

/// Longer header sections of an answer are refused.
pub(super) const MOST_BYTES: usize = 64 * 1024;
pub(super) const MOST_HEADERS: usize = 256;
/// A header's line has about so many bytes, and room is made for so many headers at the least and at the most.
const USUAL_LINE: usize = 48;
const FEWEST_EXPECTED: usize = 6;
const MOST_EXPECTED: usize = 24;

/// An answer's head, and what it says about what follows.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) parts: response::Parts,
    /// Its headers, where they are not among the parts.
    pub(super) verbatim: Option<Verbatim>,
    pub(super) length: usize,
    pub(super) body: Length,
    pub(super) stays: bool,
}

impl Answer {
    /// A 1xx, which nobody waits for.
    pub(super) fn is_interim(&self) -> bool {
        self.parts.status.is_informational() && self.parts.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Reads from a connection up to the end of a response's head. Interim responses are passed over.
pub(super) fn poll(
    reading: &mut Reading,
    io: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    to_head: bool,
    passes: Option<Passes>,
) -> Poll<Result<Answer, Fault>> {
    loop {
        if !reading.ahead.is_empty()
            && let Some(answer) = read(&reading.ahead, to_head, passes)?
        {
            reading.body(answer.length, answer.body);
            if answer.is_interim() {
                continue;
            }
            return Poll::Ready(Ok(answer));
        }
        match ready!(reading.poll_more(io, cx)) {
            Ok(0) | Err(_) => return Poll::Ready(Err(Fault::RESET)),
            Ok(_) => {}
        }
    }
}

/// Reads a head once all of it is there; `to_head` says that the request was a HEAD. Names and values are checked once, as
/// they become headers. Where all of them pass, they are left as they are.
pub(super) fn read(bytes: &Bytes, to_head: bool, passes: Option<Passes>) -> Result<Option<Answer>, Fault> {
    let within = bytes.get(..bytes.len().min(MOST_BYTES)).unwrap_or_default();
    let mut lines = Lines { rest: within };
    let Some(first) = lines.next().transpose()? else { return unfinished(bytes, within) };
    let (version, status, reason) = status_line(first).ok_or(Fault::GARBAGE)?;
    if let Some(Ok(heard)) = passes.map(|passes| Verbatim::read(bytes, within.len() - lines.rest.len(), version, passes)) {
        let Some(Heard { verbatim, length, stays, end }) = heard else { return unfinished(bytes, within) };
        let parts = parts(status, version, HeaderMap::new(), reason)?;
        let body = body(to_head, status, version, None, length).ok_or(Fault::GARBAGE)?;
        let stays = stays && status != StatusCode::SWITCHING_PROTOCOLS;
        return Ok(Some(Answer { parts, verbatim: Some(verbatim), length: end, body, stays }));
    }
    let mut fields = Fields::new(version, lines.rest);
    loop {
        match lines.next().transpose()? {
            None => return unfinished(bytes, within),
            Some([]) => break,
            Some(_) if fields.headers.len() == MOST_HEADERS => return Err(Fault::HEADERS_TOO_LARGE),
            Some(line) => fields.add(bytes, line).ok_or(Fault::GARBAGE)?,
        }
    }
    let length = within.len() - lines.rest.len();
    let body = body(to_head, status, version, fields.coding(), fields.length).ok_or(Fault::GARBAGE)?;
    // With both framings a reader between us and the server may have taken the other one (RFC 9112 §6.3).
    let is_framed_twice = fields.coding().is_some() && fields.length.is_some();
    let stays = fields.stays() && !is_framed_twice && status != StatusCode::SWITCHING_PROTOCOLS;
    Ok(Some(Answer { parts: parts(status, version, fields.headers, reason)?, verbatim: None, length, body, stays }))
}

fn parts(status: StatusCode, version: Version, headers: HeaderMap, reason: &[u8]) -> Result<response::Parts, Fault> {
    let (mut parts, ()) = Response::new(()).into_parts();
    (parts.status, parts.version, parts.headers) = (status, version, headers);
    if Some(reason) != status.canonical_reason().map(str::as_bytes) {
        parts.extensions.insert(ReasonPhrase::try_from(reason).map_err(|_| Fault::GARBAGE)?);
    }
    Ok(parts)
}

/// How long an answer's body is (RFC 9112 §6.3); `coding` says whether the last transfer coding is `chunked`.
fn body(to_head: bool, status: StatusCode, version: Version, coding: Option<bool>, length: Option<u64>) -> Option<Length> {
    if to_head || status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Some(Length::None);
    }
    let Some(is_chunked) = coding else {
        return Some(length.map_or(Length::UntilClose, Length::Known));
    };
    let length = if is_chunked { Length::Chunked } else { Length::UntilClose };
    (version != Version::HTTP_10).then_some(length)
}

/// A head that has no end yet. One that does not even begin like one is not worth waiting for.
fn unfinished(bytes: &Bytes, within: &[u8]) -> Result<Option<Answer>, Fault> {
    if within.iter().zip(b"HTTP/1.").any(|(is, should)| is != should) {
        return Err(Fault::GARBAGE);
    }
    if bytes.len() > within.len() { Err(Fault::HEADERS_TOO_LARGE) } else { Ok(None) }
}

/// A line that ends with a line feed alone. RFC 9112 §2.2 lets a recipient take that for the end of a line, or not: what is one header
/// to one reader is two to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BareLineFeed;

/// Lines that are complete, without their ends.
pub(super) struct Lines<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Lines<'a> {
    /// All lines of what was read as lines before.
    pub(super) fn of_fields(fields: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        Self { rest: fields }.map(|line| line.expect("what was read as lines are lines"))
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Result<&'a [u8], BareLineFeed>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = memchr::memchr(b'\n', self.rest)?;
        let (line, rest) = self.rest.split_at(end);
        self.rest = &rest[1..];
        Some(line.strip_suffix(b"\r").ok_or(BareLineFeed))
    }
}

impl From<BareLineFeed> for Fault {
    fn from(_: BareLineFeed) -> Self {
        Self::GARBAGE
    }
}

/// `HTTP/1.1 200 OK`; the reason may be missing, and the space before it.
fn status_line(line: &[u8]) -> Option<(Version, StatusCode, &[u8])> {
    let version = match line.get(..9)? {
        b"HTTP/1.1 " => Version::HTTP_11,
        b"HTTP/1.0 " => Version::HTTP_10,
        _ => return None,
    };
    let status = StatusCode::from_bytes(line.get(9..12)?).ok()?;
    match &line[12..] {
        [] => Some((version, status, &[])),
        [b' ', reason @ ..] => Some((version, status, reason)),
        _ => None,
    }
}

/// The headers so far, and what they say about the message itself.
pub(super) struct Fields {
    pub(super) headers: HeaderMap,
    closes: bool,
    keeps: bool,
    /// `Content-Length`, of which there may be several that agree.
    pub(super) length: Option<u64>,
    coded: bool,
}

impl Fields {
    /// Room for as many headers as there may be in `rest`.
    pub(super) fn new(version: Version, rest: &[u8]) -> Self {
        let headers = HeaderMap::with_capacity((rest.len() / USUAL_LINE).clamp(FEWEST_EXPECTED, MOST_EXPECTED));
        Self { headers, closes: false, keeps: version == Version::HTTP_11, length: None, coded: false }
    }

    /// Whether the connection may be used again.
    pub(super) const fn stays(&self) -> bool {
        self.keeps && !self.closes
    }

    /// Whether the last transfer coding is `chunked`; `None` where there is no coding.
    pub(super) fn coding(&self) -> Option<bool> {
        if !self.coded {
            return None;
        }
        let last = self.headers.get_all(TRANSFER_ENCODING).iter().next_back()?;
        let last = last.as_bytes().rsplit(|b| *b == b',').next().unwrap_or_default();
        Some(trimmed(last).eq_ignore_ascii_case(b"chunked"))
    }

    /// Takes one line in; `None` where it is no header.
    pub(super) fn add(&mut self, bytes: &Bytes, line: &[u8]) -> Option<()> {
        let (name, value) = named(line)?;
        if name == CONTENT_LENGTH {
            let is_repeated = self.length.is_some();
            for part in value.split(|b| *b == b',') {
                let length = digits(trimmed(part))?;
                if self.length.replace(length).is_some_and(|other| other != length) {
                    return None;
                }
            }
            // Several that agree are passed on as one (RFC 9110 §8.6).
            if is_repeated || value.contains(&b',') {
                self.headers.insert(CONTENT_LENGTH, HeaderValue::from(self.length?));
                return Some(());
            }
        } else if name == CONNECTION && value.eq_ignore_ascii_case(b"keep-alive") {
            self.keeps = true;
            return Some(());
        } else if name == CONNECTION {
            let (close, keep) = (has_token(value, b"close"), has_token(value, b"keep-alive"));
            (self.closes, self.keeps) = (self.closes || close, self.keeps || keep);
            if (close || keep) && !value.contains(&b',') {
                // All that it says has been heard; what it names besides is for others to take out.
                return Some(());
            }
        } else if name == TRANSFER_ENCODING {
            self.coded = true;
        }
        append(&mut self.headers, bytes, name, value)
    }
}

/// A line's name and value; `None` where it is no header.
fn named(line: &[u8]) -> Option<(HeaderName, &[u8])> {
    // Names are short: to begin a faster search costs more than this one.
    let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
    // Checks that the name is one, so that no space and no folded line gets through.
    let name = usual(name).or_else(|| HeaderName::from_bytes(name).ok())?;
    Some((name, trimmed(&value[1..])))
}

fn append(headers: &mut HeaderMap, bytes: &Bytes, name: HeaderName, value: &[u8]) -> Option<()> {
    headers.append(name, HeaderValue::from_maybe_shared(bytes.slice_ref(value)).ok()?);
    Some(())
}

/// One line among others, whatever it says; `None` where it is no header.
pub(super) fn put(headers: &mut HeaderMap, bytes: &Bytes, line: &[u8]) -> Option<()> {
    let (name, value) = named(line)?;
    append(headers, bytes, name, value)
}

/// Without the spaces and tabs around it. Whatever else is around a value is part of it, and then no part that may be.
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Names as most senders spell them, found without a look at each letter.
fn usual(name: &[u8]) -> Option<HeaderName> {
    Some(match name {
        b"Host" | b"host" => HOST,
        b"Date" | b"date" => DATE,
        b"Accept" | b"accept" => ACCEPT,
        b"Server" | b"server" => SERVER,
        b"Connection" | b"connection" => CONNECTION,
        b"User-Agent" | b"user-agent" => USER_AGENT,
        b"Content-Type" | b"content-type" => CONTENT_TYPE,
        b"Cache-Control" | b"cache-control" => CACHE_CONTROL,
        b"Authorization" | b"authorization" => AUTHORIZATION,
        b"Content-Length" | b"content-length" => CONTENT_LENGTH,
        b"Accept-Encoding" | b"accept-encoding" => ACCEPT_ENCODING,
        b"Content-Encoding" | b"content-encoding" => CONTENT_ENCODING,
        b"Transfer-Encoding" | b"transfer-encoding" => TRANSFER_ENCODING,
        _ => return None,
    })
}

fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|b| *b == b',').any(|part| trimmed(part).eq_ignore_ascii_case(token))
}

/// Digits and nothing else: `+5` is a number to most parsers and not a length.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> (response::Parts, Length, bool) {
        let Answer { parts, body, stays, .. } = read(&Bytes::from(format!("{text}\r\n\r\n")), false, None).unwrap().unwrap();
        (parts, body, stays)
    }

    #[test]
    fn bodies_are_framed_as_the_standard_says() {
        for (head, length) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5", Length::Known(5)),
            ("HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\ncontent-length: 5", Length::Known(5)),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\ncontent-length: 5", Length::Chunked),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip", Length::UntilClose),
            ("HTTP/1.1 200 OK", Length::UntilClose),
            ("HTTP/1.1 204 No Content\r\ncontent-length: 5", Length::None),
            ("HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked", Length::None),
        ] {
            assert_eq!(whole(head).1, length, "{head}");
        }
    }

    #[test]
    fn lengths_that_agree_become_one() {
        for head in ["content-length: 5, 5", "content-length: 5\r\nContent-Length: 5", "content-length: 05,5\r\nContent-Length: 5"] {
            let (parts, ..) = whole(&format!("HTTP/1.1 200 OK\r\n{head}"));
            assert_eq!(parts.headers.get_all(CONTENT_LENGTH).iter().collect::<Vec<_>>(), ["5"], "{head}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_garbage() {
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6",
            "HTTP/1.1 200 OK\r\ncontent-length: +5",
            "HTTP/1.1 200 OK\r\ncontent-length:",
            "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked",
            "HTTP/1.1 200 OK\r\na b: c",
            "HTTP/1.1 200 OK\r\na: b\r\n c",
            "HTTP/1.1 200 OK\r\na : b",
            "HTTP/1.1 200 OK\na: b",
            "HTTP/1.1 200 OK\r\na: b\ncontent-length: 0",
            "HTTP/1.1 200 OK\r\na: b\n\nc: d",
            "HTTP/1.1 200 OK\r\na: b\u{0}c",
            "HTTP/1.1 200 OK\r\na",
            "HTTP/1.1 200OK",
            "HTTP/1.1 20",
            "HTTP/2.0 200 OK",
            "SSH-2.0-OpenSSH",
        ] {
            assert_eq!(read(&Bytes::from(format!("{head}\r\n\r\n")), false, None).unwrap_err(), Fault::GARBAGE, "{head}");
        }
    }

    #[test]
    fn connections_stay_unless_somebody_says_otherwise() {
        for (head, stays) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.1 200 OK\r\nconnection: foo, Close", false),
            ("HTTP/1.1 200 OK\r\nconnection: close\r\nconnection: keep-alive", false),
            ("HTTP/1.0 200 OK", false),
            ("HTTP/1.0 200 OK\r\nconnection: Keep-Alive", true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5", false),
            ("HTTP/1.1 101 Switching Protocols", false),
        ] {
            assert_eq!(whole(head).2, stays, "{head}");
        }
    }

    #[test]
    fn a_head_is_bounded_in_bytes_and_in_lines() {
        let lines = |count: usize| Bytes::from(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)));
        assert!(read(&lines(MOST_HEADERS), false, None).unwrap().is_some());
        assert_eq!(read(&lines(MOST_HEADERS + 1), false, None).unwrap_err(), Fault::HEADERS_TOO_LARGE);
        let endless = Bytes::from(format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MOST_BYTES)));
        assert_eq!(read(&endless, false, None).unwrap_err(), Fault::HEADERS_TOO_LARGE);
        assert!(read(&endless.slice(..99), false, None).unwrap().is_none());
        assert_eq!(read(&Bytes::from_static(b"HTML"), false, None).unwrap_err(), Fault::GARBAGE);
    }

    #[test]
    fn an_unusual_reason_is_kept() {
        assert_eq!(whole("HTTP/1.1 200 Fine").0.extensions.get::<ReasonPhrase>().unwrap().as_bytes(), b"Fine");
        assert!(whole("HTTP/1.1 200 OK").0.extensions.is_empty());
    }
}
