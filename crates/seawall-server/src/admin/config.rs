//! The configuration in force, and reloads of it, real or as a dry run.

use super::guard::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::figures::{self, ConfigProblem};
use crate::observe::audit;
use crate::query::{QueryParameters, document, either};
use crate::reload;
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use seawall_core::config::model::Auth;
use seawall_core::config::{Config, Invalid, explain};
use seawall_core::lint::{self, Warning};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum lines of a difference.
const MAX_CHANGES: usize = 200;

paths!(show, reload);

/// The configuration in force.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Config)]
struct ConfigNow {
    file: String,
    /// The file as it is now, without what may be a secret; null where it cannot be read.
    toml: Option<String>,
    checklist: Vec<figures::PolicyFigures>,
    warnings: Vec<ConfigWarning>,
}

/// Something in the configuration that is probably not meant.
#[derive(Debug, Serialize, ToSchema)]
struct ConfigWarning {
    code: &'static str,
    severity: &'static str,
    title: &'static str,
    message: String,
    help: &'static str,
    /// What it is about.
    path: String,
    line: Option<u64>,
}

/// What a reload came to.
#[derive(Debug, Serialize, ToSchema)]
struct Reloaded {
    ok: bool,
    /// Values that are others now.
    changes: Vec<String>,
    /// Keys of the file that only a restart changes; until then they are what they were
    needs_restart: Vec<&'static str>,
}

/// The configuration in force
#[utoipa::path(get, path = "/v1/config", operation_id = "showConfig", tag = "config", responses((status = 200, body = ConfigNow), (status = 503, description = "A file of the configuration does not answer")))]
async fn show(State(shared): State<Arc<ServerState>>) -> Response {
    reload::calculate(&shared).await;
    let live = shared.live.load_full();
    let endpoints = live.config.endpoints();
    let checklist = endpoints.map(|(upstream, endpoint)| shared.calculator.policy(&live.config, upstream, endpoint)).collect();
    let (warnings, toml) = match reload::described(&shared).await {
        Ok(described) => described,
        Err(error) => return Refusal::plain(503, "config_unreadable", &error.to_string()).respond_as(Body::from),
    };
    let warnings = warnings.into_iter().map(warned).collect();
    document(200, &ConfigNow { file: shared.file.display().to_string(), toml, checklist, warnings })
}

fn warned(warning: Warning) -> ConfigWarning {
    let line = warning.origin.rsplit(':').next().and_then(|line| line.parse().ok());
    let (_, title, help) = lint::CODES.iter().find(|(code, ..)| *code == warning.code).copied().unwrap_or_default();
    let Warning { code, subject: path, message, .. } = warning;
    ConfigWarning { code, severity: "warning", title, message, help, path, line }
}

/// Read the file again; with `dry_run=1` only try
#[utoipa::path(
    post, path = "/v1/config/reload", operation_id = "reloadConfig", tag = "config",
    params(("dry_run" = Option<String>, Query, pattern = "^(0|1|false|true)$", description = "`1` and `true` only try")),
    responses((status = 200, body = Reloaded), (status = 422, description = "The file cannot be used; `problems` says why")),
)]
async fn reload(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, RawQuery(query): RawQuery) -> Response {
    either(reloaded(&shared, &who, query.as_deref()).await)
}

async fn reloaded(shared: &Arc<ServerState>, who: &Operator, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["dry_run"])?;
    let dry = query.read("dry_run", "0 or 1", |text| match text {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    })?;
    let before = shared.live.load_full();
    let dry = dry.unwrap_or(false);
    let result = if dry {
        reload::prepare(shared).await.map(|ready| (Arc::new(ready.live), ready.needs_restart))
    } else {
        reload::reload(shared).await.map(|needs_restart| (shared.live.load_full(), needs_restart))
    };
    if !dry {
        let detail = if result.is_ok() { "taken" } else { "refused" };
        audit(shared, &who.0, "reload", detail.to_owned()).await;
    }
    match result {
        Ok((live, needs_restart)) => {
            let changes = changes(&before.config, &live.config);
            Ok(document(200, &Reloaded { ok: true, changes, needs_restart }))
        }
        Err(error) => Ok(refusal(&error)),
    }
}

/// Builds a problem document with all problems of the file.
fn refusal(error: &anyhow::Error) -> Response {
    let whole = || vec![ConfigProblem { message: error.to_string(), ..ConfigProblem::default() }];
    let problems = error.downcast_ref::<Invalid>().map_or_else(whole, figures::problems);
    Refusal::plain(422, "config_rejected", &reload::summary(error)).with(problems).respond_as(Body::from)
}

/// A configuration value in a form that can be compared and, if readable, shown.
#[derive(PartialEq, Eq)]
enum ComparedValue {
    Plain(String),
    /// A compound value, of which only the fact of a change is reported.
    Whole(String),
}

impl ComparedValue {
    fn of_list(items: &[impl ToString]) -> Self {
        let items: Vec<String> = items.iter().map(ToString::to_string).collect();
        Self::Plain(if items.is_empty() { "none".to_owned() } else { items.join(", ") })
    }

    fn of(value: Option<&impl ToString>) -> Self {
        Self::Plain(value.map_or_else(|| "none".to_owned(), ToString::to_string))
    }
}

/// Returns the values besides policies that a reload changes.
fn beside_policies(config: &Config) -> Vec<(String, ComparedValue)> {
    let server = &config.server;
    let server = [
        ("server.admin_token", ComparedValue::of(server.admin_token.as_ref())),
        ("server.webhook_secret", ComparedValue::of(server.webhook_secret.as_ref())),
        ("server.max_body", ComparedValue::Plain(server.max_body.to_string())),
        ("server.replay_body", ComparedValue::Plain(server.replay_body.to_string())),
        ("server.drain", ComparedValue::Plain(server.drain.to_string())),
        ("server.require_caller", ComparedValue::Plain(server.require_caller.to_string())),
        ("server.default_upstream", ComparedValue::of(server.default_upstream.as_ref())),
        ("server.trust_forwarded", ComparedValue::of_list(&server.trust_forwarded)),
        ("server.forwarded_header", ComparedValue::Plain(server.forwarded_header.to_string())),
        ("server.allow_private", ComparedValue::of_list(&server.allow_private)),
        ("server.tls", ComparedValue::Whole(format!("{:?}", server.tls))),
    ];
    let mut named: Vec<(String, ComparedValue)> = server.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut whole = |key: String, value: &dyn std::fmt::Debug| named.push((key, ComparedValue::Whole(format!("{value:?}"))));
    config.callers.iter().for_each(|caller| whole(format!("callers.{}", caller.name), caller));
    config.schedules.iter().for_each(|schedule| whole(format!("schedules.{}", schedule.name), schedule));
    config.notify.iter().enumerate().for_each(|(place, notify)| whole(format!("notify[{place}]"), notify));
    for upstream in &config.upstreams {
        let key = |name: &str| format!("upstreams.{}.{name}", upstream.name);
        named.push((key("listen"), ComparedValue::of(upstream.listen.as_ref())));
        named.push((key("hosts"), ComparedValue::of_list(&upstream.hosts)));
        let flags = [("seawall", upstream.seawall), ("via", upstream.via), ("forwarded", upstream.forwarded)];
        named.extend(flags.into_iter().map(|(name, is_on)| (key(name), ComparedValue::Plain(is_on.to_string()))));
        let Some(auth) = &upstream.auth else { continue };
        let rest = Auth { keys: Vec::new(), ..auth.clone() };
        named.push((key("auth"), ComparedValue::Whole(format!("{rest:?}"))));
        named.extend(auth.keys.iter().map(|one| {
            let group = one.group.as_ref().map(|group| format!(" in {group}")).unwrap_or_default();
            (key(&format!("auth.keys.{}", one.id)), ComparedValue::Plain(format!("{}{group}", one.secret)))
        }));
    }
    named
}

/// Lists all changes, as `upstream/endpoint key: before → after`.
fn changes(before: &Config, after: &Config) -> Vec<String> {
    let values = |config: &Config| -> BTreeMap<String, ComparedValue> {
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
        let policies = endpoints.chain(limits).chain(pools).map(|(key, value)| (key, ComparedValue::Plain(value)));
        policies.chain(beside_policies(config)).collect()
    };
    let (old, new) = (values(before), values(after));
    let changed = new.iter().filter_map(|(key, value)| match old.get(key) {
        Some(was) if was == value => None,
        was => Some(match (was, value) {
            (None, ComparedValue::Plain(value)) => format!("{key}: {value} (new)"),
            (None, ComparedValue::Whole(_)) => format!("{key}: new"),
            (Some(ComparedValue::Plain(was)), ComparedValue::Plain(value)) => format!("{key}: {was} → {value}"),
            (Some(_), _) => format!("{key}: changed"),
        }),
    });
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| format!("{key}: gone"));
    changed.chain(gone).take(MAX_CHANGES).collect()
}
