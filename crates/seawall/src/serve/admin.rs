//! The admin port: health, readiness and metrics.

use super::Shared;
use super::answer::Refusal;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use seawall_core::config::place;
use seawall_core::guard::State as Breaker;
use seawall_core::time::Now;
use seawall_engine::live::Live;
use seawall_engine::metrics::{escape, family, labels};
use seawall_engine::secret::Secret;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(async || ok()))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(super::jobs::router())
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), guard))
        .with_state(shared)
}

/// Who may look. With a token, only who has it; without one the port is on loopback, and a web page that found a name
/// for 127.0.0.1 must not read it from the operator's browser. Health is for everybody.
async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/healthz" | "/readyz");
    let live = shared.live.load();
    let (status, code, detail) = match &live.admin_token {
        _ if open => return next.run(request).await,
        Some(token) if has_token(&request, token) => return next.run(request).await,
        Some(_) => (401, "token_required", "send the admin token as `Authorization: Bearer …`"),
        None if names_this_machine(&request) => return next.run(request).await,
        None => (403, "host_refused", "without a token the admin port answers only to loopback names"),
    };
    drop(live);
    Refusal::plain(status, code, detail).respond_as(axum::body::Body::from)
}

fn has_token(request: &Request, token: &Secret) -> bool {
    let value = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    value.and_then(|value| value.strip_prefix(b"Bearer ")).is_some_and(|presented| token.is(presented.trim_ascii()))
}

fn names_this_machine(request: &Request) -> bool {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let port_given = host.ends_with(']') || !host.contains(':');
    place::is_loopback(&if port_given { format!("{host}:0") } else { host.to_owned() })
}

/// The process is up and has a valid configuration, or it would not have started to listen.
fn ok() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], "{\"status\":\"ok\"}\n")
}

/// Ready until the order to stop: whoever sends us requests should look for another while we drain.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if shared.is_stopping.load(Ordering::Relaxed) {
        let headers = [(CONTENT_TYPE, "application/json")];
        return (StatusCode::SERVICE_UNAVAILABLE, headers, "{\"status\":\"draining\"}\n").into_response();
    }
    ok().into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let mut out = String::with_capacity(16 * 1024);
    shared.recorder.metrics.render(&mut out);
    gauges(&mut out, &shared.live.load(), shared.clock.now());
    process(&mut out, &shared);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out)
}

/// What is true at this moment, read from the state itself.
fn gauges(out: &mut String, live: &Live, now: Now) {
    family(out, "seawall_in_flight", "gauge", "Calls in flight");
    for upstream in &live.upstreams {
        let pool = upstream.endpoints.last().and_then(|endpoint| endpoint.spec.policy.pool.as_deref()).unwrap_or_default();
        let (name, pool) = (escape(&upstream.spec.name), escape(pool));
        line(out, format_args!("seawall_in_flight{{upstream=\"{name}\",pool=\"{pool}\"}} {}", upstream.in_flight.load(Ordering::Relaxed)));
    }
    family(out, "seawall_pool_saturation", "gauge", "Taken share of a pool's places and line");
    for pool in live.pools.values() {
        line(out, format_args!("seawall_pool_saturation{{pool=\"{}\"}} {}", escape(&pool.name), pool.load().saturation));
    }
    family(out, "seawall_breaker_state", "gauge", "0 closed, 1 half-open, 2 open");
    let endpoints = || live.upstreams.iter().flat_map(|upstream| &upstream.endpoints);
    for endpoint in endpoints() {
        let state = match endpoint.state.breaker_state(now.mono).0 {
            Breaker::Closed => 0,
            Breaker::HalfOpen => 1,
            Breaker::Open => 2,
        };
        line(out, format_args!("seawall_breaker_state{{{}}} {state}", labels(&endpoint.names)));
    }
    family(out, "seawall_breaker_open_seconds_total", "counter", "Time spent open");
    for endpoint in endpoints() {
        let open = endpoint.state.breaker_state(now.mono).2.as_secs_f64();
        line(out, format_args!("seawall_breaker_open_seconds_total{{{}}} {open}", labels(&endpoint.names)));
    }
    family(out, "seawall_retry_budget_tokens", "gauge", "Retries that the budget would pay for now");
    for upstream in &live.upstreams {
        let Some(last) = upstream.endpoints.last() else { continue };
        let tokens = upstream.state.budget_tokens(&last.spec.policy.retry, now.mono);
        line(out, format_args!("seawall_retry_budget_tokens{{upstream=\"{}\"}} {tokens}", escape(&upstream.spec.name)));
    }
    family(out, "seawall_key_cooling", "gauge", "1 while a key is cooling or rejected");
    for upstream in &live.upstreams {
        let keys = upstream.spec.auth.iter().flat_map(|auth| &auth.keys).zip(0u16..);
        for (key, index) in keys {
            let resting = upstream.state.key_status(index, now).is_some_and(|status| status.cooling.is_some() || status.dead);
            line(
                out,
                format_args!(
                    "seawall_key_cooling{{upstream=\"{}\",key=\"{}\"}} {}",
                    escape(&upstream.spec.name),
                    escape(&key.id),
                    u8::from(resting)
                ),
            );
        }
    }
}

fn process(out: &mut String, shared: &Shared) {
    family(out, "seawall_shared_state_up", "gauge", "1 while shared state answers");
    let store = shared.live.load().shared.clone();
    line(out, format_args!("seawall_shared_state_up {}", u8::from(store.as_ref().is_none_or(|store| store.is_up()))));
    family(out, "seawall_shared_instances", "gauge", "Instances that share state, as last heard");
    line(out, format_args!("seawall_shared_instances {}", store.map_or(1, |store| store.instances())));
    family(out, "seawall_log_lines_dropped_total", "counter", "Log lines that were not written because the writer was behind");
    line(out, format_args!("seawall_log_lines_dropped_total {}", shared.recorder.dropped()));
    family(out, "seawall_config_reloads_total", "counter", "Reloads of the configuration by result");
    line(out, format_args!("seawall_config_reloads_total{{result=\"ok\"}} {}", shared.reloads.ok.load(Ordering::Relaxed)));
    line(out, format_args!("seawall_config_reloads_total{{result=\"failed\"}} {}", shared.reloads.failed.load(Ordering::Relaxed)));
    family(out, "seawall_config_last_reload_success", "gauge", "Whether the last reload was taken");
    line(out, format_args!("seawall_config_last_reload_success {}", u8::from(shared.reloads.last_ok.load(Ordering::Relaxed))));
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _: Result<(), std::fmt::Error> = out.write_fmt(text);
    out.push('\n');
}
