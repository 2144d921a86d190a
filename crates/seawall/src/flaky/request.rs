//! Finds the beginning and end of an HTTP/1.1 request. Knows bytes, not sockets; refuses ambiguous framing.

use super::fate::RequestFacts;
use bytes::{Buf as _, BytesMut};
use std::net::IpAddr;

/// The longest head; gateways must refuse earlier.
const MAX_HEAD: usize = 256 << 10;
const MAX_HEADERS: usize = 256;
/// The bytes of a body that are kept for `echo`; the rest is read and dropped.
const MAX_KEPT: usize = 1 << 20;
/// The longest size line of a chunk, extensions included, and the longest trailer section.
const MAX_LINE: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFraming {
    Length(u64),
    Chunked,
}

/// The part of a request that is needed before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The length of the head.
    pub length: usize,
    pub framing: RequestFraming,
    pub expects_continue: bool,
    pub keep_alive: bool,
    pub is_head: bool,
}

/// The error status for a request that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub u16);

/// Parses a head; `None` until it is complete.
pub(crate) fn head(input: &[u8]) -> Result<Option<Head>, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if input.len() < MAX_HEAD => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Err(Refused(431)),
        Err(_) => return Err(Refused(400)),
    };
    let mut head = Head {
        length,
        framing: RequestFraming::Length(0),
        expects_continue: false,
        keep_alive: request.version == Some(1),
        is_head: request.method == Some("HEAD"),
    };
    let (mut length, mut chunked) = (None, false);
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            let found: u64 = digits.and_then(|digits| digits.parse().ok()).ok_or(Refused(400))?;
            if length.is_some_and(|length| length != found) {
                return Err(Refused(400));
            }
            length = Some(found);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refused(501));
            }
            chunked = true;
        } else if header.name.eq_ignore_ascii_case("connection") {
            let says = |word: &[u8]| value.split(|b| *b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(word));
            head.keep_alive = !says(b"close") && (head.keep_alive || says(b"keep-alive"));
        } else if header.name.eq_ignore_ascii_case("expect") {
            head.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
    }
    head.framing = match (length, chunked) {
        (Some(_), true) => return Err(Refused(400)),
        (None, true) => RequestFraming::Chunked,
        (length, false) => RequestFraming::Length(length.unwrap_or(0)),
    };
    Ok(Some(head))
}

/// Passes the facts of a complete request to `then`.
pub(crate) fn with_facts<T>(head: &[u8], body: &[u8], ip: IpAddr, then: impl FnOnce(&RequestFacts<'_>) -> T) -> Option<T> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).ok()?;
    let target = request.path?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Some(then(&RequestFacts { method: request.method?, path, query, headers: request.headers, body, ip }))
}

/// The progress in reading a body.
#[derive(Debug)]
pub(crate) enum BodyReading {
    /// Bytes still to come.
    Left(u64),
    /// A chunk's size comes next.
    Size,
    /// Bytes of a chunk and its line end still to come.
    Chunk(u64),
    Trailers,
    Done,
}

impl BodyReading {
    pub(crate) const fn begin(framing: RequestFraming) -> Self {
        match framing {
            RequestFraming::Length(0) => Self::Done,
            RequestFraming::Length(length) => Self::Left(length),
            RequestFraming::Chunked => Self::Size,
        }
    }

    /// Takes what has arrived out of `input` and keeps what `echo` may need; `true` once the body is complete.
    pub(crate) fn take(&mut self, input: &mut BytesMut, kept: &mut Vec<u8>) -> Result<bool, Refused> {
        loop {
            match self {
                Self::Done => return Ok(true),
                Self::Left(0) => *self = Self::Done,
                Self::Chunk(0) => match input.get(..2) {
                    None => return Ok(false),
                    Some(b"\r\n") => {
                        input.advance(2);
                        *self = Self::Size;
                    }
                    Some(_) => return Err(Refused(400)),
                },
                Self::Left(_) | Self::Chunk(_) if input.is_empty() => return Ok(false),
                Self::Left(left) | Self::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    let room = MAX_KEPT.saturating_sub(kept.len()).min(taken);
                    kept.extend_from_slice(&input[..room]);
                    input.advance(taken);
                    *left -= taken as u64;
                }
                Self::Size => match httparse::parse_chunk_size(input) {
                    Ok(httparse::Status::Complete((length, size))) => {
                        input.advance(length);
                        *self = if size == 0 { Self::Trailers } else { Self::Chunk(size) };
                    }
                    Ok(httparse::Status::Partial) if input.len() < MAX_LINE => return Ok(false),
                    Ok(httparse::Status::Partial) | Err(_) => return Err(Refused(400)),
                },
                Self::Trailers => match trailers(input)? {
                    Some(length) => {
                        input.advance(length);
                        *self = Self::Done;
                    }
                    None => return Ok(false),
                },
            }
        }
    }
}

fn trailers(input: &[u8]) -> Result<Option<usize>, Refused> {
    if input.starts_with(b"\r\n") {
        return Ok(Some(2));
    }
    match input.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(at) => Ok(Some(at + 4)),
        None if input.len() < MAX_LINE => Ok(None),
        None => Err(Refused(400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_how_their_body_is_framed() {
        let framing = |text: &str| head(text.as_bytes()).map(|head| head.map(|head| head.framing));
        assert_eq!(framing("GET / HTTP/1.1\r\n"), Ok(None));
        assert_eq!(framing("GET / HTTP/1.1\r\n\r\n"), Ok(Some(RequestFraming::Length(0))));
        assert_eq!(framing("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n"), Ok(Some(RequestFraming::Length(5))));
        assert_eq!(framing("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), Ok(Some(RequestFraming::Chunked)));
        for bad in
            ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: +5", "Content-Length: 1\r\nContent-Length: 2", "a b"]
        {
            assert!(framing(&format!("POST / HTTP/1.1\r\n{bad}\r\n\r\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_chunked_body_is_the_same_however_it_is_cut() {
        let wire = b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nx-t: 1\r\n\r\nGET";
        for cut in 1..wire.len() {
            let (mut reading, mut kept, mut input) = (BodyReading::begin(RequestFraming::Chunked), Vec::new(), BytesMut::new());
            input.extend_from_slice(&wire[..cut]);
            let early = reading.take(&mut input, &mut kept).unwrap();
            input.extend_from_slice(&wire[cut..]);
            assert!(early || reading.take(&mut input, &mut kept).unwrap(), "{cut}");
            assert_eq!((&kept[..], &input[..]), (&b"hello world"[..], &b"GET"[..]), "{cut}");
        }
        let mut input = BytesMut::from(&b"5\r\nhelloX"[..]);
        assert_eq!(BodyReading::begin(RequestFraming::Chunked).take(&mut input, &mut Vec::new()), Ok(false));
        input.extend_from_slice(b"X");
        assert!(BodyReading::Chunk(0).take(&mut input, &mut Vec::new()).is_err());
    }
}
