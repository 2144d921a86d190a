//! Breakers, and the operator's hand on them.

use super::guard::Operator;
use super::query::{either, not_found, object, whole, word};
use crate::serve::Shared;
use crate::serve::answer::Refusal;
use crate::serve::eyes::{Seen, audit, when};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::guard::Forced;
use seawall_core::record::Reason;
use seawall_core::time::{Mono, Now};
use seawall_engine::live::LiveEndpoint;
use seawall_engine::recorder::{BreakerRecord, Record};
use serde_json::{Value, json};
use std::sync::Arc;

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let seen = shared.eyes.seen();
    let items = live.upstreams.iter().flat_map(|upstream| &upstream.endpoints).map(|endpoint| item(endpoint, &seen, now)).collect();
    drop(seen);
    whole(items)
}

fn at(mono: Option<Mono>, now: Now) -> Value {
    mono.map_or(Value::Null, |at| when(now.wall + at.since(now.mono)))
}

fn forced(endpoint: &LiveEndpoint) -> Value {
    match endpoint.state.forced_breaker() {
        Forced::Auto => Value::Null,
        forced @ (Forced::Open | Forced::Closed) => json!(forced.as_str()),
    }
}

/// As an upstream's row shows it.
pub(super) fn state(endpoint: &LiveEndpoint, now: Now) -> Value {
    let (state, retry_at, open) = endpoint.state.breaker_state(now.mono);
    json!({ "state": state.as_str(), "forced": forced(endpoint), "retry_at": at(retry_at, now), "open_seconds": open.as_secs_f64() })
}

fn item(endpoint: &LiveEndpoint, seen: &Seen, now: Now) -> Value {
    let (state, retry_at, open) = endpoint.state.breaker_state(now.mono);
    json!({
        "upstream": endpoint.names.upstream,
        "endpoint": endpoint.names.endpoint,
        "state": state.as_str(),
        "forced": forced(endpoint),
        "retry_at": at(retry_at, now),
        "open_seconds_total": open.as_secs_f64(),
        "changes": seen.alarms.changes(&endpoint.names),
    })
}

pub(super) async fn put_all(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path(upstream): Path<String>,
    body: Body,
) -> Response {
    either(force(&shared, &who, &upstream, None, body).await)
}

pub(super) async fn put_one(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path((upstream, endpoint)): Path<(String, String)>,
    body: Body,
) -> Response {
    either(force(&shared, &who, &upstream, Some(&endpoint), body).await)
}

async fn force(shared: &Shared, who: &Operator, upstream: &str, endpoint: Option<&str>, body: Body) -> Result<Response, Box<Refusal>> {
    let members = object(body, &["state"]).await?;
    let forced = word(&members, "state", "open, closed or auto", Forced::from_word)?;
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
        // Those of endpoints whose breaker stays as it is come, are refused, and wait again.
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
