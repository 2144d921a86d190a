//! Jobs over the admin API: submit one or many, list, look at, cancel.

use super::lines::{self, Bounds};
use super::submit::{self, By};
use super::{Desk, letters_api, replay_api, schedule_api, transfer, view};
use crate::serve::Shared;
use crate::serve::admin::Operator;
use crate::serve::admin::query::{Query, bad, document, either, not_found, of_store, page};
use crate::serve::answer::Refusal;
use crate::serve::eyes::audit;
use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use seawall_core::id::CallId;
use seawall_core::record::Code;
use seawall_engine::live::Live;
use seawall_store::job::{Cancelled, Enqueued, Filter, NewJob, State as JobState};
use serde_json::{Value, json};
use std::sync::Arc;

/// Lines that one submission may have.
const MOST_LINES: u64 = 100_000;
/// Lines that are kept together.
const BATCH: usize = 500;
/// Who submits through the admin port.
const OPERATOR: By<'static> = By { caller: "operator", tenant: "" };

pub(crate) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/jobs", get(list).post(create))
        .route("/v1/jobs/{id}", get(show).delete(cancel))
        .merge(letters_api::router())
        .merge(replay_api::router())
        .merge(schedule_api::router())
        .merge(transfer::router())
        .route("/v1/webhook-secret", get(webhook_secret))
}

async fn list(State(shared): State<Arc<Shared>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()).await)
}

async fn listed(shared: &Shared, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = Query::parse(query, &["state", "upstream", "correlation_id", "cursor", "limit"])?;
    let filter = Filter {
        state: query.read("state", "queued, running, waiting, done, dead or cancelled", JobState::parse)?,
        upstream: query.text("upstream").map(str::to_owned),
        correlation_id: query.text("correlation_id").map(str::to_owned),
    };
    let jobs = shared.desk.store.jobs(filter, query.window()?).await.map_err(|error| of_store(&error))?;
    let live = shared.live.load();
    Ok(document(200, &page(&jobs, |job| view::discreet_job(job, &live))))
}

async fn show(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    either(shown(&shared, &id).await)
}

async fn shown(shared: &Shared, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such job"))?;
    let job = shared.desk.store.job(id).await.map_err(|error| of_store(&error))?;
    let live = shared.live.load();
    job.map(|job| document(200, &view::discreet_job(&job, &live))).ok_or_else(|| not_found("there is no such job"))
}

async fn cancel(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(called_off(&shared, &who, &id).await)
}

async fn called_off(shared: &Shared, who: &Operator, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such job"))?;
    let cancelled = shared.desk.store.cancel(id, shared.desk.now()).await.map_err(|error| of_store(&error))?;
    if matches!(cancelled, Cancelled::Now | Cancelled::Asked) {
        audit(shared, &who.0, "cancel", format!("job {id}")).await;
    }
    match cancelled {
        Cancelled::Now => Ok(document(200, &json!({ "id": id.to_string(), "state": "cancelled" }))),
        Cancelled::Asked => Ok(document(202, &json!({ "id": id.to_string(), "state": "running", "cancelling": true }))),
        Cancelled::Over(state) => {
            Err(Box::new(Refusal::plain(409, "job_over", &format!("the job is {} and cannot be cancelled", state.as_str()))))
        }
        Cancelled::Unknown => Err(not_found("there is no such job")),
    }
}

async fn create(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Body) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let many = ["application/x-ndjson", "application/ndjson", "application/jsonl"].iter().any(|name| kind.starts_with(name));
    if many { created_many(shared, body) } else { either(created(&shared, body).await) }
}

async fn created(shared: &Shared, body: Body) -> Result<Response, Box<Refusal>> {
    let live = shared.live.load_full();
    let text = http_body_util::Limited::new(body, longest(&live)).collect().await;
    let text = text.map_err(|_| Box::new(Refusal::code(413, Code::TooLarge, "the job is larger than `max_body` allows")))?.to_bytes();
    let job = submit::accept(&text, &live, &shared.desk, OPERATOR).map_err(|why| bad(&why))?;
    let begins = begins(&job, &shared.desk);
    let kept = shared.desk.enqueue(vec![job]).await.map_err(|error| of_store(&error))?;
    let (status, value) = told(kept.first().copied(), begins)?;
    let mut response = document(status, &value);
    if let Some(id) = value["id"].as_str()
        && let Ok(place) = HeaderValue::from_str(&format!("/v1/jobs/{id}"))
    {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// What receivers of callbacks check signatures with. Whoever wrote it into the configuration has it.
async fn webhook_secret(State(shared): State<Arc<Shared>>, Extension(who): Extension<Operator>) -> Response {
    audit(&shared, &who.0, "webhook-secret", "shown".to_owned()).await;
    if shared.live.load().webhook_secret.is_some() {
        return document(200, &json!({ "source": "config", "secret": null }));
    }
    document(200, &json!({ "source": "store", "secret": *shared.desk.secret() }))
}

/// The state that a job begins in.
fn begins(job: &NewJob, desk: &Desk) -> JobState {
    if job.run_at > desk.now() { JobState::Waiting } else { JobState::Queued }
}

/// What a submitter hears of one job.
fn told(kept: Option<Enqueued>, begins: JobState) -> Result<(u16, Value), Box<Refusal>> {
    match kept {
        Some(Enqueued::New(id)) => Ok((202, json!({ "id": id.to_string(), "state": begins.as_str() }))),
        Some(Enqueued::Known(id, state)) => Ok((200, json!({ "id": id.to_string(), "state": state.as_str(), "duplicate": true }))),
        Some(Enqueued::Mismatch(id)) => {
            let detail = format!("the idempotency key was used for a different request, which is job {id}");
            Err(Box::new(Refusal::code(422, Code::IdempotencyKeyMismatch, &detail)))
        }
        None => Err(Box::new(Refusal::code(503, Code::StoreUnavailable, "the store gave no answer"))),
    }
}

/// The same for one of many lines.
pub(super) fn refused_line(refusal: &Refusal) -> Value {
    json!({ "code": refusal.code, "error": refusal.code, "detail": refusal.detail })
}

/// A line for each job.
fn created_many(shared: Arc<Shared>, body: Body) -> Response {
    let live = shared.live.load_full();
    let bounds = Bounds { bytes_of_a_line: longest(&live), lines: MOST_LINES, together: BATCH };
    lines::answer(body, bounds, move |lines| {
        let (shared, live) = (Arc::clone(&shared), Arc::clone(&live));
        async move {
            let mut batch = Batch::default();
            for (number, line) in lines {
                let line = line.and_then(|line| submit::accept(&line, &live, &shared.desk, OPERATOR));
                batch.add(number, line, &shared.desk);
            }
            batch.keep(&shared).await
        }
    })
}

/// A body may be written in escapes that are longer than what they stand for.
pub(super) fn longest(live: &Live) -> usize {
    usize::try_from(live.config.server.max_body).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(64 * 1024)
}

/// Lines of a submission that are not kept yet.
#[derive(Default)]
struct Batch {
    jobs: Vec<NewJob>,
    /// For each line, how its job begins, or what is wrong with it.
    lines: Vec<(u64, Result<JobState, String>)>,
}

impl Batch {
    fn add(&mut self, number: u64, line: Result<NewJob, String>, desk: &Desk) {
        let line = line.map(|job| {
            let state = begins(&job, desk);
            self.jobs.push(job);
            state
        });
        self.lines.push((number, line));
    }

    async fn keep(&mut self, shared: &Shared) -> Bytes {
        let jobs = std::mem::take(&mut self.jobs);
        let kept = if jobs.is_empty() { Ok(Vec::new()) } else { shared.desk.enqueue(jobs).await };
        let mut kept = kept.map(Vec::into_iter);
        let mut out = String::new();
        for (number, line) in self.lines.drain(..) {
            let value = match (line, &mut kept) {
                (Err(why), _) => refused_line(&bad(&why)),
                (Ok(begins), Ok(kept)) => told(kept.next(), begins).map_or_else(|refusal| refused_line(&refusal), |(_, value)| value),
                (Ok(_), Err(error)) => refused_line(&of_store(error)),
            };
            out.push_str(&lines::numbered(number, value));
        }
        Bytes::from(out)
    }
}
