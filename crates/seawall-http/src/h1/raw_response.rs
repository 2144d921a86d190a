//! A response's raw headers. Most responses have no header that a gateway must act upon, and parsing them into a map only to write them
//! again would cost more than the rest of the response.

use super::fields::{HeaderLines, MAX_BYTES, MAX_HEADERS, digits, put, trimmed};
use super::plain_response::{NotPlain, Plain};
use super::writer::HeadWriter;
use crate::header_text::text;
use bytes::Bytes;
use http::{HeaderMap, Version};
use std::borrow::Cow;
use std::ops::Range;

/// Whether a header may be relayed unchanged, by its name in any case.
pub type Passes = fn(&[u8]) -> bool;

/// Headers that are relayed unchanged. The body's framing and the connection's persistence are written anew for each recipient.
#[derive(Debug)]
pub struct RawResponseHeaders {
    /// Lines, with their ends.
    fields: Bytes,
    /// The place of `Content-Length`.
    length: Option<HeaderPlace>,
    /// The place of `Connection`, which is not relayed.
    connection: Option<HeaderPlace>,
    is_dated: bool,
}

/// One line.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeaderPlace {
    start: u16,
    end: u16,
}

/// The raw headers, and what they say about the message.
pub(super) struct RawResponse {
    pub(super) verbatim: RawResponseHeaders,
    pub(super) length: Option<u64>,
    pub(super) stays: bool,
    /// The length of the whole head.
    pub(super) end: usize,
}

/// The role of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderRole {
    Length,
    Connection,
    Date,
    /// No effect on the message itself.
    Other,
}

impl RawResponseHeaders {
    /// Reads the headers from `start` on, once all have arrived.
    pub(super) fn read(bytes: &Bytes, start: usize, version: Version, passes: Passes) -> Result<Option<RawResponse>, NotPlain> {
        let rest = bytes.get(start..bytes.len().min(MAX_BYTES)).ok_or(NotPlain)?;
        let (mut plain, mut at, mut lines) = (Plain::new(rest), 0, 0);
        let (mut length, mut connection, mut is_dated) = (None, None, false);
        let (mut keeps, mut closes) = (version == Version::HTTP_11, false);
        loop {
            let Some(line) = plain.next()? else { return Ok(None) };
            if line.is_empty() {
                break;
            }
            let end = plain.start;
            let (about, name, value) = named(line).filter(|_| lines < MAX_HEADERS).ok_or(NotPlain)?;
            match about {
                HeaderRole::Length if length.is_none() => {
                    length = Some((HeaderPlace::of(at..end)?, digits(trimmed(value)).ok_or(NotPlain)?));
                }
                HeaderRole::Connection if connection.is_none() => {
                    let value = trimmed(value);
                    if value == b"keep-alive" {
                        keeps = true;
                    } else if value == b"close" {
                        closes = true;
                    } else {
                        return Err(NotPlain);
                    }
                    connection = Some(HeaderPlace::of(at..end)?);
                }
                HeaderRole::Date => is_dated = true,
                HeaderRole::Other if passes(name) => {}
                HeaderRole::Length | HeaderRole::Connection | HeaderRole::Other => return Err(NotPlain),
            }
            (at, lines) = (end, lines + 1);
        }
        let (length, value) = length.unzip();
        let verbatim = Self { fields: bytes.slice(start..start + at), length, connection, is_dated };
        Ok(Some(RawResponse { verbatim, length: value, stays: keeps && !closes, end: start + plain.start }))
    }

    pub(super) const fn is_dated(&self) -> bool {
        self.is_dated
    }

    pub(super) const fn has_length(&self) -> bool {
        self.length.is_some()
    }

    /// All raw lines.
    pub fn fields(&self) -> &[u8] {
        &self.fields
    }

    /// The first header of that name.
    pub fn first(&self, name: &str) -> Option<&[u8]> {
        let mut lines = self.pieces(true).into_iter().flat_map(HeaderLines::of_fields);
        lines.find_map(|line| {
            let (own, value) = line.split_at_checked(name.len())?;
            let value = value.strip_prefix(b":").filter(|_| own.eq_ignore_ascii_case(name.as_bytes()))?;
            Some(trimmed(value))
        })
    }

    /// The relayed lines as contiguous pieces.
    fn pieces(&self, with_length: bool) -> [&[u8]; 3] {
        HeaderPlace::between(&self.fields, [self.connection, self.length.filter(|_| !with_length)])
    }

    pub(super) fn write(&self, out: &mut HeadWriter<'_>, with_length: bool) {
        self.pieces(with_length).into_iter().for_each(|piece| out.lines(piece));
    }

    /// Parses the headers into a map, if a caller must act upon them after all.
    pub fn add_to_header_map(self, headers: &mut HeaderMap) {
        for line in self.pieces(true).into_iter().flat_map(HeaderLines::of_fields) {
            put(headers, &self.fields, line).expect("what was read as headers are headers");
        }
    }

    /// Returns all headers for storage: names as they were spelled, and values as text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        self.pieces(true).into_iter().flat_map(HeaderLines::of_fields).filter_map(|line| {
            // Names are short: a search for long texts would cost more to start than it saves.
            let colon = line.iter().position(|byte| *byte == b':')?;
            Some((std::str::from_utf8(&line[..colon]).ok()?, text(line[colon + 1..].trim_ascii())))
        })
    }
}

impl HeaderPlace {
    pub(super) fn of(place: Range<usize>) -> Result<Self, NotPlain> {
        let at = |at: usize| u16::try_from(at).map_err(|_| NotPlain);
        Ok(Self { start: at(place.start)?, end: at(place.end)? })
    }

    /// The line itself, without its end.
    pub(super) fn of_line(self, lines: &[u8]) -> &[u8] {
        &lines[usize::from(self.start)..usize::from(self.end) - b"\r\n".len()]
    }

    /// The parts of `lines` without these two.
    pub(super) fn between(lines: &[u8], left_out: [Option<Self>; 2]) -> [&[u8]; 3] {
        let all = lines.len();
        let [mut first, mut second] =
            left_out.map(|place| place.map_or((all, all), |place| (usize::from(place.start), usize::from(place.end))));
        if second.0 < first.0 {
            (first, second) = (second, first);
        }
        [&lines[..first.0], &lines[first.1..second.0], &lines[second.1..]]
    }
}

/// Whether a line begins with a name and its colon, in one of two common spellings.
#[inline]
pub(super) fn is_spelled(line: &[u8], upper: &[u8], lower: &[u8]) -> bool {
    line.starts_with(upper) || line.starts_with(lower)
}

/// A line's role, name and value.
#[inline]
fn named(line: &[u8]) -> Option<(HeaderRole, &[u8], &[u8])> {
    let (about, length) = match usual(line) {
        Some(usual) => usual,
        None => {
            let length = line.iter().position(|byte| !TOKEN[usize::from(*byte)]).filter(|length| *length > 0)?;
            // A header that affects the message, in an unusual spelling, is not plain.
            (HeaderRole::Other, Some(length).filter(|length| !is_of_note(&line[..*length]))?)
        }
    };
    let (name, value) = line.split_at(length);
    Some((about, name, value.strip_prefix(b":")?))
}

/// Common headers in common spellings: the role of a line and the length of its name, found without normalising each letter.
#[inline]
fn usual(line: &[u8]) -> Option<(HeaderRole, usize)> {
    let is = |upper, lower| is_spelled(line, upper, lower);
    match line.first()? {
        b'D' | b'd' if is(b"Date:", b"date:") => Some((HeaderRole::Date, 4)),
        b'S' | b's' if is(b"Server:", b"server:") => Some((HeaderRole::Other, 6)),
        b'C' | b'c' if is(b"Content-Type:", b"content-type:") => Some((HeaderRole::Other, 12)),
        b'C' | b'c' if is(b"Content-Length:", b"content-length:") => Some((HeaderRole::Length, 14)),
        b'C' | b'c' if is(b"Connection:", b"connection:") => Some((HeaderRole::Connection, 10)),
        b'C' | b'c' if is(b"Cache-Control:", b"cache-control:") => Some((HeaderRole::Other, 13)),
        _ => None,
    }
}

/// Whether a header of this name affects the message.
fn is_of_note(name: &[u8]) -> bool {
    match name.len() {
        4 => name.eq_ignore_ascii_case(b"date"),
        10 => name.eq_ignore_ascii_case(b"connection"),
        14 => name.eq_ignore_ascii_case(b"content-length"),
        17 => name.eq_ignore_ascii_case(b"transfer-encoding"),
        _ => false,
    }
}

/// Whether a name may have this byte (RFC 9110 §5.6.2).
pub(super) const fn is_token(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// A table of the bytes that names may have.
const TOKEN: [bool; 256] = {
    let all = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&'*+-.^_`|~";
    let (mut table, mut at) = ([false; 256], 0);
    while at < all.len() {
        table[all[at] as usize] = true;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::super::response_head::{self, ResponseHead};
    use super::*;
    use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
    use proptest::prelude::*;

    const LINE: &str = "HTTP/1.1 200 OK\r\n";

    fn heard(fields: &str) -> Option<RawResponseHeaders> {
        let passes: Passes = |name| !name.eq_ignore_ascii_case(b"x-held");
        RawResponseHeaders::read(&Bytes::from(format!("{LINE}{fields}\r\n")), LINE.len(), Version::HTTP_11, passes)
            .ok()?
            .map(|heard| heard.verbatim)
    }

    fn written(verbatim: &RawResponseHeaders, with_length: bool) -> String {
        let mut out = Vec::new();
        verbatim.write(&mut HeadWriter::new(&mut out), with_length);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn headers_are_written_as_they_came_but_for_length_and_connection() {
        let fields = "Server: a\r\nContent-Length: 5\r\nDate:b \r\nconnection: keep-alive\r\nX-C:  c\r\n";
        let verbatim = heard(fields).unwrap();
        assert_eq!(written(&verbatim, false), "Server: a\r\nDate:b \r\nX-C:  c\r\n");
        assert_eq!(written(&verbatim, true), "Server: a\r\nContent-Length: 5\r\nDate:b \r\nX-C:  c\r\n");
        assert!(verbatim.is_dated() && verbatim.has_length());
        assert_eq!((verbatim.first("x-c"), verbatim.first("x-d")), (Some(&b"c"[..]), None));
    }

    #[test]
    fn what_may_not_pass_or_is_not_plain_is_looked_at() {
        for fields in [
            "X-Held: a\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close, X-A\r\n",
            "Connection: close\r\nConnection: close\r\n",
            "CONNECTION: close\r\n",
            "CONTENT-LENGTH: 5\r\n",
            "DATE: b\r\n",
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "A: b\n",
            "A: b\r\n c\r\n",
            "A : b\r\n",
            ": b\r\n",
            "A\r\n",
            "A: \0\r\n",
        ] {
            assert!(heard(fields).is_none(), "{fields:?}");
        }
        assert!(heard("").is_some());
    }

    #[test]
    fn heads_are_bounded_here_too() {
        assert!(heard(&"a: b\r\n".repeat(MAX_HEADERS)).is_some());
        assert!(heard(&"a: b\r\n".repeat(MAX_HEADERS + 1)).is_none());
        assert!(heard(&format!("a: {}\r\n", "b".repeat(MAX_BYTES))).is_none());
    }

    /// Fragments of valid headers and of attacks.
    fn piece() -> impl Strategy<Value = &'static str> {
        proptest::sample::select(vec![
            "Server: a\r\n",
            "date: b\r\n",
            "Content-Length: 5\r\n",
            "content-length:5 \r\n",
            "Connection: keep-alive\r\n",
            "Connection: close\r\n",
            "connection: Close\r\n",
            "CONTENT-length: 5\r\n",
            "Connection: x-a\r\n",
            "Transfer-Encoding: chunked\r\n",
            "X-A: 1\r\n",
            "x-a:\t2\r\n",
            "X-Held: 3\r\n",
            "Keep-Alive: timeout=5\r\n",
            "Content-Length: 05\r\n",
            "Content-Length: 6\r\n",
            "\r\n",
            "\r",
            "\n",
            ":",
            " ",
            "\t",
            "\0",
            "\u{7f}",
            "\u{e4}",
            "a",
        ])
    }

    #[test]
    fn bytes_that_are_taken_are_those_that_headers_are_made_of() {
        for byte in 0..=u8::MAX {
            assert_eq!(TOKEN[usize::from(byte)], HeaderName::from_bytes(&[byte]).is_ok(), "{byte}");
            let line = [b"a: ", &[byte][..], b"\r\n"].concat();
            assert_eq!(Plain::new(&line).next().is_ok(), HeaderValue::from_bytes(&[byte]).is_ok(), "{byte}");
        }
    }

    #[test]
    fn a_head_without_end_is_waited_for() {
        let bytes = Bytes::from(format!("{LINE}Server: a\r\nDate: b\r\n\r\n"));
        for end in LINE.len()..bytes.len() {
            assert!(matches!(RawResponseHeaders::read(&bytes.slice(..end), LINE.len(), Version::HTTP_11, |_| true), Ok(None)), "{end}");
        }
    }

    /// Status lines that affect the framing.
    fn line() -> impl Strategy<Value = &'static str> {
        let lines = [
            LINE,
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.1 204 No Content\r\n",
            "HTTP/1.1 304 Not Modified\r\n",
            "HTTP/1.1 103 Early Hints\r\n",
            "HTTP/1.1 200 Fine\n",
        ];
        proptest::sample::select(lines.to_vec())
    }

    proptest! {
        #[test]
        fn what_is_left_as_it_came_is_what_would_have_been_read(
            line in line(),
            pieces in proptest::collection::vec(piece(), 0..9),
            to_head: bool,
        ) {
            let bytes = Bytes::from(format!("{line}{}\r\n", pieces.concat()));
            let passes: Passes = |name| !name.eq_ignore_ascii_case(b"x-held");
            let (ours, other) = (response_head::read(&bytes, to_head, Some(passes)), response_head::read(&bytes, to_head, None));
            let Ok(Some(ResponseHead { parts, verbatim: Some(verbatim), length, body, stays })) = ours else {
                prop_assert_eq!(ours.map(|ours| ours.map(|ours| ours.length)), other.map(|other| other.map(|other| other.length)));
                return Ok(());
            };
            let other = other.unwrap().unwrap();
            prop_assert_eq!((length, body, stays), (other.length, other.body, other.stays));
            prop_assert_eq!((parts.status, parts.version), (other.parts.status, other.parts.version));
            prop_assert!(parts.headers.is_empty());
            let again = Bytes::from(format!("{LINE}{}\r\n", written(&verbatim, true)));
            let mut spelled = HeaderMap::new();
            let mut kept: Vec<_> = verbatim.texts().map(|(name, value)| (name.to_ascii_lowercase(), value.into_owned())).collect();
            verbatim.add_to_header_map(&mut spelled);
            let mut texts: Vec<(String, String)> = spelled
                .iter()
                .map(|(name, value)| (name.to_string(), text(value.as_bytes()).into_owned()))
                .collect();
            // A map groups values by name, so sort both.
            kept.sort();
            texts.sort();
            prop_assert_eq!(kept, texts);
            prop_assert_eq!(&spelled, &other.parts.headers);
            prop_assert!(!spelled.contains_key(CONNECTION));
            prop_assert!(spelled.get_all(CONTENT_LENGTH).iter().count() <= 1);
            prop_assert_eq!(&response_head::read(&again, to_head, None).unwrap().unwrap().parts.headers, &spelled);
        }
    }
}
