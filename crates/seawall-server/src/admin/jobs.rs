//! Jobs over the admin API: submit one or many, list, show, cancel.

use super::Operator;
use super::paths::paths;
use crate::ServerState;
use crate::jobs::line_stream::{self, BYTES_TOGETHER, LineBounds};
use crate::jobs::submit::{self, Submitter};
use crate::jobs::{JobContext, view};
use crate::json_shapes;
use crate::observe::audit;
use crate::query::{List, Paged, QueryParameters, bad, document, either, not_found, of_store, page};
use crate::response::Refusal;
use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use seawall_core::id::CallId;
use seawall_core::record::Code;
use seawall_engine::runtime::Live;
use seawall_store::job::{Cancelled, Enqueued, JobFilter, JobState, NewJob};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// Maximum lines of one submission.
const MAX_LINES: u64 = 100_000;
/// Lines that are stored in one batch.
const BATCH: usize = 500;
/// The submitter of jobs that come through the admin port.
const OPERATOR: Submitter<'static> = Submitter { caller: "operator", tenant: "" };

paths!(list, create, show, cancel, webhook_secret);

/// A job that is on disk.
#[derive(Debug, Serialize, ToSchema)]
struct Submitted {
    id: String,
    state: json_shapes::JobState,
    /// It was there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    duplicate: Option<bool>,
}

/// A job that is called off.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Cancelled)]
struct CalledOff {
    id: String,
    state: json_shapes::JobState,
    /// It is under way; what comes of it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    cancelling: Option<bool>,
}

/// What is said of one line: its job, or what is wrong with it
#[derive(Debug, Serialize, ToSchema)]
struct JobLine {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    state: Option<json_shapes::JobState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    duplicate: Option<bool>,
    #[serde(flatten)]
    #[schema(inline)]
    refused: RefusedLine,
}

impl JobLine {
    fn of(line: u64, said: Result<Submitted, Box<Refusal>>) -> Self {
        match said {
            Ok(Submitted { id, state, duplicate }) => {
                Self { line, id: Some(id), state: Some(state), duplicate, refused: RefusedLine::default() }
            }
            Err(refusal) => Self { line, id: None, state: None, duplicate: None, refused: RefusedLine::of(&refusal) },
        }
    }
}

/// What is wrong with a line, if anything is.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct RefusedLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<String>,
}

impl RefusedLine {
    pub(crate) fn of(refusal: &Refusal) -> Self {
        Self { code: Some(refusal.code), error: Some(refusal.code), detail: Some(refusal.detail.clone()) }
    }
}

/// Where the key is that signs callbacks.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookSecret {
    source: SecretSource,
    /// Null where whoever wrote the configuration has it.
    secret: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SecretSource {
    Config,
    Store,
}

/// Jobs, newest first
#[utoipa::path(
    get, path = "/v1/jobs", operation_id = "listJobs", tag = "jobs",
    params(
        ("state" = Option<json_shapes::JobState>, Query),
        ("upstream" = Option<String>, Query),
        ("correlation_id" = Option<String>, Query),
        Paged,
    ),
    responses((status = 200, body = List<view::ShownJob>)),
)]
async fn list(State(shared): State<Arc<ServerState>>, RawQuery(query): RawQuery) -> Response {
    either(listed(&shared, query.as_deref()).await)
}

async fn listed(shared: &ServerState, query: Option<&str>) -> Result<Response, Box<Refusal>> {
    let query = QueryParameters::parse(query, &["state", "upstream", "correlation_id", "cursor", "limit"])?;
    let filter = JobFilter {
        state: query.read("state", "queued, running, waiting, done, dead or cancelled", JobState::parse)?,
        upstream: query.text("upstream").map(str::to_owned),
        correlation_id: query.text("correlation_id").map(str::to_owned),
    };
    let jobs = shared.desk.store.jobs(filter, query.window()?).await.map_err(|error| of_store(&error))?;
    let live = shared.live.load();
    Ok(document(200, &page(&jobs, |job| view::discreet_job(job, &live))))
}

/// One job
#[utoipa::path(
    get, path = "/v1/jobs/{id}", operation_id = "showJob", tag = "jobs",
    params(("id" = String, Path)),
    responses((status = 200, body = view::ShownJob), (status = 404, description = "There is no such job")),
)]
async fn show(State(shared): State<Arc<ServerState>>, Path(id): Path<String>) -> Response {
    either(shown(&shared, &id).await)
}

async fn shown(shared: &ServerState, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such job"))?;
    let job = shared.desk.store.job(id).await.map_err(|error| of_store(&error))?;
    let live = shared.live.load();
    job.map(|job| document(200, &view::discreet_job(&job, &live))).ok_or_else(|| not_found("there is no such job"))
}

/// Cancel a job
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", operation_id = "cancelJob", tag = "jobs",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = CalledOff),
        (status = 202, description = "It is under way, and ends as soon as it can", body = CalledOff),
        (status = 404, description = "There is no such job"),
        (status = 409, description = "It is over"),
    ),
)]
async fn cancel(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>, Path(id): Path<String>) -> Response {
    either(called_off(&shared, &who, &id).await)
}

async fn called_off(shared: &ServerState, who: &Operator, id: &str) -> Result<Response, Box<Refusal>> {
    let id = CallId::parse(id).ok_or_else(|| not_found("there is no such job"))?;
    let cancelled = shared.desk.store.cancel(id, shared.desk.now()).await.map_err(|error| of_store(&error))?;
    if matches!(cancelled, Cancelled::Now | Cancelled::Asked) {
        audit(shared, &who.0, "cancel", format!("job {id}")).await;
    }
    match cancelled {
        Cancelled::Now => {
            Ok(document(200, &CalledOff { id: id.to_string(), state: json_shapes::JobState(JobState::Cancelled), cancelling: None }))
        }
        Cancelled::Asked => {
            Ok(document(202, &CalledOff { id: id.to_string(), state: json_shapes::JobState(JobState::Running), cancelling: Some(true) }))
        }
        Cancelled::Over(state) => {
            Err(Box::new(Refusal::plain(409, "job_over", &format!("the job is {} and cannot be cancelled", state.as_str()))))
        }
        Cancelled::Unknown => Err(not_found("there is no such job")),
    }
}

/// Submit a job, or one per line as application/x-ndjson
#[utoipa::path(
    post, path = "/v1/jobs", operation_id = "submitJobs", tag = "jobs",
    request_body(content(
        (submit::Submission = "application/json"),
        (Vec<submit::Submission> = "application/x-ndjson"),
    )),
    responses(
        (status = 200, description = "A job that was known already, or the answers to lines", content(
            (Submitted = "application/json"),
            (Vec<JobLine> = "application/x-ndjson"),
        )),
        (status = 202, description = "It is on disk", body = Submitted),
        (status = 413, description = "It is larger than `max_body` allows"),
        (status = 422, description = "The idempotency key was used for a different request"),
    ),
)]
async fn create(State(shared): State<Arc<ServerState>>, headers: HeaderMap, body: Body) -> Response {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let many = ["application/x-ndjson", "application/ndjson", "application/jsonl"].iter().any(|name| kind.starts_with(name));
    if many { created_many(shared, body) } else { either(created(&shared, body).await) }
}

async fn created(shared: &ServerState, body: Body) -> Result<Response, Box<Refusal>> {
    let live = shared.live.load_full();
    let text = http_body_util::Limited::new(body, longest(&live)).collect().await;
    let text = text.map_err(|_| Box::new(Refusal::code(413, Code::TooLarge, "the job is larger than `max_body` allows")))?.to_bytes();
    let job = submit::accept(&text, &live, &shared.desk, OPERATOR).map_err(|why| bad(&why))?;
    let begins = begins(&job, &shared.desk);
    let kept = shared.desk.enqueue(vec![job]).await.map_err(|error| of_store(&error))?;
    let submitted = submitted(kept.first().copied(), begins)?;
    let mut response = document(if submitted.duplicate.is_some() { 200 } else { 202 }, &submitted);
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/jobs/{}", submitted.id)) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// The key that signs callbacks, where it is kept in the store; being asked is audited
#[utoipa::path(get, path = "/v1/webhook-secret", operation_id = "showWebhookSecret", tag = "jobs", responses((status = 200, body = WebhookSecret)))]
async fn webhook_secret(State(shared): State<Arc<ServerState>>, Extension(who): Extension<Operator>) -> Response {
    audit(&shared, &who.0, "webhook-secret", "shown".to_owned()).await;
    if shared.live.load().webhook_secret.is_some() {
        // An operator with access to the configuration can read it there.
        return document(200, &WebhookSecret { source: SecretSource::Config, secret: None });
    }
    document(200, &WebhookSecret { source: SecretSource::Store, secret: Some(shared.desk.secret().to_string()) })
}

/// Returns the initial state of a job.
fn begins(job: &NewJob, desk: &JobContext) -> JobState {
    if job.run_at > desk.now() { JobState::Waiting } else { JobState::Queued }
}

/// Builds the response to a submitter for one job.
fn submitted(kept: Option<Enqueued>, begins: JobState) -> Result<Submitted, Box<Refusal>> {
    let submitted = |id: CallId, state, duplicate| Submitted { id: id.to_string(), state: json_shapes::JobState(state), duplicate };
    match kept {
        Some(Enqueued::New(id)) => Ok(submitted(id, begins, None)),
        Some(Enqueued::Known(id, state)) => Ok(submitted(id, state, Some(true))),
        Some(Enqueued::Mismatch(id)) => {
            let detail = format!("the idempotency key was used for a different request, which is job {id}");
            Err(Box::new(Refusal::code(422, Code::IdempotencyKeyMismatch, &detail)))
        }
        None => Err(Box::new(Refusal::code(503, Code::StoreUnavailable, "the store gave no answer"))),
    }
}

/// Stores one job per line.
fn created_many(shared: Arc<ServerState>, body: Body) -> Response {
    let live = shared.live.load_full();
    let bounds = LineBounds { bytes_of_a_line: longest(&live), lines: MAX_LINES, together: BATCH, bytes_together: BYTES_TOGETHER };
    line_stream::answer(body, bounds, move |lines| {
        let (shared, live) = (Arc::clone(&shared), Arc::clone(&live));
        async move {
            let mut batch = PendingLines::default();
            for (number, line) in lines {
                let line = line.and_then(|line| submit::accept(&line, &live, &shared.desk, OPERATOR));
                batch.add(number, line, &shared.desk);
            }
            batch.keep(&shared).await
        }
    })
}

/// Returns the maximum length of a line. JSON escapes may be longer than the body that they stand for.
pub(crate) fn longest(live: &Live) -> usize {
    usize::try_from(live.config.server.max_body).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(64 * 1024)
}

/// Lines of a submission that are not stored yet.
#[derive(Default)]
struct PendingLines {
    jobs: Vec<NewJob>,
    /// For each line, the initial state of its job, or the error.
    lines: Vec<(u64, Result<JobState, String>)>,
}

impl PendingLines {
    fn add(&mut self, number: u64, line: Result<NewJob, String>, desk: &JobContext) {
        let line = line.map(|job| {
            let state = begins(&job, desk);
            self.jobs.push(job);
            state
        });
        self.lines.push((number, line));
    }

    async fn keep(&mut self, shared: &ServerState) -> Bytes {
        let jobs = std::mem::take(&mut self.jobs);
        let kept = if jobs.is_empty() { Ok(Vec::new()) } else { shared.desk.enqueue(jobs).await };
        let mut kept = kept.map(Vec::into_iter);
        let mut out = String::new();
        for (number, line) in self.lines.drain(..) {
            let said = match (line, &mut kept) {
                (Err(why), _) => Err(bad(&why)),
                (Ok(begins), Ok(kept)) => submitted(kept.next(), begins),
                (Ok(_), Err(error)) => Err(of_store(error)),
            };
            out.push_str(&line_stream::text(&JobLine::of(number, said)));
        }
        Bytes::from(out)
    }
}
