//! The configuration in force, and a new one on trial or in its place.

use super::guard::Operator;
use super::query::{Query, document, either};
use crate::figures;
use crate::serve::answer::Refusal;
use crate::serve::eyes::audit;
use crate::serve::{Shared, operate};
use crate::setup::{self, Environment};
use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use seawall_core::config::{Config, Invalid, explain, lint};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Lines of a difference.
const MOST_CHANGES: usize = 200;

pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Response {
    let live = shared.live.load();
    let rows: Vec<Value> = live
        .config
        .endpoints()
        .map(|(upstream, endpoint)| figures::endpoint(&live.config, upstream, endpoint, figures::Load::default()))
        .collect();
    let warnings = lint::warnings(&live.config, &Environment::beside(&shared.file));
    let warnings: Vec<Value> = warnings
        .iter()
        .map(|warning| {
            let line = warning.origin.rsplit(':').next().and_then(|line| line.parse::<u64>().ok());
            let (_, title, help) = lint::CODES.iter().find(|(code, ..)| *code == warning.code).copied().unwrap_or_default();
            json!({
                "code": warning.code,
                "severity": "warning",
                "title": title,
                "message": warning.message,
                "help": help,
                "path": warning.subject,
                "line": line,
            })
        })
        .collect();
    // Secrets are references, so the file holds none; one that cannot be read any more has no text.
    let toml = setup::script(&shared.file).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    document(200, &json!({ "file": shared.file.display().to_string(), "toml": toml, "checklist": rows, "warnings": warnings }))
}

pub(super) async fn reload(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, RawQuery(query): RawQuery) -> Response {
    either(reloaded(&shared, &who, query.as_deref()).await)
}

async fn reloaded(shared: &Shared, who: &Operator, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = Query::parse(query, &["dry_run"])?;
    let dry = query.read("dry_run", "0 or 1", |text| match text {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    })?;
    let before = shared.live.load_full();
    let dry = dry.unwrap_or(false);
    let result = if dry {
        operate::prepare(shared).map(|ready| (Arc::new(ready.live), ready.needs_restart))
    } else {
        operate::reload(shared).map(|needs_restart| (shared.live.load_full(), needs_restart))
    };
    if !dry {
        let detail = if result.is_ok() { "taken" } else { "refused" };
        audit(shared, &who.0, "reload", detail.to_owned()).await;
    }
    match result {
        Ok((live, needs_restart)) => {
            let changes = changes(&before.config, &live.config);
            Ok(document(200, &json!({ "ok": true, "changes": changes, "needs_restart": needs_restart })))
        }
        Err(error) => Ok(refusal(&error)),
    }
}

/// A problem document with everything that is wrong with the file.
fn refusal(error: &anyhow::Error) -> Response {
    let problems = error.downcast_ref::<Invalid>().map_or_else(
        || vec![json!({ "path": null, "line": null, "column": null, "message": error.to_string(), "help": null })],
        figures::problems,
    );
    Refusal::plain(422, "config_rejected", &operate::summary(error)).respond_as(|bytes| {
        let mut document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        document["problems"] = json!(problems);
        Body::from(document.to_string())
    })
}

/// Every resolved value that is another one now, as `upstream/endpoint key: before → after`.
fn changes(before: &Config, after: &Config) -> Vec<String> {
    let values = |config: &Config| -> BTreeMap<String, String> {
        let endpoints = config.endpoints().flat_map(|(upstream, endpoint)| {
            let lines = explain::endpoint(upstream, endpoint);
            lines.into_iter().map(move |line| (format!("{}/{} {}", upstream.name, endpoint.name, line.key), line.value))
        });
        let limits = config
            .limits
            .iter()
            .map(|limit| (format!("limits.{}", limit.name), format!("{} burst {} {}", limit.rate, limit.burst, limit.mode)));
        let pools = config
            .pools
            .iter()
            .map(|pool| (format!("pools.{}", pool.name), format!("{} at once, {} in line", pool.concurrent, pool.queue)));
        endpoints.chain(limits).chain(pools).collect()
    };
    let (old, new) = (values(before), values(after));
    let changed = new.iter().filter_map(|(key, value)| match old.get(key) {
        None => Some(format!("{key}: {value} (new)")),
        Some(was) if was != value => Some(format!("{key}: {was} → {value}")),
        Some(_) => None,
    });
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| format!("{key}: gone"));
    changed.chain(gone).take(MOST_CHANGES).collect()
}
