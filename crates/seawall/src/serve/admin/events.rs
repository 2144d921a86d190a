//! Events as they happen (SSE), the last ones, and what operators did.

use super::query::{Query, document, either, of_store, refused, whole};
use crate::serve::Shared;
use crate::serve::answer::Refusal;
use crate::serve::eyes::{Listener, when};
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use seawall_core::time::Nanos;
use seawall_store::notes::Audited;
use seawall_store::page::MOST;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

/// Less than anybody sees.
const TOGETHER: Duration = Duration::from_millis(20);

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

/// The next frame, and those that come with it: one packet for a burst of events, and not one for each and every listener.
async fn next(listener: &mut Listener) -> Option<Bytes> {
    let mut packet = String::new();
    match listener.frames.recv().await {
        Ok(frame) => packet.push_str(&frame),
        Err(RecvError::Lagged(missed)) => packet.push_str(&lagged(missed)),
        Err(RecvError::Closed) => return None,
    }
    tokio::time::sleep(TOGETHER).await;
    loop {
        match listener.frames.try_recv() {
            Ok(frame) => packet.push_str(&frame),
            Err(TryRecvError::Lagged(missed)) => packet.push_str(&lagged(missed)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => return Some(Bytes::from(packet)),
        }
    }
}

/// Whoever reads too slowly is told; what was missed can be asked for.
fn lagged(missed: u64) -> String {
    format!(": {missed} frames were missed\n\n")
}

pub(super) async fn recent(State(shared): State<Arc<Shared>>) -> Response {
    whole(shared.eyes.bus.recent())
}

pub(super) async fn audit(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    either(audited(&shared, query.as_deref()).await)
}

/// Newest first; without a limit as many as a page may have.
async fn audited(shared: &Shared, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = Query::parse(query, &["cursor", "limit"])?;
    let before = query.read("cursor", "a cursor that a page gave", |text| text.parse().ok())?;
    let limit = if query.text("limit").is_some() { query.limit()? } else { MOST };
    let page = shared.desk.store.audit(before, limit).await.map_err(|error| of_store(&error))?;
    let next = page.last().filter(|_| page.len() == limit).map(|last| last.number.to_string());
    let line =
        |Audited { deed, .. }: &Audited| json!({ "at": when(deed.at), "who": deed.who, "action": deed.action, "detail": deed.detail });
    Ok(document(200, &json!({ "items": page.iter().map(line).collect::<Vec<_>>(), "next_cursor": next })))
}
