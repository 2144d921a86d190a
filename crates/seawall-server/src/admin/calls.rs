//! Recent calls with their timelines, and roll-ups.

use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::Time;
use crate::observe::{CallFilter, CallKind, CallTimeline, CallView, RollupRequest, ShownRollup};
use crate::query::{List, Paged, QueryParameters, bad, document, either, not_found, of_store, whole};
use crate::response::Refusal;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use seawall_core::id::CallId;
use seawall_core::time::Wall;
use seawall_store::rollup;
use std::sync::Arc;

paths!(list, show, rollups);

/// Recent calls, newest first
#[utoipa::path(
    get, path = "/v1/calls", operation_id = "listCalls", tag = "calls",
    params(
        ("upstream" = Option<String>, Query),
        ("outcome" = Option<String>, Query),
        ("caller" = Option<String>, Query),
        ("kind" = Option<String>, Query, description = "`failed`, `refused` or `healed` (a success that took more than one attempt)"),
        Paged,
    ),
    responses((status = 200, body = List<CallView>)),
)]
async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()))
}

fn listed(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["upstream", "outcome", "caller", "kind", "cursor", "limit"])?;
    let before = query.read("cursor", "a cursor that a page gave", |text| text.parse().ok())?;
    let kind = query.read("kind", "one of failed, refused and healed", CallKind::from_word)?;
    let wanted =
        CallFilter { upstream: query.text("upstream"), outcome: query.text("outcome"), caller: query.text("caller"), kind, before };
    let (items, next) = shared.eyes.seen().calls.page(&wanted, query.limit()?);
    Ok(document(200, &List { items, next_cursor: next.map(|next| next.to_string()) }))
}

/// A recent call with its attempts
#[utoipa::path(
    get, path = "/v1/calls/{id}", operation_id = "showCall", tag = "calls",
    params(("id" = String, Path, description = "As `Seawall-Call` says it")),
    responses((status = 200, body = CallTimeline), (status = 404, description = "No such call is among the last ones")),
)]
async fn show(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    let call = CallId::parse(&id).and_then(|id| shared.eyes.seen().calls.one(id));
    either(call.map(|call| document(200, &call)).ok_or_else(|| not_found("no such call is among the last ones")))
}

/// Quarters of an hour of each endpoint
#[utoipa::path(
    get, path = "/v1/rollups", operation_id = "listRollups", tag = "calls",
    params(
        ("from" = Option<Time>, Query, description = "Without it, a day before `to`"),
        ("to" = Option<Time>, Query),
        ("upstream" = Option<String>, Query),
    ),
    responses((status = 200, body = List<ShownRollup>)),
)]
async fn rollups(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(rolled_up(&shared, query.as_deref()).await)
}

/// Default time span: the last day.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

async fn rolled_up(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["from", "to", "upstream"])?;
    let time = "a time like 2030-01-31T12:00:00Z";
    let (from, to) = (query.read("from", time, Wall::parse)?, query.read("to", time, Wall::parse)?);
    let to = to.unwrap_or(Wall(i64::MAX));
    let from = from.unwrap_or_else(|| Wall(shared.clock.now().wall.0.min(to.0).saturating_sub(DAY_MS)));
    let asked = RollupRequest { from, to, upstream: query.text("upstream").map(str::to_owned) };
    let stored = shared.desk.store.rollups(from, to, asked.upstream.clone()).await.map_err(|error| of_store(&error))?;
    if stored.len() >= rollup::MAX_ROLLUPS {
        return Err(bad("there are too many rows; ask for a shorter time or for one `upstream`"));
    }
    Ok(whole(shared.eyes.seen().rollups.with(&stored, shared.eyes.writer, &asked)))
}
