//! Limits and pools, and who is close to them: `GET /v1/limits`.

use super::query::document;
use crate::serve::Shared;
use crate::serve::eyes::Seen;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use seawall_core::config::checklist::keys;
use seawall_core::policy::LimitKey;
use seawall_core::time::Mono;
use seawall_engine::limits::{Layer, Who};
use seawall_engine::live::{Live, LiveEndpoint, Names};
use seawall_engine::pools::Pool;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Entries of `top`.
const TOP: usize = 10;

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let mut limits: Vec<(&Layer, Vec<&LiveEndpoint>)> = Vec::new();
    for endpoint in live.upstreams.iter().flat_map(|upstream| &upstream.endpoints) {
        for layer in endpoint.state.limits.layers() {
            match limits.iter_mut().find(|(known, _)| known.is_same(layer)) {
                Some((_, endpoints)) => endpoints.push(endpoint),
                None => limits.push((layer, vec![endpoint])),
            }
        }
    }
    let limits: Vec<Value> = limits.iter().map(|(layer, endpoints)| limit(&live, layer, endpoints, now.mono)).collect();
    let seen = shared.eyes.seen();
    let pools: Vec<Value> = live.pools.values().map(|held| pool(&live, held, &seen)).collect();
    drop(seen);
    document(200, &json!({ "limits": limits, "pools": pools }))
}

fn limit(live: &Live, layer: &Layer, endpoints: &[&LiveEndpoint], now: Mono) -> Value {
    let spec = layer.spec();
    let (rejected, shadow_rejected) = layer.refusals();
    let mut top: Vec<(String, f64)> = Vec::new();
    for endpoint in endpoints {
        for (key, share) in known_keys(live, layer, &endpoint.names, now) {
            if !top.iter().any(|(known, _)| *known == key) {
                top.push((key, share));
            }
        }
    }
    top.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let top: Vec<Value> = top.into_iter().take(TOP).map(|(key, used_share)| json!({ "key": key, "used_share": used_share })).collect();
    json!({
        "name": spec.name,
        "key": keys(&spec.key),
        "rate": spec.rate.to_string(),
        "burst": spec.burst,
        "algorithm": spec.algorithm.as_str(),
        "mode": spec.mode.as_str(),
        "keys": layer.keys(),
        "rejected": rejected,
        "shadow_rejected": shadow_rejected,
        "top": top,
    })
}

/// Cells are found by hash, so only keys that can be named are shown: those made of callers, upstreams and endpoints.
fn known_keys(live: &Live, layer: &Layer, names: &Names, now: Mono) -> Vec<(String, f64)> {
    let (parts, headers) = (&layer.spec().key, HeaderMap::new());
    if parts.iter().any(|part| matches!(part, LimitKey::Ip | LimitKey::Header(_) | LimitKey::Key)) {
        return Vec::new();
    }
    let by_caller = parts.iter().any(|part| matches!(part, LimitKey::Caller | LimitKey::User | LimitKey::Tenant));
    let nobody = Who { ip: IpAddr::V4(Ipv4Addr::LOCALHOST), caller: "anonymous", user: "", tenant: "", headers: &headers, credential: "" };
    // Who submits jobs through this port.
    let operator = Who { caller: "operator", ..nobody };
    let configured = live.config.callers.iter().filter(|_| by_caller);
    let callers = configured.map(|caller| Who { caller: &caller.name, user: &caller.user, tenant: &caller.tenant, ..nobody });
    callers.chain([nobody, operator]).filter_map(|who| Some((spelled(parts, &who, names), layer.used_share(&who, names, now)?))).collect()
}

fn spelled(parts: &[LimitKey], who: &Who<'_>, names: &Names) -> String {
    let words = parts.iter().map(|part| match part {
        LimitKey::Caller => who.caller,
        LimitKey::User => who.user,
        LimitKey::Tenant => who.tenant,
        LimitKey::Upstream => &names.upstream,
        LimitKey::Endpoint => &names.endpoint,
        LimitKey::Global | LimitKey::Ip | LimitKey::Key | LimitKey::Header(_) => "global",
    });
    words.collect::<Vec<_>>().join(" + ")
}

fn pool(live: &Live, held: &Arc<Pool>, seen: &Seen) -> Value {
    let load = held.load();
    let spec = live.config.pool(&held.name);
    let own = live
        .upstreams
        .iter()
        .flat_map(|upstream| &upstream.endpoints)
        .filter(|endpoint| endpoint.spec.policy.pool.as_ref() == Some(&held.name));
    let rejected: u64 = own.filter_map(|endpoint| seen.overloaded.get(&endpoint.names)).sum();
    json!({
        "name": held.name,
        "concurrent": spec.map(|spec| spec.concurrent),
        "limit": load.limit,
        "running": load.running,
        "queue": spec.map(|spec| spec.queue),
        "waiting": load.waiting,
        "saturation": load.saturation,
        "rejected": rejected,
    })
}
