//! Events as they happen (SSE), recent events, and the audit log.

use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::Time;
use crate::observe::{Listener, StoredEvent};
use crate::query::{List, Paged, QueryParameters, document, either, of_store, refused, whole};
use crate::response::Refusal;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use seawall_core::time::Nanos;
use seawall_store::notes::NumberedEntry;
use seawall_store::page::MAX_ENTRIES;
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;

paths!(stream, recent, audit);

/// Something that an operator did.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Action)]
struct OperatorAction {
    at: Time,
    who: String,
    action: String,
    detail: String,
}

/// Events as they happen, and a tick each second
#[utoipa::path(
    get, path = "/v1/events", operation_id = "streamEvents", tag = "events",
    params(("last-event-id" = Option<String>, Header, description = "The last event that was heard; what came after it comes first")),
    responses((status = 200, body = String, content_type = "text/event-stream"), (status = 503, description = "Too many listen already")),
)]
async fn stream(State(shared): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    let heard = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(listener) = shared.eyes.bus.listen(heard) else {
        let wait = Some(Nanos::from_secs(10));
        return refused(&Refusal::plain(503, "overloaded", "too many listen already").retry_after(wait));
    };
    // Sends data at once, so that the client sees that the connection works.
    let first = Bytes::from([b"retry: 2000\n\n", &listener.missed[..]].concat());
    let packets = futures_util::stream::unfold((Some(first), listener), async |(mut first, mut listener)| {
        let packet = match first.take() {
            Some(packet) => packet,
            None => next(&mut listener).await?,
        };
        Some((Ok::<_, Infallible>(packet), (None, listener)))
    });
    let mut response = Response::new(Body::from_stream(packets));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns the next packet. A slow reader gets a comment; it can request the missed events.
async fn next(listener: &mut Listener) -> Option<Bytes> {
    match listener.packets.recv().await {
        Ok(packet) => Some(packet),
        Err(RecvError::Lagged(missed)) => Some(Bytes::from(format!(": {missed} packets were missed\n\n"))),
        Err(RecvError::Closed) => None,
    }
}

/// The last 200 events, newest first
#[utoipa::path(get, path = "/v1/events/recent", operation_id = "listEvents", tag = "events", responses((status = 200, body = List<StoredEvent>)))]
async fn recent(State(shared): State<Arc<ServerState>>) -> Response {
    whole(shared.eyes.bus.recent())
}

/// What operators did, newest first
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "listActions", tag = "events",
    params(Paged),
    responses((status = 200, body = List<OperatorAction>)),
)]
async fn audit(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(audited(&shared, query.as_deref()).await)
}

/// Lists audit entries, newest first; without a limit, a full page.
async fn audited(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["cursor", "limit"])?;
    let before = query.read("cursor", "a cursor that a page gave", |text| text.parse().ok())?;
    let limit = if query.text("limit").is_some() { query.limit()? } else { MAX_ENTRIES };
    let page = shared.desk.store.audit(before, limit).await.map_err(|error| of_store(&error))?;
    let next = page.last().filter(|_| page.len() == limit).map(|last| last.number.to_string());
    let line = |NumberedEntry { deed, .. }: NumberedEntry| OperatorAction {
        at: Time(deed.at),
        who: deed.who,
        action: deed.action,
        detail: deed.detail,
    };
    Ok(document(200, &List { items: page.into_iter().map(line).collect(), next_cursor: next }))
}
