//! Breakers over the admin API, and their manual override.

use super::guard::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::{BreakerState, ForcedWord, Time};
use crate::observe::{BreakerChange, Observations, audit};
use crate::query::{List, either, not_found, object, whole};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::guard::Forced;
use seawall_core::record::Reason;
use seawall_core::time::{Mono, Now};
use seawall_engine::record::{BreakerRecord, Record};
use seawall_engine::runtime::LiveEndpoint;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

paths!(list, put_all, put_one);

/// An operator's hand on a breaker.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Held)]
enum ForcedState {
    Open,
    Closed,
}

/// A breaker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Breaker)]
struct BreakerView {
    upstream: String,
    endpoint: String,
    state: BreakerState,
    /// What an operator holds it to.
    forced: Option<ForcedState>,
    /// Since when it is not closed, where this process saw it open.
    since: Option<Time>,
    /// When the next probe is let through.
    retry_at: Option<Time>,
    open_seconds_total: f64,
    /// The last ones, oldest first.
    changes: Vec<BreakerChange>,
}

/// A breaker as its upstream shows it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BreakerNow {
    state: BreakerState,
    forced: Option<ForcedState>,
    /// Since when it is not closed, where this process saw it open.
    since: Option<Time>,
    retry_at: Option<Time>,
    open_seconds: f64,
    /// Whose it is: `endpoint`, or `upstream` where all of its endpoints have this one.
    per: &'static str,
}

/// What a breaker is to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BreakerWish {
    state: ForcedWord,
}

/// Every breaker
#[utoipa::path(get, path = "/v1/breakers", operation_id = "listBreakers", tag = "breakers", responses((status = 200, body = List<BreakerView>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let seen = shared.eyes.seen();
    let items = live.upstreams.iter().flat_map(|upstream| &upstream.endpoints).map(|endpoint| item(endpoint, &seen, now)).collect();
    drop(seen);
    whole(items)
}

fn at(mono: Option<Mono>, now: Now) -> Option<Time> {
    mono.map(|at| Time(now.wall + at.since(now.mono)))
}

fn held(endpoint: &LiveEndpoint) -> Option<ForcedState> {
    match endpoint.state.forced_breaker() {
        Forced::Auto => None,
        Forced::Open => Some(ForcedState::Open),
        Forced::Closed => Some(ForcedState::Closed),
    }
}

pub(crate) fn state(endpoint: &LiveEndpoint, seen: &Observations, now: Now) -> BreakerNow {
    let (state, retry_at, open) = endpoint.state.breaker_state(now.mono);
    BreakerNow {
        state: BreakerState(state),
        forced: held(endpoint),
        since: seen.alarms.not_closed_since(&endpoint.names),
        retry_at: at(retry_at, now),
        open_seconds: open.as_secs_f64(),
        per: endpoint.spec.policy.breaker.per.as_str(),
    }
}

fn item(endpoint: &LiveEndpoint, seen: &Observations, now: Now) -> BreakerView {
    let BreakerNow { state, forced, since, retry_at, open_seconds, .. } = state(endpoint, seen, now);
    BreakerView {
        upstream: endpoint.names.upstream.clone(),
        endpoint: endpoint.names.endpoint.clone(),
        state,
        forced,
        since,
        retry_at,
        open_seconds_total: open_seconds,
        changes: seen.alarms.changes(&endpoint.names),
    }
}

/// Force or release all breakers of an upstream
#[utoipa::path(
    put, path = "/v1/breakers/{upstream}", operation_id = "forceBreakers", tag = "breakers",
    params(("upstream" = String, Path)),
    request_body = BreakerWish,
    responses((status = 200, body = List<BreakerView>), (status = 404, description = "There is no such upstream")),
)]
async fn put_all(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path(upstream): Path<String>,
    body: Body,
) -> Response {
    either(force(&shared, &who, &upstream, None, body).await)
}

/// Force or release one breaker
#[utoipa::path(
    put, path = "/v1/breakers/{upstream}/{endpoint}", operation_id = "forceBreaker", tag = "breakers",
    params(("upstream" = String, Path), ("endpoint" = String, Path)),
    request_body = BreakerWish,
    responses((status = 200, body = List<BreakerView>), (status = 404, description = "There is no such upstream or endpoint")),
)]
async fn put_one(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path((upstream, endpoint)): Path<(String, String)>,
    body: Body,
) -> Response {
    either(force(&shared, &who, &upstream, Some(&endpoint), body).await)
}

async fn force(shared: &ServerState, who: &Operator, upstream: &str, endpoint: Option<&str>, body: Body) -> Result<Response, Box<Refusal>> {
    let BreakerWish { state: ForcedWord(forced) } = object(body).await?;
    let (live, now) = (shared.live.load_full(), shared.clock.now());
    let named = live.named(upstream).ok_or_else(|| not_found("there is no such upstream"))?;
    let wanted = |one: &&Arc<LiveEndpoint>| endpoint.is_none_or(|name| one.spec.name == name);
    let meant: Vec<&Arc<LiveEndpoint>> = named.endpoints.iter().filter(wanted).collect();
    if meant.is_empty() {
        return Err(not_found("there is no such endpoint"));
    }
    for endpoint in &meant {
        if let Some(change) = endpoint.state.force_breaker(forced, &shared.clock).await {
            shared.recorder.push(Record::Breaker(BreakerRecord { at: now.wall, names: Arc::clone(&endpoint.names), change }));
        }
    }
    match forced {
        // This wakes all jobs of the upstream. Jobs of endpoints whose breaker is still open are refused and wait again.
        Forced::Closed | Forced::Auto => shared.desk.hasten(upstream, Reason::CircuitOpen),
        Forced::Open => {}
    }
    let place = endpoint.map_or_else(|| upstream.to_owned(), |endpoint| format!("{upstream}/{endpoint}"));
    audit(shared, &who.0, "breaker", format!("{place}: {forced}")).await;
    let seen = shared.eyes.seen();
    let items = meant.into_iter().map(|endpoint| item(endpoint, &seen, now)).collect();
    drop(seen);
    Ok(whole(items))
}
