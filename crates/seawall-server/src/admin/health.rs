//! Liveness and readiness, for load balancers and supervisors, which have no token.

use super::paths::paths;
use crate::ServerState;
use crate::query::document;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use utoipa::ToSchema;

paths!(alive, ready);

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Health)]
struct HealthView {
    status: HealthWord,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum HealthWord {
    Ok,
    Draining,
    StoreUnavailable,
}

/// The process is up
///
/// And it has a valid configuration, or it would not have started to listen.
#[utoipa::path(get, path = "/healthz", operation_id = "isAlive", tag = "process", security(()), responses((status = 200, body = HealthView)))]
async fn alive() -> Response {
    document(200, &HealthView { status: HealthWord::Ok })
}

/// Requests may be sent; 503 while draining, and while the store does not answer
#[utoipa::path(
    get, path = "/readyz", operation_id = "isReady", tag = "process", security(()),
    responses((status = 200, body = HealthView), (status = 503, description = "Not now", body = HealthView)),
)]
async fn ready(State(shared): State<Arc<ServerState>>) -> Response {
    let (status, why) = match (shared.draining.load(Ordering::Relaxed), shared.desk.is_healthy()) {
        (true, _) => (503, HealthWord::Draining),
        (false, false) => (503, HealthWord::StoreUnavailable),
        (false, true) => (200, HealthWord::Ok),
    };
    document(status, &HealthView { status: why })
}
