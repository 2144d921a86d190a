//! The admin port: everything an operator can see and do, as JSON. Who may is the guard's business.

mod breakers;
mod calls;
mod config;
mod errors;
mod events;
mod guard;
mod keys;
mod limits;
mod metrics;
mod openapi;
pub(super) mod query;
mod status;
mod upstreams;

use super::Shared;
use super::answer::Refusal;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use guard::Failures;
pub(super) use guard::Operator;
use query::{document, refused};
use seawall_core::record::Code;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    let failures = Arc::new(Failures::default());
    Router::new()
        .route("/healthz", get(async || ok()))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(async || document(200, &openapi::document())))
        .route("/v1/status", get(status::status))
        .route("/v1/status/series", get(status::series))
        .route("/v1/upstreams", get(upstreams::list))
        .route("/v1/breakers", get(breakers::list))
        .route("/v1/breakers/{upstream}", put(breakers::put_all))
        .route("/v1/breakers/{upstream}/{endpoint}", put(breakers::put_one))
        .route("/v1/keys", get(keys::list))
        .route("/v1/keys/{upstream}/{id}", put(keys::put))
        .route("/v1/limits", get(limits::list))
        .route("/v1/calls", get(calls::list))
        .route("/v1/calls/{id}", get(calls::show))
        .route("/v1/rollups", get(calls::rollups))
        .route("/v1/errors", get(errors::list))
        .route("/v1/errors/{fingerprint}", post(errors::name))
        .route("/v1/events", get(events::stream))
        .route("/v1/events/recent", get(events::recent))
        .route("/v1/audit", get(events::audit))
        .route("/v1/config", get(config::show))
        .route("/v1/config/reload", post(config::reload))
        .merge(super::jobs::router())
        .fallback(async || refused(&Refusal::plain(404, "not_found", "there is nothing at this path of the admin port")))
        .layer(middleware::from_fn_with_state((Arc::clone(&shared), failures), guard::guard))
        // The page must load before it can ask for a token.
        .merge(super::dashboard::router())
        .with_state(shared)
}

/// The process is up and has a valid configuration, or it would not have started to listen.
fn ok() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], "{\"status\":\"ok\"}\n")
}

/// Not on the way out, and what is asked to be kept can be kept, so that a balancer may send requests.
async fn ready(axum::extract::State(shared): axum::extract::State<Arc<Shared>>) -> Response {
    let why = match (shared.draining.load(Ordering::Relaxed), shared.desk.is_healthy()) {
        (true, _) => "draining",
        (false, false) => Code::StoreUnavailable.as_str(),
        (false, true) => return ok().into_response(),
    };
    document(503, &json!({ "status": why }))
}
