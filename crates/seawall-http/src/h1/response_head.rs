//! The parser of response heads, and the length of the bodies behind them.

use super::body_reader::{BodyReader, Length};
use super::fields::{HeaderFields, HeaderLines, MAX_BYTES, MAX_HEADERS};
use super::raw_response::{Passes, RawResponse, RawResponseHeaders};
use crate::fault::Fault;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, Version, response};
use hyper::ext::ReasonPhrase;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncRead;

/// A response's head, with its framing.
#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) parts: response::Parts,
    /// Its raw headers, if they are not among the parts.
    pub(super) verbatim: Option<RawResponseHeaders>,
    pub(super) length: usize,
    pub(super) body: Length,
    pub(super) stays: bool,
}

impl ResponseHead {
    /// A 1xx that is not the response itself.
    pub(super) fn is_interim(&self) -> bool {
        self.parts.status.is_informational() && self.parts.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Reads from a connection up to the end of a response's head. Skips interim responses.
pub(super) fn poll(
    reading: &mut BodyReader,
    io: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    to_head: bool,
    passes: Option<Passes>,
) -> Poll<Result<ResponseHead, Fault>> {
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

/// Parses a head once all of it has arrived; `to_head` says that the request was a HEAD. Names and values are checked once, as they become
/// headers. If all of them pass, they stay raw.
pub(super) fn read(bytes: &Bytes, to_head: bool, passes: Option<Passes>) -> Result<Option<ResponseHead>, Fault> {
    let within = bytes.get(..bytes.len().min(MAX_BYTES)).unwrap_or_default();
    let mut lines = HeaderLines { rest: within };
    let Some(first) = lines.next().transpose()? else { return unfinished(bytes, within) };
    let (version, status, reason) = status_line(first).ok_or(Fault::GARBAGE)?;
    if let Some(Ok(heard)) = passes.map(|passes| RawResponseHeaders::read(bytes, within.len() - lines.rest.len(), version, passes)) {
        let Some(RawResponse { verbatim, length, stays, end }) = heard else { return unfinished(bytes, within) };
        let parts = parts(status, version, HeaderMap::new(), reason)?;
        let body = body(to_head, status, version, None, length).ok_or(Fault::GARBAGE)?;
        let stays = stays && status != StatusCode::SWITCHING_PROTOCOLS;
        return Ok(Some(ResponseHead { parts, verbatim: Some(verbatim), length: end, body, stays }));
    }
    let mut fields = HeaderFields::new(version, lines.rest);
    loop {
        match lines.next().transpose()? {
            None => return unfinished(bytes, within),
            Some([]) => break,
            Some(_) if fields.headers.len() == MAX_HEADERS => return Err(Fault::HEADERS_TOO_LARGE),
            Some(line) => fields.add(bytes, line).ok_or(Fault::GARBAGE)?,
        }
    }
    let length = within.len() - lines.rest.len();
    let body = body(to_head, status, version, fields.coding(), fields.length).ok_or(Fault::GARBAGE)?;
    // With both framings a parser between us and the server may have chosen the other one (RFC 9112 §6.3).
    let is_framed_twice = fields.coding().is_some() && fields.length.is_some();
    let stays = fields.keeps_alive() && !is_framed_twice && status != StatusCode::SWITCHING_PROTOCOLS;
    Ok(Some(ResponseHead { parts: parts(status, version, fields.headers, reason)?, verbatim: None, length, body, stays }))
}

fn parts(status: StatusCode, version: Version, headers: HeaderMap, reason: &[u8]) -> Result<response::Parts, Fault> {
    let (mut parts, ()) = Response::new(()).into_parts();
    (parts.status, parts.version, parts.headers) = (status, version, headers);
    if Some(reason) != status.canonical_reason().map(str::as_bytes) {
        parts.extensions.insert(ReasonPhrase::try_from(reason).map_err(|_| Fault::GARBAGE)?);
    }
    Ok(parts)
}

/// The length of a response's body (RFC 9112 §6.3); `coding` says whether the last transfer coding is `chunked`.
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

/// Decides about an incomplete head. If it does not begin like a response, waiting is no use.
fn unfinished(bytes: &Bytes, within: &[u8]) -> Result<Option<ResponseHead>, Fault> {
    if within.iter().zip(b"HTTP/1.").any(|(is, should)| is != should) {
        return Err(Fault::GARBAGE);
    }
    if bytes.len() > within.len() { Err(Fault::HEADERS_TOO_LARGE) } else { Ok(None) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::CONTENT_LENGTH;

    fn whole(text: &str) -> (response::Parts, Length, bool) {
        let ResponseHead { parts, body, stays, .. } = read(&Bytes::from(format!("{text}\r\n\r\n")), false, None).unwrap().unwrap();
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
        assert!(read(&lines(MAX_HEADERS), false, None).unwrap().is_some());
        assert_eq!(read(&lines(MAX_HEADERS + 1), false, None).unwrap_err(), Fault::HEADERS_TOO_LARGE);
        let endless = Bytes::from(format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MAX_BYTES)));
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
