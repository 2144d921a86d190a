//! The admin port: everything an operator can see and do, as JSON. Who may is the guard's business.

mod breakers;
mod calls;
mod config;
mod errors;
mod events;
mod guard;
mod health;
mod keys;
mod limits;
mod metrics;
mod openapi;
pub(super) mod query;
mod status;
mod upstreams;

use super::Shared;
use super::answer::Refusal;
use axum::{Router, middleware};
use guard::Failures;
pub(super) use guard::Operator;
use query::refused;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let failures = Arc::new(Failures::default());
    Router::from(described())
        .fallback(async || refused(&Refusal::plain(404, "not_found", "there is nothing at this path of the admin port")))
        .layer(middleware::from_fn_with_state((Arc::clone(&shared), failures), guard::guard))
        // The page must load before it can ask for a token.
        .merge(super::dashboard::router())
        .with_state(shared)
}

/// Every path of the API, and what it says of itself.
fn described() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new()
        .merge(health::router())
        .merge(metrics::router())
        .merge(openapi::router())
        .merge(status::router())
        .merge(upstreams::router())
        .merge(breakers::router())
        .merge(keys::router())
        .merge(limits::router())
        .merge(calls::router())
        .merge(errors::router())
        .merge(events::router())
        .merge(config::router())
        .merge(super::jobs::router())
}
