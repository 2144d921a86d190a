//! How it goes: `GET /v1/status` and its chart.

use super::query::{Query, bad, document, either};
use crate::serve::Shared;
use crate::serve::answer::Refusal;
use crate::serve::eyes::{self, as_f64, in_flight, when};
use crate::setup::Environment;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use seawall_core::config::lint;
use seawall_core::time::Wall;
use seawall_store::job::State as JobState;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

pub(super) async fn status(State(shared): State<Arc<Shared>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let totals = shared.recorder.metrics.totals();
    let seen = shared.eyes.seen();
    let minute = seen.all.last(60, now.wall);
    let rejected = seen.rejected;
    drop(seen);
    let counts = &shared.desk.counts;
    let mut jobs: Map<String, Value> = JobState::ALL
        .iter()
        .zip(&counts.by_state)
        .map(|(state, count)| (state.as_str().to_owned(), json!(count.load(Ordering::Relaxed))))
        .collect();
    let lag_ms = u64::try_from(counts.lag_ms.load(Ordering::Relaxed)).unwrap_or(0);
    jobs.insert("lag_seconds".to_owned(), json!(as_f64(lag_ms) / 1000.0));
    let letters: u64 = counts.letters.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|depth| depth.open).sum();
    let alarms = shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner);
    let alarms: Vec<Value> = alarms.iter().map(|(queue, severity)| json!({ "queue": queue, "severity": severity.as_str() })).collect();
    let server = &live.config.server;
    let store = if server.store.starts_with("sqlite:") { "sqlite" } else { "postgres" };
    let kind = if server.shared == "local" { "local" } else { "redis" };
    document(
        200,
        &json!({
            "version": env!("SEAWALL_VERSION"),
            "started_at": when(shared.started_at),
            "now": when(now.wall),
            "uptime_seconds": now.wall.since(shared.started_at).0 / 1_000_000_000,
            "instance": shared.pseudonym.name(),
            "phase": if shared.draining.load(Ordering::Relaxed) { "draining" } else { "serving" },
            "store": { "kind": store, "healthy": shared.desk.is_healthy() },
            "shared": { "kind": kind, "up": live.shared.as_ref().is_none_or(|shared| shared.is_up()) },
            "config": {
                "file": shared.file.display().to_string(),
                "loaded_at": when(Wall(shared.reloads.loaded_at.load(Ordering::Relaxed))),
                "last_reload_ok": shared.reloads.last_ok.load(Ordering::Relaxed),
                "needs_restart": **shared.reloads.needs_restart.load(),
                "warnings": lint::warnings(&live.config, &Environment::beside(&shared.file)).len(),
            },
            "totals": {
                "calls": totals.calls,
                "success": totals.successes,
                "attempts": totals.attempts,
                "retries": totals.retries,
                "rejected": rejected,
            },
            "last_minute": {
                "calls": minute.calls,
                "success_share": minute.success_share(),
                "retries_per_success": minute.retries_per_success(),
                "rate": minute.rate(now.mono),
                "p50_ms": minute.quantile(500),
                "p95_ms": minute.quantile(950),
                "p99_ms": minute.quantile(990),
            },
            "in_flight": in_flight(&live),
            "jobs": jobs,
            "dead_letters": { "open": letters, "alarms": alarms },
        }),
    )
}

pub(super) async fn series(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    either(charted(&shared, query.as_deref()))
}

fn charted(shared: &Shared, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = Query::parse(query, &["minutes", "upstream"])?;
    let minutes =
        query.read("minutes", "a number from 1 to 60", |text| text.parse::<i64>().ok().filter(|n| (1..=60).contains(n)))?.unwrap_or(15);
    let to = shared.clock.now().wall.0.div_euclid(1000);
    let from = to - minutes * 60;
    // A chart has a few hundred points, whatever its length.
    let step = match minutes {
        ..=15 => 1,
        16..=30 => 2,
        _ => 5,
    };
    let seen = shared.eyes.seen();
    let (step, points) = match query.text("upstream") {
        None => (step, seen.all.chart(from, to, step)),
        Some(name) => {
            let live = shared.live.load();
            let upstream = live.named(name).ok_or_else(|| bad(&format!("there is no upstream `{name}`")))?;
            let of: Vec<&eyes::Series> = upstream.endpoints.iter().filter_map(|endpoint| seen.endpoints.get(&endpoint.names)).collect();
            let step = of.first().map_or(step, |series| series.step().max(step));
            let mut points = of.first().map(|series| series.chart(from, to, step)).unwrap_or_default();
            for series in of.iter().skip(1) {
                points.iter_mut().zip(series.chart(from, to, step)).for_each(|(sum, more)| sum.add(&more));
            }
            (step, points)
        }
    };
    drop(seen);
    let points: Vec<Value> = points.iter().map(eyes::Point::json).collect();
    Ok(document(200, &json!({ "step_seconds": step, "from": when(Wall(from * 1000)), "points": points })))
}
