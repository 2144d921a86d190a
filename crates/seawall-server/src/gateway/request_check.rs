//! Checks on a caller's request before it becomes a call, and the bounded read of its body.

use crate::headers::HeaderMarks;
use crate::response::Refusal;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Version, request};
use http_body::Body as _;
use seawall_core::record::Code;
use seawall_core::request_method;
use seawall_core::time::Nanos;
use seawall_engine::transport::ReplayBody;
use seawall_engine::upstream_target::ASTERISK;
use seawall_http::h1::RawRequestHeaders;
use seawall_http::request_body::{Inbound, Unfinished};
use std::pin::Pin;
use std::time::Duration;

/// Longer request targets get 414.
pub(crate) const MAX_TARGET: usize = 16 * 1024;
/// Maximum bytes of a refused request's body that are read so that its connection can be used again.
const MAX_DRAINED: usize = 256 * 1024;
const MAX_DRAIN_TIME: Duration = Duration::from_millis(500);

const BAD_HOST: &str = "the Host header is malformed";

/// Checks that apply to every upstream; RFC 9110 and 9112 require them of a gateway. The error may be in the framing, so nothing after the
/// head of a refused request is read.
pub(crate) fn inspect(head: &request::Parts, unread: Option<&RawRequestHeaders>, marks: HeaderMarks) -> Result<(), Box<Refusal>> {
    if let Err(bad) = request_method::check(head.method.as_str()) {
        return Err(Box::new(Refusal::code(405, Code::MethodNotAllowed, &bad.to_string())));
    }
    if head.uri.path_and_query().is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        return Err(Box::new(target_too_long()));
    }
    if head.uri.path() == ASTERISK && head.method != Method::OPTIONS {
        return Err(Box::new(bad_request("only OPTIONS asks about `*`")));
    }
    if marks.has(HeaderMarks::UPGRADE)
        && head.headers.get_all(UPGRADE).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
    {
        return Err(Box::new(Refusal::code(501, Code::NotImplemented, "WebSockets do not pass through this gateway")));
    }
    if let Some(unread) = unread {
        // Raw headers contain exactly one `Host` field and no other field that is checked below.
        return if is_host(unread.host()) { Ok(()) } else { Err(Box::new(bad_request(BAD_HOST))) };
    }
    if head.version < Version::HTTP_2 {
        let mut hosts = head.headers.get_all(HOST).iter();
        let named = hosts.next();
        if hosts.next().is_some() || (named.is_none() && head.version == Version::HTTP_11) {
            return Err(Box::new(bad_request("a request has exactly one Host header")));
        }
        if named.is_some_and(|host| !is_host(host.as_bytes())) {
            return Err(Box::new(bad_request(BAD_HOST)));
        }
    }
    if marks.has(HeaderMarks::CODING) {
        let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
        if !codings.next().is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) || codings.next().is_some() {
            return Err(Box::new(Refusal::code(501, Code::NotImplemented, "no transfer coding but chunked is understood")));
        }
        if head.headers.contains_key(CONTENT_LENGTH) {
            return Err(Box::new(bad_request("a message has Content-Length or Transfer-Encoding, not both")));
        }
    }
    Ok(())
}

pub(crate) fn bad_request(detail: &str) -> Refusal {
    Refusal::code(400, Code::BadRequest, detail)
}

pub(crate) fn too_large(status: u16, detail: &str) -> Refusal {
    Refusal::code(status, Code::TooLarge, detail)
}

pub(crate) fn target_too_long() -> Refusal {
    too_large(414, "the request target is too long")
}

/// Returns the refusal of a body that takes longer than the whole call may take.
pub(crate) fn body_too_slow() -> Refusal {
    Refusal::code(408, Code::RequestTimeout, "the request body did not arrive in time").closing()
}

pub(crate) fn body_too_large() -> Refusal {
    too_large(413, "the request body is larger than `max_body`").closing()
}

pub(crate) fn body_broke() -> Refusal {
    bad_request("the request body is malformed or broke off").closing()
}

/// Accepts host names, addresses and a port, but no character that could begin a path or credentials.
fn is_host(host: &[u8]) -> bool {
    !host.is_empty() && host.iter().all(|b| b.is_ascii_alphanumeric() || b"-._:[]%~".contains(b))
}

/// Reads the body within the time limit of the whole call: a caller that sends a byte per second must not hold a place forever.
pub(crate) async fn body(incoming: Inbound, keep: u64, most: u64, within: Nanos) -> Result<ReplayBody, Box<Refusal>> {
    match tokio::time::timeout(Duration::from_nanos(within.0), read(incoming, keep, most)).await {
        Ok(result) => result,
        Err(_) => Err(Box::new(body_too_slow())),
    }
}

/// Reads the body up to the limit for retries. A larger one becomes a stream that can be sent once.
async fn read(mut incoming: Inbound, keep: u64, most: u64) -> Result<ReplayBody, Box<Refusal>> {
    if incoming.size_hint().exact().is_some_and(|size| size > most) {
        return Err(Box::new(body_too_large()));
    }
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    loop {
        let read = first.as_ref().map_or(0, Bytes::len) + more.len();
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        if read > most {
            return Err(Box::new(body_too_large()));
        }
        if read > keep {
            let ahead = joined(first, more);
            return Ok(ReplayBody::once(ahead, incoming, most - read));
        }
        match next(&mut incoming).await {
            None => return Ok(ReplayBody::Kept(joined(first, more))),
            Some(Err(_)) => return Err(Box::new(body_broke())),
            // Most bodies come in one chunk, which is kept without a copy.
            Some(Ok(data)) if first.is_none() => first = Some(data),
            Some(Ok(data)) => more.extend_from_slice(&data),
        }
    }
}

fn joined(first: Option<Bytes>, more: BytesMut) -> Bytes {
    match first {
        Some(first) if more.is_empty() => first,
        Some(first) => {
            let mut all = BytesMut::with_capacity(first.len() + more.len());
            all.extend_from_slice(&first);
            all.extend_from_slice(&more);
            all.freeze()
        }
        None => more.freeze(),
    }
}

/// Returns the next chunk of data; trailers belong to this hop and are dropped.
async fn next(incoming: &mut Inbound) -> Option<Result<Bytes, Unfinished>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await?;
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Refuses a request whose body is not needed. A short body is read first to keep the connection usable; a caller that sent `Expect:
/// 100-continue` has not sent it.
pub(crate) async fn refuse_body(head: &request::Parts, mut incoming: Inbound, refusal: Refusal) -> Refusal {
    let unasked = !head.headers.contains_key(EXPECT);
    if incoming.is_end_stream() || (unasked && discard(&mut incoming).await) { refusal } else { refusal.closing() }
}

/// Returns whether the body ended within the limits.
async fn discard(incoming: &mut Inbound) -> bool {
    let drained = async {
        let mut left = MAX_DRAINED;
        while let Some(data) = next(incoming).await {
            left = left.saturating_sub(data.map_or(usize::MAX, |data| data.len()));
            if left == 0 {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(MAX_DRAIN_TIME, drained).await.unwrap_or(false)
}
