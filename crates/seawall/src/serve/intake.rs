//! A caller's request before it becomes a call: what is refused at the door, and how its body is taken in.

use super::answer::Refusal;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{Method, Request, Version, request};
use http_body::Body as _;
use hyper::body::Incoming;
use seawall_core::record::Code;
use seawall_engine::body::{Limited, Outgoing};
use seawall_engine::transport::Replay;
use std::pin::Pin;
use std::time::Duration;

/// Longer request targets get 414.
const MAX_TARGET: usize = 16 * 1024;
/// What is still read from a caller who was refused, so that it gets to read the answer.
const MAX_DRAINED: usize = 256 * 1024;
const MAX_DRAIN_TIME: Duration = Duration::from_millis(500);

/// What no request may do, whatever its upstream. RFC 9110 and 9112 leave a gateway these to check.
pub(super) fn inspect(head: &request::Parts) -> Result<(), Box<Refusal>> {
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Err(Box::new(Refusal::plain(405, "method_not_allowed", "CONNECT and TRACE are not for gateways")));
    }
    if head.uri.path_and_query().is_some_and(|target| target.as_str().len() > MAX_TARGET) {
        return Err(Box::new(Refusal::code(414, Code::TooLarge, "the request target is too long")));
    }
    if head.version < Version::HTTP_2 {
        let mut hosts = head.headers.get_all(HOST).iter();
        let named = hosts.next();
        if hosts.next().is_some() || (named.is_none() && head.version == Version::HTTP_11) {
            return Err(Box::new(Refusal::plain(400, "bad_request", "a request has exactly one Host header")));
        }
        if named.is_some_and(|host| !is_host(host.as_bytes())) {
            return Err(Box::new(Refusal::plain(400, "bad_request", "the Host header is malformed")));
        }
    }
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some() {
            return Err(Box::new(Refusal::plain(501, "not_implemented", "no transfer coding but chunked is understood")));
        }
        if head.headers.contains_key(CONTENT_LENGTH) {
            return Err(Box::new(Refusal::plain(400, "bad_request", "a message has Content-Length or Transfer-Encoding, not both")));
        }
    }
    Ok(())
}

/// Host names, addresses and a port; nothing that could be taken for a path or credentials.
fn is_host(host: &[u8]) -> bool {
    !host.is_empty() && host.iter().all(|b| b.is_ascii_alphanumeric() || b"-._:[]%~".contains(b))
}

/// Reads the body as far as it may be kept. A larger one becomes a stream that can be sent once.
pub(super) async fn body(mut incoming: Incoming, keep: u64, most: u64) -> Result<Replay, Box<Refusal>> {
    if incoming.is_end_stream() {
        return Ok(Replay::Empty);
    }
    let too_large = || Box::new(Refusal::code(413, Code::TooLarge, "the request body is larger than `max_body`").closing());
    if incoming.size_hint().exact().is_some_and(|size| size > most) {
        Box::pin(discard(&mut incoming)).await;
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    loop {
        let read = first.as_ref().map_or(0, Bytes::len) + more.len();
        let read = u64::try_from(read).unwrap_or(u64::MAX);
        if read > most {
            Box::pin(discard(&mut incoming)).await;
            return Err(too_large());
        }
        if read > keep {
            let ahead = joined(first, more);
            return Ok(Replay::Once(Some(Outgoing::Stream(Some(ahead), Limited::new(incoming, most - read)))));
        }
        match next(&mut incoming).await {
            None => return Ok(Replay::Kept(joined(first, more))),
            Some(Err(_)) => {
                return Err(Box::new(Refusal::plain(400, "bad_request", "the request body is malformed or broke off").closing()));
            }
            // Most bodies come in one piece, which is then kept as it is.
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

/// The next piece of data; trailers belong to this hop and end here.
async fn next(incoming: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *incoming).poll_frame(cx)).await?;
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => return Some(Ok(data)),
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads on for a little while, so that closing does not reset the connection under the answer.
pub(super) async fn discard(incoming: &mut Incoming) {
    let drained = async {
        let mut left = MAX_DRAINED;
        while let Some(Ok(data)) = next(incoming).await {
            left = left.saturating_sub(data.len());
            if left == 0 {
                break;
            }
        }
    };
    // Whoever sends for longer has had its chance to read.
    drop(tokio::time::timeout(MAX_DRAIN_TIME, drained).await);
}

/// Splits off the head and answers early where the request is refused, reading a little of its body first.
pub(super) async fn accept(request: Request<Incoming>) -> Result<(request::Parts, Incoming), Box<Refusal>> {
    let (head, mut incoming) = request.into_parts();
    match inspect(&head) {
        Ok(()) => Ok((head, incoming)),
        Err(refusal) => {
            Box::pin(discard(&mut incoming)).await;
            Err(Box::new(refusal.closing()))
        }
    }
}
