//! How much of a response's body is read before the caller gets any of it.

use crate::clock::Clock;
use bytes::{Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use http_body::Body;
use seawall_core::classify::json::BODY_BYTES;
use seawall_core::time::Nanos;
use seawall_http::content_type::{is_document, is_event_stream};
use seawall_http::fault::Fault;
use seawall_http::response_body::{Arriving, read_up_to};
use std::io::Read as _;

/// How long a document of unknown length is read before what has come of it is passed on.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// Reads the body of a small response. One that breaks off here has told the caller nothing yet, so it is retried like any
/// failure. Returns nothing for what is longer than `most`, and for streams.
pub(crate) async fn small(incoming: &mut Arriving, content_type: &[u8], most: u64, clock: &Clock) -> Result<Bytes, Fault> {
    match incoming.size_hint().exact() {
        Some(length) if length <= most && !is_event_stream(content_type) => {
            read_up_to(incoming, usize::try_from(length).unwrap_or(usize::MAX)).await
        }
        Some(_) => Ok(Bytes::new()),
        // A few servers send a document over minutes, element by element, so this one is waited for by the clock too.
        None if is_document(content_type) => {
            let until = clock.now().mono + PATIENCE;
            read_until(incoming, usize::try_from(most).unwrap_or(usize::MAX), clock.sleep_until(until)).await
        }
        None => Ok(Bytes::new()),
    }
}

/// As much of a body as has come until `over`, and no more than `most`.
async fn read_until(incoming: &mut Arriving, most: usize, over: impl Future<Output = ()>) -> Result<Bytes, Fault> {
    let mut over = std::pin::pin!(over);
    let mut read = BytesMut::new();
    while read.len() < most && !incoming.is_end_stream() {
        let frame = tokio::select! {
            biased;
            frame = std::future::poll_fn(|cx| std::pin::Pin::new(&mut *incoming).poll_frame(cx)) => frame,
            () = &mut over => break,
        };
        match frame {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    read.extend_from_slice(&data);
                }
            }
            Some(Err(_)) => return Err(Fault::INCOMPLETE),
            None => break,
        }
    }
    Ok(read.freeze())
}

/// What the rules read of a compressed body, or of as much of it as has come; its caller gets it as it is. Nothing where it is
/// not compressed, or in a way that we do not know.
pub(crate) fn inflated(coding: &[u8], seen: &[u8]) -> Option<Bytes> {
    let is = |name: &[u8]| coding.eq_ignore_ascii_case(name);
    let most = u64::try_from(BODY_BYTES).unwrap_or(u64::MAX);
    let mut text = Vec::new();
    // What breaks off, or is damaged further on, is read up to there.
    let read = if is(b"gzip") || is(b"x-gzip") {
        GzDecoder::new(seen).take(most).read_to_end(&mut text)
    } else if is(b"deflate") {
        ZlibDecoder::new(seen).take(most).read_to_end(&mut text)
    } else {
        return None;
    };
    drop(read);
    Some(Bytes::from(text))
}
