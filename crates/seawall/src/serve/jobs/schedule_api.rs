//! Schedules over the admin API: how each subject does, and subjects that come and go.

use super::schedule;
use crate::serve::Shared;
use crate::serve::admin::Operator;
use crate::serve::admin::query::{Query, bad, document, either, not_found, of_store};
use crate::serve::answer::Refusal;
use crate::serve::eyes::audit;
use axum::Extension;
use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::{get, put};
use seawall_core::config::model::Schedule;
use seawall_store::job::{Filter, Origin, State as JobState};
use seawall_store::page::{MOST, Window};
use seawall_store::schedule::{NewSubject, Source, Subject};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longer names are mistakes.
const MOST_NAME: usize = 200;

pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/schedules", get(list))
        .route("/v1/schedules/{name}", get(show))
        .route("/v1/schedules/{name}/subjects/{subject}", put(add).delete(remove))
}

async fn list(State(shared): State<Arc<Shared>>) -> Response {
    either(listed(&shared).await)
}

async fn listed(shared: &Shared) -> Result<Response, Box<Refusal>> {
    let live = shared.live.load_full();
    let mut items = Vec::new();
    for schedule in &live.config.schedules {
        items.push(view(shared, schedule, None, MOST).await?);
    }
    Ok(document(200, &json!({ "items": items, "next_cursor": null })))
}

async fn show(State(shared): State<Arc<Shared>>, Path(name): Path<String>, RawQuery(query): RawQuery) -> Response {
    either(shown(&shared, &name, query.as_deref()).await)
}

async fn shown(shared: &Shared, name: &str, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = Query::parse(query, &["cursor", "limit"])?;
    let live = shared.live.load_full();
    let schedule = configured(&live.config.schedules, name)?;
    let limit = query.limit()?;
    Ok(document(200, &view(shared, schedule, query.text("cursor"), limit).await?))
}

fn configured<'a>(schedules: &'a [Schedule], name: &str) -> Result<&'a Schedule, Box<Refusal>> {
    schedules.iter().find(|schedule| schedule.name == name).ok_or_else(|| not_found("there is no such schedule"))
}

/// A schedule and a page of its subjects.
async fn view(shared: &Shared, schedule: &Schedule, after: Option<&str>, limit: usize) -> Result<Value, Box<Refusal>> {
    let store = &shared.desk.store;
    let after = after.map(|subject| (schedule.name.clone(), subject.to_owned()));
    let subjects = store.subjects(Some(schedule.name.clone()), after, limit).await.map_err(|error| of_store(&error))?;
    let next = subjects.last().filter(|_| subjects.len() == limit).map(|last| last.subject.clone());
    let busy = busy(shared, schedule).await?;
    Ok(json!({
        "name": schedule.name,
        "upstream": schedule.upstream,
        "every": schedule.every.to_string(),
        "request": { "method": schedule.method, "path": schedule.path },
        "deliver": schedule.deliver,
        "missed": if schedule.run_missed { "once" } else { "skip" },
        "subjects": subjects.iter().map(|subject| subject_view(subject, &busy)).collect::<Vec<_>>(),
        "next_cursor": next,
    }))
}

/// Subjects that have a job under way, as far as the newest page of running jobs shows them.
async fn busy(shared: &Shared, schedule: &Schedule) -> Result<BTreeSet<String>, Box<Refusal>> {
    let filter = Filter { state: Some(JobState::Running), upstream: Some(schedule.upstream.clone()), correlation_id: None };
    let running = shared.desk.store.jobs(filter, Window { after: None, limit: MOST }).await.map_err(|error| of_store(&error))?;
    let ours = running.entries.into_iter().filter_map(|job| match job.origin {
        Origin::Schedule { name, subject } if name == schedule.name => Some(subject),
        _ => None,
    });
    Ok(ours.collect())
}

fn subject_view(subject: &Subject, busy: &BTreeSet<String>) -> Value {
    let state = match subject {
        Subject { stopped: Some(_), .. } => "stopped",
        _ if busy.contains(&subject.subject) => "running",
        Subject { consecutive_failures: 1.., .. } => "failing",
        _ => "waiting",
    };
    let is_stopped = subject.stopped.is_some();
    json!({
        "subject": subject.subject,
        "source": subject.source.as_str(),
        "state": state,
        "last_ok_at": subject.last_ok_at.map(|at| at.to_string()),
        "last_error": subject.last_error,
        "consecutive_failures": subject.consecutive_failures,
        "next_retry_at": subject.next_retry_at.filter(|_| !is_stopped).map(|at| at.to_string()),
        "next_at": (!is_stopped).then(|| subject.due_at().to_string()),
        "correlation_id": schedule::correlation(&subject.schedule, &subject.subject),
    })
}

async fn add(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path((name, subject)): Path<(String, String)>,
) -> Response {
    either(added(&shared, &who, &name, &subject).await)
}

/// Adds a subject, or lets a stopped one go on.
async fn added(shared: &Shared, who: &Operator, name: &str, subject: &str) -> Result<Response, Box<Refusal>> {
    let (desk, live) = (&shared.desk, shared.live.load_full());
    let schedule = configured(&live.config.schedules, name)?;
    if subject.is_empty() || subject.len() > MOST_NAME || subject.chars().any(char::is_control) {
        return Err(bad(&format!("a subject has 1 to {MOST_NAME} printable characters")));
    }
    let now = desk.now();
    let status = match schedule::find(&desk.store, name, subject).await.map_err(|error| of_store(&error))? {
        Some(_) => {
            desk.store.resume_subject(name.to_owned(), subject.to_owned(), now).await.map_err(|error| of_store(&error))?;
            schedule::goes_on(shared, &live, name, subject);
            200
        }
        None => {
            let next_at = desk.by_chance(|rng| schedule.first_at(now, rng));
            let new = NewSubject { schedule: name.to_owned(), subject: subject.to_owned(), source: Source::Api, next_at };
            desk.store.put_subjects(vec![new]).await.map_err(|error| of_store(&error))?;
            201
        }
    };
    audit(shared, &who.0, "schedule", format!("{name}: put {subject}")).await;
    let found = schedule::find(&desk.store, name, subject).await.map_err(|error| of_store(&error))?;
    let found = found.ok_or_else(|| not_found("the subject is gone again"))?;
    Ok(document(status, &subject_view(&found, &BTreeSet::new())))
}

async fn remove(
    State(shared): State<Arc<Shared>>,
    Extension(who): Extension<Operator>,
    Path((name, subject)): Path<(String, String)>,
) -> Response {
    either(removed(&shared, &who, &name, &subject).await)
}

async fn removed(shared: &Shared, who: &Operator, name: &str, subject: &str) -> Result<Response, Box<Refusal>> {
    let store = &shared.desk.store;
    let unknown = || not_found("there is no such subject");
    let found = schedule::find(store, name, subject).await.map_err(|error| of_store(&error))?.ok_or_else(unknown)?;
    if found.source == Source::Config {
        let detail = "the configuration lists this subject: take it out there and reload";
        return Err(Box::new(Refusal::plain(409, "subject_configured", detail)));
    }
    if !store.remove_subject(name.to_owned(), subject.to_owned()).await.map_err(|error| of_store(&error))? {
        return Err(unknown());
    }
    audit(shared, &who.0, "schedule", format!("{name}: delete {subject}")).await;
    Ok(document(200, &json!({ "schedule": name, "subject": subject, "removed": true })))
}
