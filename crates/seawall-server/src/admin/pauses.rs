//! Pauses that providers asked for; an operator may end them.

use super::guard::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::Time;
use crate::observe::audit;
use crate::query::{List, either, not_found, object, whole};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::record::Reason;
use seawall_core::time::{Mono, Now, Wall};
use seawall_engine::runtime::{Live, LiveEndpoint, LiveUpstream};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

paths!(list, lift_upstream, lift_endpoint);

/// A pause that a provider asked for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pause)]
struct PauseView {
    upstream: String,
    /// Null where the whole upstream pauses.
    endpoint: Option<String>,
    /// How many callers pause, where the pause binds callers' own credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    credentials: Option<usize>,
    since: Time,
    until: Time,
}

/// What is to become of a pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct PauseWish {
    #[expect(dead_code, reason = "there is one thing to wish for, and it has to be said")]
    state: Lifted,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Lifted {
    Lifted,
}

/// Every pause that lasts, as this instance knows it
#[utoipa::path(get, path = "/v1/pauses", operation_id = "listPauses", tag = "breakers", responses((status = 200, body = List<PauseView>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    whole(all(&shared.live.load(), shared.clock.now()))
}

fn all(live: &Live, now: Now) -> Vec<PauseView> {
    live.upstreams.iter().flat_map(|upstream| of(upstream, now)).collect()
}

/// Returns start and end of the pause that ends last, of the endpoint's own and the upstream's.
pub(crate) fn longest(upstream: &LiveUpstream, endpoint: &LiveEndpoint, now: Mono) -> Option<(Mono, Mono)> {
    [upstream.state.paused(now), endpoint.state.paused(now)].into_iter().flatten().max_by_key(|(_, until)| *until)
}

/// Converts a monotonic time to the time of day.
pub(crate) fn time(at: Mono, now: Now) -> Time {
    if at <= now.mono {
        Time(Wall(now.wall.0.saturating_sub(i64::try_from(now.mono.since(at).as_millis()).unwrap_or(0))))
    } else {
        Time(now.wall + at.since(now.mono))
    }
}

fn of(upstream: &LiveUpstream, now: Now) -> Vec<PauseView> {
    let whole = upstream.state.paused(now.mono).map(|span| (None, span));
    let own = upstream.endpoints.iter().filter_map(|one| Some((Some(one.spec.name.clone()), one.state.paused(now.mono)?)));
    let pause = |endpoint, credentials, (since, until)| PauseView {
        upstream: upstream.spec.name.clone(),
        endpoint,
        credentials,
        since: time(since, now),
        until: time(until, now),
    };
    let callers = upstream.state.credentials_paused(now.mono).map(|(count, since, until)| pause(None, Some(count), (since, until)));
    whole.into_iter().chain(own).map(|(endpoint, span)| pause(endpoint, None, span)).chain(callers).collect()
}

/// End every pause of an upstream
#[utoipa::path(
    put, path = "/v1/pauses/{upstream}", operation_id = "liftPauses", tag = "breakers",
    params(("upstream" = String, Path)),
    request_body = PauseWish,
    responses((status = 200, body = List<PauseView>), (status = 404, description = "There is no such upstream")),
)]
async fn lift_upstream(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path(upstream): Path<String>,
    body: Body,
) -> Response {
    either(lift(&shared, &who, &upstream, None, body).await)
}

/// End the pause of an endpoint
#[utoipa::path(
    put, path = "/v1/pauses/{upstream}/{endpoint}", operation_id = "liftPause", tag = "breakers",
    params(("upstream" = String, Path), ("endpoint" = String, Path)),
    request_body = PauseWish,
    responses((status = 200, body = List<PauseView>), (status = 404, description = "There is no such upstream or endpoint")),
)]
async fn lift_endpoint(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path((upstream, endpoint)): Path<(String, String)>,
    body: Body,
) -> Response {
    either(lift(&shared, &who, &upstream, Some(&endpoint), body).await)
}

/// Ends pauses and responds with the remaining ones: a pause of the whole upstream is not ended for one endpoint.
async fn lift(shared: &ServerState, who: &Operator, upstream: &str, endpoint: Option<&str>, body: Body) -> Result<Response, Box<Refusal>> {
    let PauseWish { .. } = object(body).await?;
    let live = shared.live.load_full();
    let named = live.named(upstream).ok_or_else(|| not_found("there is no such upstream"))?;
    let mut found = false;
    for one in named.endpoints.iter().filter(|one| endpoint.is_none_or(|name| one.spec.name == name)) {
        found = true;
        one.state.lift_pause(false, &shared.clock).await;
        if endpoint.is_none() {
            one.state.lift_pause(true, &shared.clock).await;
        }
    }
    if !found {
        return Err(not_found("there is no such endpoint"));
    }
    shared.desk.hasten(upstream, Reason::ProviderPause);
    let place = endpoint.map_or_else(|| upstream.to_owned(), |endpoint| format!("{upstream}/{endpoint}"));
    audit(shared, &who.0, "pause", format!("{place}: lifted")).await;
    Ok(whole(of(named, shared.clock.now())))
}
