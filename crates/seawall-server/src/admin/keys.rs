//! Keys by id and last four characters, and their manual state.

use super::guard::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::Time;
use crate::observe::{Observations, audit};
use crate::query::{List, bad, document, either, not_found, object, whole};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::lease::Until;
use seawall_core::record::Reason;
use seawall_core::time::{Nanos, Now};
use seawall_engine::runtime::LiveUpstream;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// Default time for which an operator rests a key.
const REST: Nanos = Nanos::from_secs(3600);

paths!(list, put);

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum KeyState {
    Ready,
    Cooling,
    Rejected,
}

/// A key of an upstream.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Key)]
pub(crate) struct KeyView {
    upstream: String,
    id: String,
    /// Its last four characters.
    tail: Option<String>,
    group: Option<String>,
    state: KeyState,
    /// Since when it is not ready, where this process saw it change.
    since: Option<Time>,
    /// When it is ready again.
    until: Option<Time>,
    uses: u64,
    failures: u32,
}

/// What an operator may make of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum KeyRest {
    Cooling,
    Ready,
}

/// What a key is to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyWish {
    state: KeyRest,
    /// When it is ready again.
    until: Option<Time>,
}

/// Every key, by its id and last four characters
#[utoipa::path(get, path = "/v1/keys", operation_id = "listKeys", tag = "keys", responses((status = 200, body = List<KeyView>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let seen = shared.eyes.seen();
    let items = live.upstreams.iter().flat_map(|upstream| of(upstream, &seen, now)).collect();
    drop(seen);
    whole(items)
}

pub(crate) fn of(upstream: &LiveUpstream, seen: &Observations, now: Now) -> Vec<KeyView> {
    let keys = upstream.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..);
    let shown = keys.filter_map(|(key, index)| {
        let status = upstream.state.key_status(index, now)?;
        let state = match (status.dead, status.cooling) {
            (true, _) => KeyState::Rejected,
            (false, Some(_)) => KeyState::Cooling,
            (false, None) => KeyState::Ready,
        };
        Some(KeyView {
            upstream: upstream.spec.name.clone(),
            id: key.id.clone(),
            tail: upstream.credentials.as_ref().and_then(|credentials| credentials.tail(index)).map(|tail| tail.to_string()),
            group: key.group.clone(),
            state,
            since: seen.alarms.resting_since(&upstream.spec.name, &key.id),
            until: status.cooling.map(|left| Time(now.wall + left)),
            uses: status.uses,
            failures: status.fails,
        })
    });
    shown.collect()
}

/// Let a key rest, an hour unless `until` says otherwise, or make it ready
#[utoipa::path(
    put, path = "/v1/keys/{upstream}/{id}", operation_id = "restKey", tag = "keys",
    params(("upstream" = String, Path), ("id" = String, Path)),
    request_body = KeyWish,
    responses((status = 200, body = KeyView), (status = 404, description = "There is no such upstream or key")),
)]
async fn put(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path((upstream, id)): Path<(String, String)>,
    body: Body,
) -> Response {
    either(changed(&shared, &who, &upstream, &id, body).await)
}

async fn changed(shared: &ServerState, who: &Operator, upstream: &str, id: &str, body: Body) -> Result<Response, Box<Refusal>> {
    let KeyWish { state, until } = object(body).await?;
    let cool = state == KeyRest::Cooling;
    let (live, now) = (shared.live.load_full(), shared.clock.now());
    let named = live.named(upstream).ok_or_else(|| not_found("there is no such upstream"))?;
    let place = named.spec.auth.iter().flat_map(|auth| &auth.keys).position(|key| key.id == id);
    let Some(index) = place.and_then(|place| u16::try_from(place).ok()) else { return Err(not_found("there is no such key")) };
    let until = cool.then(|| until.map_or(now.wall + REST, |Time(until)| until));
    if until.is_some_and(|until| until <= now.wall) {
        return Err(bad("`until` is over already"));
    }
    named.force_key(index, until.map(Until::Wall), &shared.clock).await;
    if !cool {
        shared.desk.hasten(upstream, Reason::KeysCooling);
    }
    let detail = format!("{upstream}/{id}: {}", if cool { "cooling" } else { "ready" });
    audit(shared, &who.0, "key", detail).await;
    let shown = of(named, &shared.eyes.seen(), now).into_iter().find(|key| key.id == id);
    shown.map(|key| document(200, &key)).ok_or_else(|| not_found("there is no such key"))
}
