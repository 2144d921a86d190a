//! Errors that no rule names, and the operator's name for one: it applies at once, and the text to keep it is shown.

use super::guard::Operator;
use super::query::{document, either, not_found, object, of_store, whole, word};
use crate::serve::answer::Refusal;
use crate::serve::eyes::{audit, keep};
use crate::serve::{Shared, operate};
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use seawall_core::classify::Fingerprint;
use seawall_core::record::Class;
use serde_json::json;
use std::sync::Arc;

pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    whole(shared.eyes.seen().errors.list())
}

pub(super) async fn name(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path(fingerprint): Path<String>,
    body: Body,
) -> Response {
    either(named(&shared, &who, &fingerprint, body).await)
}

async fn named(shared: &Shared, who: &Operator, fingerprint: &str, body: Body) -> Result<Response, Box<Refusal>> {
    let members = object(body, &["as"]).await?;
    let class = word(&members, "as", &format!("one of {}", Class::WORDS.join(", ")), Class::from_word)?;
    let unknown = || not_found("there is no such unnamed error");
    let print = Fingerprint::parse(fingerprint).ok_or_else(unknown)?;
    let error = shared.eyes.seen().errors.one(print).cloned().ok_or_else(unknown)?;
    let upstream = &error.names.upstream;
    if shared.live.load().named(upstream).is_none() {
        return Err(Box::new(Refusal::plain(409, "no_upstream", "its upstream is no longer configured")));
    }
    let toml = error.condition.toml(upstream, print, class);
    let Some(rule) = error.condition.rule(upstream, print, class) else {
        return Err(Box::new(Refusal::plain(422, "bad_request", "no rule can be made of this error; write one by hand")));
    };
    // Kept first: a name that holds must hold after a restart too.
    keep::errors(shared).await.map_err(|error| of_store(&error))?;
    let kept = shared.desk.store.name_error(print.to_string(), Some(class.as_str().to_owned())).await;
    if !kept.map_err(|error| of_store(&error))? {
        return Err(unknown());
    }
    shared.eyes.remember(upstream, rule);
    let live = operate::renamed(shared).map_err(|error| Box::new(Refusal::plain(409, "config_rejected", &operate::summary(&error))))?;
    shared.live.store(Arc::new(live));
    shared.eyes.seen().errors.name(print, class);
    audit(shared, &who.0, "name-error", format!("{upstream} {print}: {class}")).await;
    Ok(document(200, &json!({ "fingerprint": print.to_string(), "as": class.as_str(), "toml": toml })))
}
