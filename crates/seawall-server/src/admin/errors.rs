//! Errors that no rule names. An operator may name one: the name applies at once, and the response shows the rule for the file.

use super::guard::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::json_shapes::ClassWord;
use crate::observe::{UnnamedError, audit};
use crate::query::{List, document, either, not_found, object, of_store, whole};
use crate::reload;
use crate::response::Refusal;
use crate::saved_observations;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::classify::ErrorFingerprint;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

paths!(list, name);

/// What an error is to be called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NameWish {
    r#as: ClassWord,
}

/// An error that has a name now.
#[derive(Debug, Serialize, ToSchema)]
struct Named {
    fingerprint: String,
    r#as: ClassWord,
    /// The rule to move into the file.
    toml: String,
}

/// Errors that no rule names
#[utoipa::path(get, path = "/v1/errors", operation_id = "listErrors", tag = "errors", responses((status = 200, body = List<UnnamedError>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    whole(shared.eyes.seen().errors.list())
}

/// Name an error; the rule applies at once
#[utoipa::path(
    post, path = "/v1/errors/{fingerprint}", operation_id = "nameError", tag = "errors",
    params(("fingerprint" = String, Path)),
    request_body = NameWish,
    responses(
        (status = 200, body = Named),
        (status = 404, description = "There is no such unnamed error"),
        (status = 409, description = "Its upstream is no longer configured, or the configuration is no longer good"),
        (status = 422, description = "No rule can be made of this error"),
    ),
)]
async fn name(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path(fingerprint): Path<String>,
    body: Body,
) -> Response {
    either(named(&shared, &who, &fingerprint, body).await)
}

async fn named(shared: &Arc<ServerState>, who: &Operator, fingerprint: &str, body: Body) -> Result<Response, Box<Refusal>> {
    let NameWish { r#as: ClassWord(class) } = object(body).await?;
    let unknown = || not_found("there is no such unnamed error");
    let print = ErrorFingerprint::parse(fingerprint).ok_or_else(unknown)?;
    let error = shared.eyes.seen().errors.one(print).cloned().ok_or_else(unknown)?;
    let upstream = &error.names.upstream;
    if shared.live.load().named(upstream).is_none() {
        return Err(Box::new(Refusal::plain(409, "no_upstream", "its upstream is no longer configured")));
    }
    let toml = error.condition.toml(upstream, print, class);
    let Some(rule) = error.condition.rule(upstream, print, class) else {
        return Err(Box::new(Refusal::plain(422, "bad_request", "no rule can be made of this error; write one by hand")));
    };
    // Stored first: a name that applies must also apply after a restart.
    saved_observations::errors(shared).await.map_err(|error| of_store(&error))?;
    let kept = shared.desk.store.name_error(print.to_string(), Some(class.as_str().to_owned())).await;
    if !kept.map_err(|error| of_store(&error))? {
        return Err(unknown());
    }
    shared.eyes.remember(upstream, rule);
    let live = reload::renamed(shared).await;
    let live = live.map_err(|error| Box::new(Refusal::plain(409, "config_rejected", &reload::summary(&error))))?;
    shared.live.store(Arc::new(live));
    shared.eyes.seen().errors.name(print, class);
    audit(shared, &who.0, "name-error", format!("{upstream} {print}: {class}")).await;
    Ok(document(200, &Named { fingerprint: print.to_string(), r#as: ClassWord(class), toml }))
}
