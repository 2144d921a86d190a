//! Events as they happen (SSE), the last ones, and what operators did.

use super::query::{refused, whole};
use crate::serve::Shared;
use crate::serve::answer::Refusal;
use crate::serve::eyes::Listener;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use seawall_core::time::Nanos;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;

pub(super) async fn stream(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let heard = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(mut listener) = shared.eyes.bus.listen(heard) else {
        let wait = Some(Nanos::from_secs(10));
        return refused(&Refusal::plain(503, "overloaded", "too many listen already").retry_after(wait));
    };
    // Something at once, so that whoever connects knows that it worked.
    let mut first: VecDeque<Bytes> = VecDeque::from([Bytes::from_static(b"retry: 2000\n\n")]);
    first.extend(std::mem::take(&mut listener.missed).iter().map(|frame| Bytes::copy_from_slice(frame.as_bytes())));
    let frames = futures_util::stream::unfold((first, listener), async |(mut first, mut listener)| {
        let frame = match first.pop_front() {
            Some(frame) => frame,
            None => next(&mut listener).await?,
        };
        Some((Ok::<_, Infallible>(frame), (first, listener)))
    });
    let mut response = Response::new(Body::from_stream(frames));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn next(listener: &mut Listener) -> Option<Bytes> {
    match listener.frames.recv().await {
        Ok(frame) => Some(Bytes::copy_from_slice(frame.as_bytes())),
        // Whoever reads too slowly is told; what was missed can be asked for.
        Err(RecvError::Lagged(missed)) => Some(Bytes::from(format!(": {missed} frames were missed\n\n"))),
        Err(RecvError::Closed) => None,
    }
}

pub(super) async fn recent(State(shared): State<Arc<Shared>>) -> Response {
    whole(shared.eyes.bus.recent())
}

pub(super) async fn audit(State(shared): State<Arc<Shared>>) -> Response {
    whole(shared.eyes.audit.lines())
}
