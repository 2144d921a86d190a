//! The current state of all upstreams: `GET /v1/upstreams`.

use super::paths::paths;
use super::{breakers, keys, pauses};
use crate::ServerState;
use crate::figures;
use crate::json_shapes::{Members, Time};
use crate::observe::{CallRates, Observations, REFUSALS, SeriesPoint};
use crate::query::{List, whole};
use crate::reload;
use axum::extract::State;
use axum::response::Response;
use seawall_core::record::Class;
use seawall_core::time::Now;
use seawall_engine::runtime::{Live, LiveEndpoint, LiveUpstream};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

paths!(list);

/// An upstream as it is now; rates and quantiles are of the last minute.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Upstream)]
struct UpstreamView {
    name: String,
    url: String,
    in_flight: u32,
    #[serde(flatten)]
    #[schema(inline)]
    pace: CallRates,
    /// Calls that wait for a key, a provider's pause or a breaker.
    waiting: u32,
    /// What is left of the retry budget.
    budget_tokens: Option<f64>,
    /// Attempts by class.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    classes: Members<u64>,
    endpoints: Vec<EndpointNow>,
    keys: Vec<keys::KeyView>,
}

/// An endpoint as it is now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Endpoint)]
struct EndpointNow {
    name: String,
    r#match: String,
    breaker: breakers::BreakerNow,
    paused_since: Option<Time>,
    /// The end of a pause that the provider asked for.
    paused_until: Option<Time>,
    /// Calls a second.
    rate: f64,
    success_share: f64,
    /// Calls that failed.
    failed: u64,
    /// Calls that Seawall refused, by code.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    refused: Members<u64>,
    retries_per_success: f64,
    p95_ms: Option<f64>,
    policy: figures::PolicyFigures,
}

/// Every upstream as it is now; rates and quantiles are of the last minute
#[utoipa::path(get, path = "/v1/upstreams", operation_id = "listUpstreams", tag = "upstreams", responses((status = 200, body = List<UpstreamView>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    reload::calculate(&shared).await;
    let (live, now) = (shared.live.load(), shared.clock.now());
    let seen = shared.eyes.seen();
    let items = live.upstreams.iter().map(|upstream| shown(&shared, &live, upstream, (&seen, now))).collect();
    drop(seen);
    whole(items)
}

fn shown(shared: &ServerState, live: &Live, upstream: &LiveUpstream, (seen, now): (&Observations, Now)) -> UpstreamView {
    let mut all = SeriesPoint::default();
    let mut endpoints = Vec::new();
    for endpoint in &upstream.endpoints {
        let minute = seen.minute(&endpoint.names, now.wall);
        let policy = shared.calculator.policy(&live.config, &upstream.spec, &endpoint.spec);
        endpoints.push(row((upstream, endpoint), policy, &minute, (seen, now)));
        all.add(&minute);
    }
    let budget = upstream.endpoints.last().map(|last| upstream.state.budget_tokens(&last.spec.policy.retry, now.mono));
    UpstreamView {
        name: upstream.spec.name.clone(),
        url: upstream.spec.url.to_string(),
        in_flight: upstream.in_flight.load(Ordering::Relaxed),
        waiting: upstream.state.waiting(),
        pace: all.pace(now.mono),
        budget_tokens: budget,
        classes: Class::ALL.iter().zip(all.classes).map(|(class, count)| (class.as_str().to_owned(), count)).collect(),
        endpoints,
        keys: keys::of(upstream, seen, now),
    }
}

fn row(
    (upstream, endpoint): (&LiveUpstream, &LiveEndpoint),
    policy: figures::PolicyFigures,
    minute: &SeriesPoint,
    (seen, now): (&Observations, Now),
) -> EndpointNow {
    let refused = REFUSALS.into_iter().zip(minute.refusals).filter(|(_, count)| *count > 0);
    let pause = pauses::longest(upstream, endpoint, now.mono);
    EndpointNow {
        name: endpoint.spec.name.clone(),
        r#match: endpoint.spec.matches.to_string(),
        breaker: breakers::state(endpoint, seen, now),
        paused_since: pause.map(|(since, _)| pauses::time(since, now)),
        paused_until: pause.map(|(_, until)| pauses::time(until, now)),
        rate: minute.rate(now.mono),
        success_share: minute.success_share(),
        failed: minute.failed,
        refused: refused.map(|(code, count)| (code.as_str().to_owned(), count)).collect(),
        retries_per_success: minute.retries_per_success(),
        p95_ms: minute.quantile(950),
        policy,
    }
}
