//! `GET /metrics`: counters kept by the log writer, and gauges read from the current state.

use super::paths::paths;
use super::pauses;
use crate::ServerState;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use seawall_core::guard::State as Breaker;
use seawall_core::policy::Mode;
use seawall_core::time::Now;
use seawall_engine::metrics::{escape, family, labels};
use seawall_engine::runtime::Live;
use seawall_store::job::JobState;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

paths!(metrics);

/// Prometheus text
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "process",
    responses((status = 200, body = String, content_type = "text/plain")),
)]
async fn metrics(State(shared): State<Arc<ServerState>>) -> impl IntoResponse {
    let mut out = String::with_capacity(16 * 1024);
    shared.recorder.metrics.render(&mut out);
    let live = shared.live.load();
    gauges(&mut out, &live, shared.clock.now());
    refusals(&mut out, &live);
    kept(&mut out, &shared);
    process(&mut out, &shared);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out)
}

fn pause_gauges(out: &mut String, live: &Live, now: Now) {
    family(out, "seawall_pause_seconds", "gauge", "What is left of a pause that the provider asked for");
    for upstream in &live.upstreams {
        for endpoint in &upstream.endpoints {
            let left = pauses::longest(upstream, endpoint, now.mono).map_or(0.0, |(_, until)| until.since(now.mono).as_secs_f64());
            line(out, format_args!("seawall_pause_seconds{{{}}} {left}", labels(&endpoint.names)));
        }
    }
}

/// Writes gauges from the current state.
fn gauges(out: &mut String, live: &Live, now: Now) {
    family(out, "seawall_in_flight", "gauge", "Calls in flight");
    for upstream in &live.upstreams {
        let pool = upstream.endpoints.last().and_then(|endpoint| endpoint.spec.policy.pool.as_deref()).unwrap_or_default();
        let (name, pool) = (escape(&upstream.spec.name), escape(pool));
        line(out, format_args!("seawall_in_flight{{upstream=\"{name}\",pool=\"{pool}\"}} {}", upstream.in_flight.load(Ordering::Relaxed)));
    }
    family(out, "seawall_waiting", "gauge", "Calls that wait for a key, a provider's pause or a breaker");
    for upstream in &live.upstreams {
        line(out, format_args!("seawall_waiting{{upstream=\"{}\"}} {}", escape(&upstream.spec.name), upstream.state.waiting()));
    }
    family(out, "seawall_repeats_total", "counter", "Calls that another Seawall has sent before, and that are not repeated again");
    for upstream in &live.upstreams {
        let (name, repeats) = (escape(&upstream.spec.name), upstream.repeats.load(Ordering::Relaxed));
        line(out, format_args!("seawall_repeats_total{{upstream=\"{name}\"}} {repeats}"));
    }
    family(out, "seawall_cache_lookups_total", "counter", "Calls that the cache had something to do with, by what came of it");
    let caching = || live.upstreams.iter().filter(|upstream| upstream.endpoints.iter().any(|one| one.spec.policy.cache.is_on()));
    for upstream in caching() {
        let name = escape(&upstream.spec.name);
        for (result, count) in upstream.cached.lookups() {
            line(out, format_args!("seawall_cache_lookups_total{{upstream=\"{name}\",result=\"{result}\"}} {count}"));
        }
    }
    family(out, "seawall_cache_stored_total", "counter", "Answers that the cache has kept");
    for upstream in caching() {
        let (name, stored) = (escape(&upstream.spec.name), upstream.cached.stored.load(Ordering::Relaxed));
        line(out, format_args!("seawall_cache_stored_total{{upstream=\"{name}\"}} {stored}"));
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
    pause_gauges(out, live, now);
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

/// Writes how many calls each limit refused or would have refused.
fn refusals(out: &mut String, live: &Live) {
    family(out, "seawall_limit_refusals_total", "counter", "Calls that a limit refused (enforce) or would have refused (shadow)");
    let mut refusals: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for (upstream, layer) in live.layers() {
        let sum = refusals.entry((upstream, layer.name())).or_default();
        let (refused, shadowed) = layer.refusals();
        *sum = (sum.0 + refused, sum.1 + shadowed);
    }
    for ((upstream, limit), (refused, shadowed)) in refusals {
        let (upstream, limit) = (escape(upstream), escape(limit));
        for (mode, count) in [(Mode::Enforce, refused), (Mode::Shadow, shadowed)] {
            let labels = format_args!("upstream=\"{upstream}\",limit=\"{limit}\",mode=\"{mode}\"");
            line(out, format_args!("seawall_limit_refusals_total{{{labels}}} {count}"));
        }
    }
}

/// Writes jobs and dead letters, as of the last count in the store.
fn kept(out: &mut String, shared: &ServerState) {
    let counts = &shared.desk.counts;
    family(out, "seawall_jobs", "gauge", "Jobs by state");
    for (state, count) in JobState::ALL.iter().zip(&counts.by_state) {
        line(out, format_args!("seawall_jobs{{state=\"{}\"}} {}", state.as_str(), count.load(Ordering::Relaxed)));
    }
    family(out, "seawall_job_lag_seconds", "gauge", "Age of the oldest job that could run");
    let lag = std::time::Duration::from_millis(u64::try_from(counts.lag_ms.load(Ordering::Relaxed)).unwrap_or(0));
    line(out, format_args!("seawall_job_lag_seconds {}", lag.as_secs_f64()));
    let ends = [
        ("seawall_jobs_recovered_total", "Jobs that were taken over from a worker that vanished", &counts.recovered),
        ("seawall_jobs_poisoned_total", "Jobs that were given up on because workers ended while they had them", &counts.poisoned),
        (
            "seawall_job_leases_lost_total",
            "Jobs that somebody else had when their worker wanted to go on or to settle",
            &counts.lost_leases,
        ),
    ];
    for (name, help, count) in ends {
        family(out, name, "counter", help);
        line(out, format_args!("{name} {}", count.load(Ordering::Relaxed)));
    }
    family(out, "seawall_dead_letters", "gauge", "Dead letters that wait for somebody");
    for depth in counts.letters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let (queue, severity) = (escape(&depth.queue), depth.severity.as_str());
        line(out, format_args!("seawall_dead_letters{{queue=\"{queue}\",severity=\"{severity}\"}} {}", depth.open));
    }
    family(out, "seawall_dead_letters_expired_total", "counter", "Dead letters that nobody looked after in time");
    line(out, format_args!("seawall_dead_letters_expired_total {}", counts.expired.load(Ordering::Relaxed)));
}

fn process(out: &mut String, shared: &ServerState) {
    family(out, "seawall_shared_state_up", "gauge", "1 while shared state answers");
    let store = shared.live.load().shared.clone();
    line(out, format_args!("seawall_shared_state_up {}", u8::from(store.as_ref().is_none_or(|store| store.is_up()))));
    family(out, "seawall_shared_instances", "gauge", "Instances that share state, as last heard");
    line(out, format_args!("seawall_shared_instances {}", store.map_or(1, |store| store.instances())));
    family(out, "seawall_idempotency_alone_total", "counter", "Keys that were reserved here alone because shared state did not answer");
    line(out, format_args!("seawall_idempotency_alone_total {}", shared.desk.ledger.alone()));
    family(out, "seawall_caller_connections", "gauge", "Callers that are connected");
    line(out, format_args!("seawall_caller_connections {}", shared.seats.taken()));
    family(out, "seawall_caller_connections_refused_total", "counter", "Callers that found every connection taken");
    line(out, format_args!("seawall_caller_connections_refused_total {}", shared.seats.refused()));
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
