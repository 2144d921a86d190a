//! Reads a part of a response's body before the caller gets any of it.

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

/// Maximum time to read ahead a document of unknown length.
const PATIENCE: Nanos = Nanos::from_secs(1);

/// Reads the body of a small response. If it breaks off, the caller has received nothing yet, so it is retried like any failure. Returns
/// nothing for a body longer than `most` and for streams.
pub(crate) async fn small(incoming: &mut Arriving, content_type: &[u8], most: u64, clock: &Clock) -> Result<Bytes, Fault> {
    match incoming.size_hint().exact() {
        Some(length) if length <= most && !is_event_stream(content_type) => {
            read_up_to(incoming, usize::try_from(length).unwrap_or(usize::MAX)).await
        }
        Some(_) => Ok(Bytes::new()),
        // Some servers send a document over minutes, element by element, so the time is limited as well.
        None if is_document(content_type) => {
            let until = clock.now().mono + PATIENCE;
            read_until(incoming, usize::try_from(most).unwrap_or(usize::MAX), clock.sleep_until(until)).await
        }
        None => Ok(Bytes::new()),
    }
}

/// Reads a body until `over`, and at most `most` bytes.
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

/// Decompresses a body, or the part that has arrived, for the rules; the caller gets the original. Returns `None` if it is not compressed,
/// or by an unknown coding.
pub(crate) fn inflated(coding: &[u8], seen: &[u8]) -> Option<Bytes> {
    let is = |name: &[u8]| coding.eq_ignore_ascii_case(name);
    let most = u64::try_from(BODY_BYTES).unwrap_or(u64::MAX);
    let mut text = Vec::new();
    // Of a truncated or damaged body, the part before the damage is used.
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
