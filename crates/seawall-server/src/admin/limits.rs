//! Limits and bulkheads with their most used keys: `GET /v1/limits`.

use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::{AlgorithmWord, ModeWord};
use crate::observe::Observations;
use crate::query::document;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use seawall_core::config::checklist;
use seawall_core::policy::LimitKey;
use seawall_core::time::Mono;
use seawall_engine::bulkhead::BulkheadPool;
use seawall_engine::credential_pauses::CredentialMark;
use seawall_engine::limits::{LimitLayer, LimitSubject};
use seawall_engine::record::EndpointNames;
use seawall_engine::runtime::{Live, LiveUpstream};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum entries of `top`.
const TOP: usize = 10;
/// Maximum keys of a limit that are read for `top`.
const MAX_LOOKED_AT: usize = 1000;

paths!(list);

/// Limits and pools as they are now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limits)]
struct LimitsView {
    limits: Vec<LimitView>,
    pools: Vec<PoolNow>,
}

/// A rate limit.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Limit)]
struct LimitView {
    name: String,
    /// The upstream that it is for; null for limits that span upstreams
    of: Option<String>,
    /// What its calls are told apart by.
    key: String,
    rate: String,
    burst: u64,
    algorithm: AlgorithmWord,
    mode: ModeWord,
    /// Keys that it knows.
    keys: usize,
    rejected: u64,
    shadow_rejected: u64,
    /// Those that are closest to it.
    top: Vec<Used>,
}

/// How much of a limit one key has used.
#[derive(Debug, Serialize, ToSchema)]
struct Used {
    key: String,
    used_share: f64,
}

/// A pool of places for calls.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pool)]
struct PoolNow {
    name: String,
    concurrent: Option<u32>,
    /// As it is now, where it adapts.
    limit: u32,
    running: u32,
    queue: Option<u32>,
    waiting: usize,
    saturation: f64,
    rejected: u64,
}

/// Limits and pools
#[utoipa::path(get, path = "/v1/limits", operation_id = "showLimits", tag = "limits", responses((status = 200, body = LimitsView)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let limits = live.layers().map(|(upstream, layer)| limit(&live, upstream, layer, now.mono)).collect();
    let seen = shared.eyes.seen();
    let pools = live.pools.values().map(|held| pool(&live, held, &seen)).collect();
    drop(seen);
    document(200, &LimitsView { limits, pools })
}

/// Builds the view of a limit of one upstream, or of all upstreams if `of` is empty.
fn limit(live: &Live, of: &str, layer: &LimitLayer, now: Mono) -> LimitView {
    let spec = layer.spec();
    let (rejected, shadow_rejected) = layer.refusals();
    let endpoints = live.upstreams.iter().filter(|upstream| of.is_empty() || upstream.spec.name == of).flat_map(|upstream| {
        let endpoints = upstream.endpoints.iter();
        endpoints.map(move |endpoint| (upstream, endpoint))
    });
    let keys = endpoints.flat_map(|(upstream, endpoint)| known_keys(live, layer, upstream, &endpoint.names, now));
    let used: BTreeMap<String, f64> = keys.take(MAX_LOOKED_AT).filter_map(|(key, share)| Some((key, share?))).collect();
    let mut top: Vec<(String, f64)> = used.into_iter().collect();
    top.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    LimitView {
        name: spec.name.clone(),
        of: (!of.is_empty()).then(|| of.to_owned()),
        key: checklist::keys(&spec.key),
        rate: spec.rate.to_string(),
        burst: spec.burst,
        algorithm: AlgorithmWord(spec.algorithm),
        mode: ModeWord(spec.mode),
        keys: layer.keys(),
        rejected,
        shadow_rejected,
        top: top.into_iter().take(TOP).map(|(key, used_share)| Used { key, used_share }).collect(),
    }
}

/// Returns the usage of each key that can be named. Cells are found by hash, so keys are enumerated from callers, credentials, upstreams
/// and endpoints.
fn known_keys<'a>(
    live: &'a Live,
    layer: &'a LimitLayer,
    upstream: &'a LiveUpstream,
    names: &'a EndpointNames,
    now: Mono,
) -> Box<dyn Iterator<Item = (String, Option<f64>)> + 'a> {
    let parts = &layer.spec().key;
    if parts.iter().any(|part| matches!(part, LimitKey::Ip | LimitKey::Header(_))) {
        return Box::new(std::iter::empty());
    }
    let by_caller = parts.iter().any(|part| matches!(part, LimitKey::Caller | LimitKey::User | LimitKey::Tenant));
    let credentials: Vec<&str> = if parts.contains(&LimitKey::Key) {
        upstream.spec.auth.iter().flat_map(|auth| &auth.keys).map(|key| key.id.as_str()).collect()
    } else {
        vec![""]
    };
    let configured = live.config.callers.iter().filter(move |_| by_caller);
    let callers = configured.map(|caller| (caller.name.as_str(), caller.user.as_str(), caller.tenant.as_str()));
    // The operator who submits jobs through this port is a caller, too.
    let all = callers.chain([("anonymous", "", ""), ("operator", "", "")]);
    Box::new(all.flat_map(move |(caller, user, tenant)| {
        credentials.clone().into_iter().map(move |credential| {
            let headers = HeaderMap::new();
            let who = LimitSubject {
                ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
                caller,
                user,
                tenant,
                headers: &headers,
                credential,
                mark: CredentialMark::default(),
            };
            (spelled(parts, &who, names), layer.used_share(&who, names, now))
        })
    }))
}

fn spelled(parts: &[LimitKey], who: &LimitSubject<'_>, names: &EndpointNames) -> String {
    let words = parts.iter().map(|part| match part {
        LimitKey::Caller => who.caller.to_owned(),
        LimitKey::User => who.user.to_owned(),
        LimitKey::Tenant => who.tenant.to_owned(),
        LimitKey::Upstream => names.upstream.clone(),
        LimitKey::Endpoint => format!("{}/{}", names.upstream, names.endpoint),
        LimitKey::Key => format!("{}/{}", names.upstream, who.credential),
        LimitKey::Global | LimitKey::Ip | LimitKey::Header(_) => "global".to_owned(),
    });
    words.collect::<Vec<_>>().join(" + ")
}

fn pool(live: &Live, held: &Arc<BulkheadPool>, seen: &Observations) -> PoolNow {
    let load = held.load();
    let spec = live.config.pool(&held.name);
    let own = live
        .upstreams
        .iter()
        .flat_map(|upstream| &upstream.endpoints)
        .filter(|endpoint| endpoint.spec.policy.pool.as_ref() == Some(&held.name));
    let rejected: u64 = own.filter_map(|endpoint| seen.overloaded.get(&endpoint.names)).sum();
    PoolNow {
        name: held.name.clone(),
        concurrent: spec.map(|spec| spec.concurrent),
        limit: load.limit,
        running: load.running,
        queue: spec.map(|spec| spec.queue),
        waiting: load.waiting,
        saturation: load.saturation,
        rejected,
    }
}
