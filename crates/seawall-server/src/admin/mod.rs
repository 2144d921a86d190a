//! The admin port: all views and actions for operators, as JSON. The guard controls access.

mod breakers;
mod calls;
mod config;
mod errors;
mod events;
mod guard;
mod health;
mod jobs;
mod keys;
mod letters;
mod limits;
pub(crate) mod listener;
mod metrics;
mod openapi;
pub(crate) mod paths;
mod pauses;
mod replays;
mod schedules;
mod status;
mod transfer;
mod upstreams;

use super::ServerState;
use super::response::Refusal;
use crate::query::refused;
use axum::{Router, middleware};
use guard::Failures;
pub(crate) use guard::Operator;
use paths::Paths;
use std::sync::Arc;

pub(crate) fn router(shared: Arc<ServerState>) -> Router {
    let failures = Arc::new(Failures::default());
    paths()
        .router
        .fallback(async || refused(&Refusal::plain(404, "not_found", "there is nothing at this path of the admin port")))
        .layer(middleware::from_fn_with_state((Arc::clone(&shared), failures), guard::guard))
        // Without a token: the page must load before it can ask for one.
        .merge(super::dashboard::router())
        .with_state(shared)
}

/// Returns all paths of the API.
fn paths() -> Paths {
    health::paths()
        .merge(metrics::paths())
        .merge(openapi::paths())
        .merge(status::paths())
        .merge(upstreams::paths())
        .merge(breakers::paths())
        .merge(pauses::paths())
        .merge(keys::paths())
        .merge(limits::paths())
        .merge(calls::paths())
        .merge(errors::paths())
        .merge(events::paths())
        .merge(config::paths())
        .merge(jobs::paths())
        .merge(letters::paths())
        .merge(replays::paths())
        .merge(schedules::paths())
        .merge(transfer::paths())
}
