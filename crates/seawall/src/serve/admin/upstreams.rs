//! Every upstream as it is now: `GET /v1/upstreams`.

use super::query::whole;
use super::{breakers, keys};
use crate::figures;
use crate::serve::Shared;
use crate::serve::eyes::{Point, Seen};
use axum::extract::State;
use axum::response::Response;
use seawall_core::record::Class;
use seawall_core::time::Now;
use seawall_engine::live::{Live, LiveEndpoint, LiveUpstream};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let seen = shared.eyes.seen();
    let items = live.upstreams.iter().map(|upstream| shown(&live, upstream, &seen, now)).collect();
    drop(seen);
    whole(items)
}

fn shown(live: &Live, upstream: &LiveUpstream, seen: &Seen, now: Now) -> Value {
    let mut all = Point::default();
    let mut endpoints = Vec::new();
    for endpoint in &upstream.endpoints {
        let minute = seen.minute(&endpoint.names, now.wall);
        endpoints.push(row(live, upstream, endpoint, &minute, now));
        all.add(&minute);
    }
    let budget = upstream.endpoints.last().map(|last| upstream.state.budget_tokens(&last.spec.policy.retry, now.mono));
    let classes: Map<String, Value> =
        Class::ALL.iter().zip(all.classes).map(|(class, count)| (class.as_str().to_owned(), json!(count))).collect();
    json!({
        "name": upstream.spec.name,
        "url": upstream.spec.url.to_string(),
        "in_flight": upstream.in_flight.load(Ordering::Relaxed),
        "success_share": all.success_share(),
        "retries_per_success": all.retries_per_success(),
        "rate": all.rate(now.mono),
        "p50_ms": all.quantile(500),
        "p95_ms": all.quantile(950),
        "p99_ms": all.quantile(990),
        "budget_tokens": budget,
        "classes": classes,
        "endpoints": endpoints,
        "keys": keys::of(upstream, now),
    })
}

fn row(live: &Live, upstream: &LiveUpstream, endpoint: &LiveEndpoint, minute: &Point, now: Now) -> Value {
    json!({
        "name": endpoint.spec.name,
        "match": endpoint.spec.matches.to_string(),
        "breaker": breakers::state(endpoint, now),
        "rate": minute.rate(now.mono),
        "success_share": minute.success_share(),
        "retries_per_success": minute.retries_per_success(),
        "p95_ms": minute.quantile(950),
        "policy": figures::endpoint(&live.config, &upstream.spec, &endpoint.spec, figures::Load::default()),
    })
}
