//! `GET /v1/status` and its chart.

use super::paths::paths;
use crate::ServerState;
use crate::job_counts::StoreCounts;
use crate::json_shapes::{SeverityWord, Time};
use crate::observe::{self, CallRates, ShownPoint, as_f64, in_flight};
use crate::query::{QueryParameters, bad, document, either};
use crate::response::Refusal;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use seawall_core::lint;
use seawall_core::time::Wall;
use seawall_store::job::JobState;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use utoipa::ToSchema;

paths!(status, series);

/// How it goes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Status)]
struct StatusView {
    version: &'static str,
    started_at: Time,
    now: Time,
    uptime_seconds: u64,
    /// What this process is called in logs and messages.
    instance: String,
    phase: ServerPhase,
    store: StoreNow,
    shared: SharedNow,
    config: ConfigInForce,
    totals: CallTotals,
    last_minute: LastMinute,
    /// Calls that are not over.
    in_flight: u32,
    jobs: JobCounts,
    dead_letters: LetterCounts,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Phase)]
enum ServerPhase {
    Serving,
    Draining,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StoreKind {
    Sqlite,
    Postgres,
}

#[derive(Debug, Serialize, ToSchema)]
struct StoreNow {
    kind: StoreKind,
    healthy: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SharedKind {
    Local,
    Redis,
}

#[derive(Debug, Serialize, ToSchema)]
struct SharedNow {
    kind: SharedKind,
    up: bool,
}

#[derive(Debug, Serialize, ToSchema)]
struct ConfigInForce {
    file: String,
    loaded_at: Time,
    last_reload_ok: bool,
    /// Keys that the file has other values for, and that only a restart changes
    needs_restart: Vec<&'static str>,
    /// How many there are.
    warnings: usize,
}

/// Since the process began.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Totals)]
struct CallTotals {
    calls: u64,
    success: u64,
    attempts: u64,
    retries: u64,
    /// By us, before anything was sent.
    rejected: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct LastMinute {
    calls: u64,
    #[serde(flatten)]
    #[schema(inline)]
    pace: CallRates,
}

/// Jobs by state.
#[derive(Debug, Default, Serialize, ToSchema)]
struct JobCounts {
    queued: u64,
    running: u64,
    waiting: u64,
    done: u64,
    dead: u64,
    cancelled: u64,
    /// How long the oldest one that is due has waited.
    lag_seconds: f64,
}

#[derive(Debug, Serialize, ToSchema)]
struct LetterCounts {
    open: u64,
    /// Queues with as many letters as their `alarm_depth`, on whichever instance they were given up
    alarms: Vec<LetterAlarm>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LetterAlarm {
    queue: String,
    severity: SeverityWord,
}

/// A chart.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Series)]
struct ChartSeries {
    step_seconds: i64,
    from: Time,
    points: Vec<ShownPoint>,
}

/// How it goes
#[utoipa::path(get, path = "/v1/status", operation_id = "showStatus", tag = "status", responses((status = 200, body = StatusView)))]
async fn status(State(shared): State<Arc<ServerState>>) -> Response {
    let (live, now) = (shared.live.load(), shared.clock.now());
    let totals = shared.recorder.metrics.totals();
    let seen = shared.eyes.seen();
    let minute = seen.all.last(60, now.wall);
    let rejected = seen.rejected;
    drop(seen);
    let server = &live.config.server;
    let status = StatusView {
        version: shared.version,
        started_at: Time(shared.started_at),
        now: Time(now.wall),
        uptime_seconds: now.wall.since(shared.started_at).0 / 1_000_000_000,
        instance: shared.pseudonym.name().to_owned(),
        phase: if shared.draining.load(Ordering::Relaxed) { ServerPhase::Draining } else { ServerPhase::Serving },
        store: StoreNow {
            kind: if server.store.starts_with("sqlite:") { StoreKind::Sqlite } else { StoreKind::Postgres },
            healthy: shared.desk.is_healthy(),
        },
        shared: SharedNow {
            kind: if server.shared == "local" { SharedKind::Local } else { SharedKind::Redis },
            up: live.shared.as_ref().is_none_or(|shared| shared.is_up()),
        },
        config: ConfigInForce {
            file: shared.file.display().to_string(),
            loaded_at: Time(Wall(shared.reloads.loaded_at.load(Ordering::Relaxed))),
            last_reload_ok: shared.reloads.last_ok.load(Ordering::Relaxed),
            needs_restart: shared.reloads.needs_restart.load().to_vec(),
            warnings: lint::warnings(&live.config, &shared.around).len(),
        },
        totals: CallTotals { calls: totals.calls, success: totals.successes, attempts: totals.attempts, retries: totals.retries, rejected },
        last_minute: LastMinute { calls: minute.calls, pace: minute.pace(now.mono) },
        in_flight: in_flight(&live),
        jobs: jobs(&shared.desk.counts),
        dead_letters: letters(&shared),
    };
    document(200, &status)
}

fn jobs(counts: &StoreCounts) -> JobCounts {
    let lag_ms = u64::try_from(counts.lag_ms.load(Ordering::Relaxed)).unwrap_or(0);
    let mut jobs = JobCounts { lag_seconds: as_f64(lag_ms) / 1000.0, ..JobCounts::default() };
    for (state, count) in JobState::ALL.iter().zip(&counts.by_state) {
        let place = match state {
            JobState::Queued => &mut jobs.queued,
            JobState::Running => &mut jobs.running,
            JobState::Waiting => &mut jobs.waiting,
            JobState::Done => &mut jobs.done,
            JobState::Dead => &mut jobs.dead,
            JobState::Cancelled => &mut jobs.cancelled,
        };
        *place = count.load(Ordering::Relaxed);
    }
    jobs
}

fn letters(shared: &ServerState) -> LetterCounts {
    let open = shared.desk.counts.letters.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|depth| depth.open).sum();
    let alarms = shared.desk.alarms.lock().unwrap_or_else(PoisonError::into_inner);
    let alarms = alarms.iter().map(|(queue, severity)| LetterAlarm { queue: queue.clone(), severity: SeverityWord(*severity) });
    LetterCounts { open, alarms: alarms.collect() }
}

/// The last hour, second by second
#[utoipa::path(
    get, path = "/v1/status/series", operation_id = "showSeries", tag = "status",
    params(("minutes" = Option<i64>, Query, minimum = 1, maximum = 60), ("upstream" = Option<String>, Query)),
    responses((status = 200, body = ChartSeries)),
)]
async fn series(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(charted(&shared, query.as_deref()))
}

fn charted(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["minutes", "upstream"])?;
    let minutes =
        query.read("minutes", "a number from 1 to 60", |text| text.parse::<i64>().ok().filter(|n| (1..=60).contains(n)))?.unwrap_or(15);
    let to = shared.clock.now().wall.0.div_euclid(1000);
    let from = to - minutes * 60;
    // A chart has a few hundred points, whatever its time span.
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
            let of: Vec<&observe::TimeSeries> =
                upstream.endpoints.iter().filter_map(|endpoint| seen.endpoints.get(&endpoint.names)).collect();
            let step = of.first().map_or(step, |series| series.step().max(step));
            let mut points = of.first().map(|series| series.chart(from, to, step)).unwrap_or_default();
            for series in of.iter().skip(1) {
                points.iter_mut().zip(series.chart(from, to, step)).for_each(|(sum, more)| sum.add(&more));
            }
            (step, points)
        }
    };
    drop(seen);
    let points = points.iter().map(observe::SeriesPoint::shown).collect();
    Ok(document(200, &ChartSeries { step_seconds: step, from: Time(Wall(from * 1000)), points }))
}
