//! Keys by id and last four characters, and the operator's hand on them.

use super::guard::Operator;
use super::query::{bad, document, either, not_found, object, whole, word};
use crate::serve::Shared;
use crate::serve::answer::Refusal;
use crate::serve::eyes::{audit, when};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::lease::Until;
use seawall_core::record::Reason;
use seawall_core::time::{Nanos, Now, Wall};
use seawall_engine::live::LiveUpstream;
use serde_json::{Value, json};
use std::sync::Arc;

/// How long a key rests that somebody sent to rest without saying for how long.
const REST: Nanos = Nanos::from_secs(3600);

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    whole(live.upstreams.iter().flat_map(|upstream| of(upstream, now)).collect())
}

pub(super) fn of(upstream: &LiveUpstream, now: Now) -> Vec<Value> {
    let keys = upstream.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..);
    let shown = keys.filter_map(|(key, index)| {
        let status = upstream.state.key_status(index, now)?;
        let state = match (status.dead, status.cooling) {
            (true, _) => "rejected",
            (false, Some(_)) => "cooling",
            (false, None) => "ready",
        };
        Some(json!({
            "upstream": upstream.spec.name,
            "id": key.id,
            "tail": upstream.credentials.as_ref().and_then(|credentials| credentials.tail(index)).as_deref(),
            "group": key.group,
            "state": state,
            "until": status.cooling.map_or(Value::Null, |left| when(now.wall + left)),
            "uses": status.uses,
            "failures": status.fails,
        }))
    });
    shown.collect()
}

pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path((upstream, id)): Path<(String, String)>,
    body: Body,
) -> Response {
    either(changed(&shared, &who, &upstream, &id, body).await)
}

async fn changed(shared: &Shared, who: &Operator, upstream: &str, id: &str, body: Body) -> Result<Response, Box<Refusal>> {
    let members = object(body, &["state", "until"]).await?;
    let cool = word(&members, "state", "cooling or ready", |text| match text {
        "cooling" => Some(true),
        "ready" => Some(false),
        _ => None,
    })?;
    let until = match members.get("until") {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_str().and_then(Wall::parse).ok_or_else(|| bad("`until` is a time like 2030-01-31T12:00:00Z"))?),
    };
    let (live, now) = (shared.live.load_full(), shared.clock.now());
    let named = live.named(upstream).ok_or_else(|| not_found("there is no such upstream"))?;
    let place = named.spec.auth.iter().flat_map(|auth| &auth.keys).position(|key| key.id == id);
    let Some(index) = place.and_then(|place| u16::try_from(place).ok()) else { return Err(not_found("there is no such key")) };
    let until = cool.then(|| until.unwrap_or(now.wall + REST));
    if until.is_some_and(|until| until <= now.wall) {
        return Err(bad("`until` is over already"));
    }
    named.hold_key(index, until.map(Until::Wall), &shared.clock).await;
    if !cool {
        shared.desk.hasten(upstream, Reason::KeysCooling);
    }
    let detail = format!("{upstream}/{id}: {}", if cool { "cooling" } else { "ready" });
    audit(shared, &who.0, "key", detail).await;
    let shown = of(named, now).into_iter().find(|key| key["id"] == id);
    shown.map(|key| document(200, &key)).ok_or_else(|| not_found("there is no such key"))
}
