//! Schedules over the admin API: the state of each subject; subjects are added and removed.

use super::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::jobs::schedule;
use crate::json_shapes::{SourceWord, Time};
use crate::observe::audit;
use crate::query::{List, Paged, QueryParameters, bad, document, either, not_found, of_store, whole};
use crate::response::Refusal;
use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use seawall_core::config::model::Schedule;
use seawall_store::job::{JobFilter, JobOrigin, JobState};
use seawall_store::page::{MAX_ENTRIES, PageWindow};
use seawall_store::schedule::{NewSubject, ScheduleSubject, SubjectSource};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum length of a subject's name.
const MAX_NAME: usize = 200;

paths!(list, show, add, remove);

/// A schedule and a page of its subjects.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Schedule)]
struct ShownSchedule {
    name: String,
    upstream: String,
    every: String,
    request: ScheduledRequest,
    /// Where answers are sent.
    deliver: Option<String>,
    missed: Missed,
    subjects: Vec<ShownSubject>,
    /// What to ask for the next page of subjects with; null on the last one.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ScheduledRequest {
    method: String,
    path: String,
}

/// What becomes of ticks that nobody was there for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Missed {
    Once,
    Skip,
}

/// One of those that a schedule is for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Subject)]
struct ShownSubject {
    subject: String,
    /// Who put it there.
    source: SourceWord,
    state: SubjectState,
    last_ok_at: Option<Time>,
    last_error: Option<String>,
    consecutive_failures: u32,
    next_retry_at: Option<Time>,
    next_at: Option<Time>,
    /// Of its jobs.
    correlation_id: String,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SubjectState {
    Waiting,
    Running,
    Failing,
    Stopped,
}

/// A subject that is gone.
#[derive(Debug, Serialize, ToSchema)]
struct RemovedSubject {
    schedule: String,
    subject: String,
    removed: bool,
}

/// Schedules with the first of their subjects
#[utoipa::path(get, path = "/v1/schedules", operation_id = "listSchedules", tag = "schedules", responses((status = 200, body = List<ShownSchedule>)))]
async fn list(State(shared): State<Arc<ServerState>>) -> Response {
    either(listed(&shared).await)
}

async fn listed(shared: &ServerState) -> Result<Response, Box<Refusal>> {
    let live = shared.live.load_full();
    let mut items = Vec::new();
    for schedule in &live.config.schedules {
        items.push(view(shared, schedule, None, MAX_ENTRIES).await?);
    }
    Ok(whole(items))
}

/// One schedule and a page of its subjects
#[utoipa::path(
    get, path = "/v1/schedules/{name}", operation_id = "showSchedule", tag = "schedules",
    params(("name" = String, Path), Paged),
    responses((status = 200, body = ShownSchedule), (status = 404, description = "There is no such schedule")),
)]
async fn show(State(shared): State<Arc<ServerState>>, Path(name): Path<String>, RawQuery(query): RawQuery) -> Response {
    either(shown(&shared, &name, query.as_deref()).await)
}

async fn shown(shared: &ServerState, name: &str, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["cursor", "limit"])?;
    let live = shared.live.load_full();
    let schedule = configured(&live.config.schedules, name)?;
    let limit = query.limit()?;
    Ok(document(200, &view(shared, schedule, query.text("cursor"), limit).await?))
}

fn configured<'a>(schedules: &'a [Schedule], name: &str) -> Result<&'a Schedule, Box<Refusal>> {
    schedules.iter().find(|schedule| schedule.name == name).ok_or_else(|| not_found("there is no such schedule"))
}

/// Builds the view of a schedule with a page of its subjects.
async fn view(shared: &ServerState, schedule: &Schedule, after: Option<&str>, limit: usize) -> Result<ShownSchedule, Box<Refusal>> {
    let store = &shared.desk.store;
    let after = after.map(|subject| (schedule.name.clone(), subject.to_owned()));
    let subjects = store.subjects(Some(schedule.name.clone()), after, limit).await.map_err(|error| of_store(&error))?;
    let next = subjects.last().filter(|_| subjects.len() == limit).map(|last| last.subject.clone());
    let busy = busy(shared, schedule).await?;
    Ok(ShownSchedule {
        name: schedule.name.clone(),
        upstream: schedule.upstream.clone(),
        every: schedule.every.to_string(),
        request: ScheduledRequest { method: schedule.method.clone(), path: schedule.path.clone() },
        deliver: schedule.deliver.clone(),
        missed: if schedule.run_missed { Missed::Once } else { Missed::Skip },
        subjects: subjects.iter().map(|subject| subject_view(subject, &busy)).collect(),
        next_cursor: next,
    })
}

/// Returns the subjects with a running job, as far as the newest page of running jobs shows them.
async fn busy(shared: &ServerState, schedule: &Schedule) -> Result<BTreeSet<String>, Box<Refusal>> {
    let filter = JobFilter { state: Some(JobState::Running), upstream: Some(schedule.upstream.clone()), correlation_id: None };
    let running = shared.desk.store.jobs(filter, PageWindow { after: None, limit: MAX_ENTRIES }).await.map_err(|error| of_store(&error))?;
    let ours = running.entries.into_iter().filter_map(|job| match job.origin {
        JobOrigin::Schedule { name, subject } if name == schedule.name => Some(subject),
        _ => None,
    });
    Ok(ours.collect())
}

fn subject_view(subject: &ScheduleSubject, busy: &BTreeSet<String>) -> ShownSubject {
    let state = match subject {
        ScheduleSubject { stopped: Some(_), .. } => SubjectState::Stopped,
        _ if busy.contains(&subject.subject) => SubjectState::Running,
        ScheduleSubject { consecutive_failures: 1.., .. } => SubjectState::Failing,
        _ => SubjectState::Waiting,
    };
    let is_stopped = subject.stopped.is_some();
    ShownSubject {
        subject: subject.subject.clone(),
        source: SourceWord(subject.source),
        state,
        last_ok_at: subject.last_ok_at.map(Time),
        last_error: subject.last_error.clone(),
        consecutive_failures: subject.consecutive_failures,
        next_retry_at: subject.next_retry_at.filter(|_| !is_stopped).map(Time),
        next_at: (!is_stopped).then(|| Time(subject.due_at())),
        correlation_id: schedule::correlation(&subject.schedule, &subject.subject),
    }
}

/// Add a subject, or let a stopped one go on
#[utoipa::path(
    put, path = "/v1/schedules/{name}/subjects/{subject}", operation_id = "putSubject", tag = "schedules",
    params(("name" = String, Path), ("subject" = String, Path)),
    responses(
        (status = 200, description = "It was there, and goes on", body = ShownSubject),
        (status = 201, description = "It is new", body = ShownSubject),
        (status = 404, description = "There is no such schedule"),
    ),
)]
async fn add(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path((name, subject)): Path<(String, String)>,
) -> Response {
    either(added(&shared, &who, &name, &subject).await)
}

/// Adds a subject, or restarts a stopped one.
async fn added(shared: &ServerState, who: &Operator, name: &str, subject: &str) -> Result<Response, Box<Refusal>> {
    let (desk, live) = (&shared.desk, shared.live.load_full());
    let schedule = configured(&live.config.schedules, name)?;
    if subject.is_empty() || subject.len() > MAX_NAME || subject.chars().any(char::is_control) {
        return Err(bad(&format!("a subject has 1 to {MAX_NAME} printable characters")));
    }
    let now = desk.now();
    let status = match schedule::find(&desk.store, name, subject).await.map_err(|error| of_store(&error))? {
        Some(_) => {
            desk.store.resume_subject(name.to_owned(), subject.to_owned(), now).await.map_err(|error| of_store(&error))?;
            schedule::publish_resumed(shared, &live, name, subject);
            200
        }
        None => {
            let next_at = desk.by_chance(|rng| schedule.first_at(now, rng));
            let new = NewSubject { schedule: name.to_owned(), subject: subject.to_owned(), source: SubjectSource::Api, next_at };
            desk.store.put_subjects(vec![new]).await.map_err(|error| of_store(&error))?;
            201
        }
    };
    audit(shared, &who.0, "schedule", format!("{name}: put {subject}")).await;
    let found = schedule::find(&desk.store, name, subject).await.map_err(|error| of_store(&error))?;
    let found = found.ok_or_else(|| not_found("the subject is gone again"))?;
    Ok(document(status, &subject_view(&found, &BTreeSet::new())))
}

/// Remove a subject
#[utoipa::path(
    delete, path = "/v1/schedules/{name}/subjects/{subject}", operation_id = "removeSubject", tag = "schedules",
    params(("name" = String, Path), ("subject" = String, Path)),
    responses(
        (status = 200, body = RemovedSubject),
        (status = 404, description = "There is no such subject"),
        (status = 409, description = "The configuration lists it"),
    ),
)]
async fn remove(
    State(shared): State<Arc<ServerState>>,
    Extension(who): Extension<Operator>,
    Path((name, subject)): Path<(String, String)>,
) -> Response {
    either(removed(&shared, &who, &name, &subject).await)
}

async fn removed(shared: &ServerState, who: &Operator, name: &str, subject: &str) -> Result<Response, Box<Refusal>> {
    let store = &shared.desk.store;
    let unknown = || not_found("there is no such subject");
    let found = schedule::find(store, name, subject).await.map_err(|error| of_store(&error))?.ok_or_else(unknown)?;
    if found.source == SubjectSource::Config {
        let detail = "the configuration lists this subject: take it out there and reload";
        return Err(Box::new(Refusal::plain(409, "subject_configured", detail)));
    }
    if !store.remove_subject(name.to_owned(), subject.to_owned()).await.map_err(|error| of_store(&error))? {
        return Err(unknown());
    }
    audit(shared, &who.0, "schedule", format!("{name}: delete {subject}")).await;
    Ok(document(200, &RemovedSubject { schedule: name.to_owned(), subject: subject.to_owned(), removed: true }))
}
