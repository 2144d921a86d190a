//! The lines of a head, and the headers parsed from them.

use crate::fault::Fault;
use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST,
    HeaderName, SERVER, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Version};

/// Longer header sections of a response are refused.
pub(super) const MAX_BYTES: usize = 64 * 1024;
pub(super) const MAX_HEADERS: usize = 256;
/// The usual length of a header line, and the least and most headers to allocate for.
const USUAL_LINE: usize = 48;
const FEWEST_EXPECTED: usize = 6;
const MAX_EXPECTED: usize = 24;

/// A line that ends with a line feed alone. RFC 9112 §2.2 lets a recipient accept it as the end of a line, or not: one parser may read two
/// headers where another reads one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BareLineFeed;

/// Complete lines, without their ends.
pub(super) struct HeaderLines<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> HeaderLines<'a> {
    /// The lines of a part that was split into lines before.
    pub(super) fn of_fields(fields: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        Self { rest: fields }.map(|line| line.expect("what was read as lines are lines"))
    }
}

impl<'a> Iterator for HeaderLines<'a> {
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

/// The headers so far, and the framing and connection options that they set.
pub(super) struct HeaderFields {
    pub(super) headers: HeaderMap,
    closes: bool,
    keeps: bool,
    /// `Content-Length`; several are accepted if they agree.
    pub(super) length: Option<u64>,
    coded: bool,
}

impl HeaderFields {
    /// Allocates for as many headers as `rest` may hold.
    pub(super) fn new(version: Version, rest: &[u8]) -> Self {
        let headers = HeaderMap::with_capacity((rest.len() / USUAL_LINE).clamp(FEWEST_EXPECTED, MAX_EXPECTED));
        Self { headers, closes: false, keeps: version == Version::HTTP_11, length: None, coded: false }
    }

    /// Whether the connection may be used again.
    pub(super) const fn keeps_alive(&self) -> bool {
        self.keeps && !self.closes
    }

    /// Whether the last transfer coding is `chunked`; `None` without a coding.
    pub(super) fn coding(&self) -> Option<bool> {
        if !self.coded {
            return None;
        }
        let last = self.headers.get_all(TRANSFER_ENCODING).iter().next_back()?;
        let last = last.as_bytes().rsplit(|b| *b == b',').next().unwrap_or_default();
        Some(trimmed(last).eq_ignore_ascii_case(b"chunked"))
    }

    /// Adds one line; `None` if it is not a header.
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
            // Several that agree are relayed as one (RFC 9110 §8.6).
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
                // Both options are handled here; the headers that others name are removed elsewhere.
                return Some(());
            }
        } else if name == TRANSFER_ENCODING {
            self.coded = true;
        }
        append(&mut self.headers, bytes, name, value)
    }
}

/// A line's name and value; `None` if it is not a header.
fn named(line: &[u8]) -> Option<(HeaderName, &[u8])> {
    // Names are short: a faster search would cost more to start than it saves.
    let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':')?);
    // Validates the name, so that no space and no folded line gets through.
    let name = well_known_name(name).or_else(|| HeaderName::from_bytes(name).ok())?;
    Some((name, trimmed(&value[1..])))
}

fn append(headers: &mut HeaderMap, bytes: &Bytes, name: HeaderName, value: &[u8]) -> Option<()> {
    headers.append(name, HeaderValue::from_maybe_shared(bytes.slice_ref(value)).ok()?);
    Some(())
}

/// Adds one line without interpreting it; `None` if it is not a header.
pub(super) fn put(headers: &mut HeaderMap, bytes: &Bytes, line: &[u8]) -> Option<()> {
    let (name, value) = named(line)?;
    append(headers, bytes, name, value)
}

/// Removes spaces and tabs around a value. Any other byte is part of the value, and then not allowed.
pub(super) fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Common names in their common spellings, found without normalising each letter.
fn well_known_name(name: &[u8]) -> Option<HeaderName> {
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

/// Parses digits and nothing else: many parsers accept `+5`, which is not a length.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, b| {
        let digit = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
