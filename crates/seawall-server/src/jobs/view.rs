//! Jobs and dead letters as the API shows them. Credentials of callers are not shown; if a response repeats them, only the job's own caller
//! sees them.

use crate::json_shapes::{ClassWord, DoorWord, JobState, LetterStatus, Members, SeverityWord, Time};
use crate::letter;
use seawall_core::discretion::{REDACTED, is_secret, target};
use seawall_engine::runtime::Live;
use seawall_store::dead::{Issue, Letter};
use seawall_store::job::{AD_HOC, Attempted, Job, JobOrigin, Response};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A job.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct ShownJob {
    id: String,
    /// Null where the job is for a whole URL.
    upstream: Option<String>,
    method: String,
    path: String,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Members<String>,
    body: Option<String>,
    body_encoding: Option<Encoding>,
    pub state: JobState,
    attempts: u32,
    /// Workers that vanished while they had it.
    crashes: u32,
    priority: i64,
    tenant: String,
    caller: String,
    origin: ShownOrigin,
    next_attempt_at: Option<Time>,
    created_at: Time,
    finished_at: Option<Time>,
    expires_at: Option<Time>,
    run_at: Time,
    response: Option<LastResponse>,
    error: Option<String>,
    correlation_id: Option<String>,
    idempotency_key: Option<String>,
    callback: Option<String>,
    #[schema(value_type = Vec<Tried>)]
    history: Vec<Attempted>,
}

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) enum Encoding {
    #[serde(rename = "utf-8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

/// Why a job exists.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[schema(as = Origin)]
enum ShownOrigin {
    Caller,
    /// Tells somebody how that job ended.
    Callback {
        job: String,
    },
    Notification,
    Schedule {
        schedule: String,
        subject: String,
    },
    /// A dead letter's second chance.
    Replay {
        letter: String,
    },
}

/// What the upstream answered in the end.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Answer)]
struct LastResponse {
    status: u16,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Members<String>,
    body: Option<String>,
    body_encoding: Option<Encoding>,
    truncated: bool,
}

/// One attempt of a job, as the store has it.
#[derive(ToSchema)]
#[schema(as = Attempt)]
#[expect(dead_code, reason = "the description of a type that the store writes")]
pub(crate) struct Tried {
    attempt: u32,
    status: String,
    latency_ms: f64,
    outcome: String,
    at: Time,
}

/// A call that was given up.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct LetterView {
    id: String,
    /// Its upstream.
    queue: String,
    endpoint: String,
    door: DoorWord,
    original: OriginalRequest,
    class: ClassWord,
    failure_reason: String,
    failure_code: String,
    error_detail: String,
    last_attempt_at: Option<Time>,
    total_attempts: u32,
    message_id: String,
    correlation_id: Option<String>,
    idempotency_key: Option<String>,
    caller: String,
    tenant: String,
    enqueued_at: Time,
    dead_lettered_at: Time,
    expires_at: Time,
    severity: SeverityWord,
    replayable: bool,
    replay_instructions: String,
    status: LetterStatus,
    replays: u32,
    replayed_by: Option<String>,
    #[schema(value_type = Vec<Tried>)]
    history: Vec<Attempted>,
}

/// What was to be sent.
#[derive(Debug, Serialize, ToSchema)]
struct OriginalRequest {
    method: String,
    url: String,
    path: String,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: Members<String>,
    body: Option<String>,
    body_encoding: Option<Encoding>,
    /// It was longer than what is kept.
    body_cut: bool,
}

/// Dead letters that failed the same way.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Issue)]
pub(crate) struct ShownIssue {
    upstream: String,
    endpoint: String,
    class: ClassWord,
    code: String,
    severity: SeverityWord,
    open: u64,
    total: u64,
    first_at: Time,
    last_at: Time,
    detail: String,
}

pub(crate) fn headers(pairs: &[(String, String)]) -> Members<String> {
    let mut shown: Vec<(String, String)> = Vec::new();
    for (name, value) in pairs {
        let value = if is_secret(name) { REDACTED } else { value.as_str() };
        match shown.iter_mut().find(|(known, _)| known == name) {
            Some((_, before)) => *before = format!("{before}, {value}"),
            None => shown.push((name.clone(), value.to_owned())),
        }
    }
    Members(shown)
}

/// Returns a body and its encoding: text as it is, other bytes in base64.
pub(crate) fn body(bytes: &[u8]) -> (Option<String>, Option<Encoding>) {
    use base64::Engine as _;
    match std::str::from_utf8(bytes) {
        Ok("") => (None, None),
        Ok(text) => (Some(text.to_owned()), Some(Encoding::Utf8)),
        Err(_) => (Some(base64::engine::general_purpose::STANDARD.encode(bytes)), Some(Encoding::Base64)),
    }
}

/// Returns a job as its own caller sees it: with the unmasked response.
pub(crate) fn job(job: &Job) -> ShownJob {
    answered(job, job.response.as_ref())
}

/// Returns a job as others see it: with a masked response.
pub(crate) fn discreet_job(job: &Job, live: &Live) -> ShownJob {
    let mask = || letter::mask(live.named(&job.upstream).map(Arc::as_ref), &job.request);
    let response = job.response.as_ref().map(|response| letter::masked_response(response.clone(), None, &mask()));
    answered(job, response.as_ref())
}

fn answered(job: &Job, response: Option<&Response>) -> ShownJob {
    let (text, body_encoding) = body(&job.request.body);
    let response = response.map(|response| {
        let (text, body_encoding) = body(&response.body);
        let (status, truncated) = (response.status, response.truncated);
        LastResponse { status, headers: headers(&response.headers.pairs()), body: text, body_encoding, truncated }
    });
    ShownJob {
        id: job.id.to_string(),
        upstream: (job.upstream != AD_HOC).then(|| job.upstream.clone()),
        method: job.request.method.clone(),
        path: target(&job.request.path).into(),
        headers: headers(&job.request.headers),
        body: text,
        body_encoding,
        state: JobState(job.state),
        attempts: job.progress.attempts,
        crashes: job.crashes,
        priority: job.priority,
        tenant: job.tenant.clone(),
        caller: job.caller.clone(),
        origin: origin(&job.origin),
        next_attempt_at: job.next_attempt_at.map(Time),
        created_at: Time(job.created_at),
        finished_at: job.finished_at.map(Time),
        expires_at: job.expires_at.map(Time),
        run_at: Time(job.run_at),
        response,
        error: job.error.clone(),
        correlation_id: job.correlation_id.clone(),
        idempotency_key: job.idempotency_key.clone(),
        callback: job.callback.as_deref().map(|url| target(url).into()),
        history: job.history.clone(),
    }
}

fn origin(origin: &JobOrigin) -> ShownOrigin {
    match origin.clone() {
        JobOrigin::Caller => ShownOrigin::Caller,
        JobOrigin::Callback(job) => ShownOrigin::Callback { job },
        JobOrigin::Notification => ShownOrigin::Notification,
        JobOrigin::Schedule { name, subject } => ShownOrigin::Schedule { schedule: name, subject },
        JobOrigin::Replay { letter } => ShownOrigin::Replay { letter },
    }
}

pub(crate) fn letter(kept: &Letter) -> LetterView {
    let letter = &kept.letter;
    let (text, body_encoding) = body(&letter.request.body);
    LetterView {
        id: letter.id.to_string(),
        queue: letter.upstream.clone(),
        endpoint: letter.endpoint.clone(),
        door: DoorWord(letter.door),
        original: OriginalRequest {
            method: letter.request.method.clone(),
            url: target(&letter.url).into(),
            path: target(&letter.request.path).into(),
            headers: headers(&letter.request.headers),
            body: text,
            body_encoding,
            body_cut: letter.body_cut,
        },
        class: ClassWord(letter.class),
        failure_reason: letter.reason.clone(),
        failure_code: letter.code.clone(),
        error_detail: letter.detail.clone(),
        last_attempt_at: letter.last_attempt_at.map(Time),
        total_attempts: letter.attempts,
        message_id: letter.id.to_string(),
        correlation_id: letter.correlation_id.clone(),
        idempotency_key: letter.idempotency_key.clone(),
        caller: letter.caller.clone(),
        tenant: letter.tenant.clone(),
        enqueued_at: Time(letter.enqueued_at),
        dead_lettered_at: Time(letter.dead_at),
        expires_at: Time(letter.expires_at),
        severity: SeverityWord(letter.severity),
        replayable: letter.replayable,
        replay_instructions: letter.instructions.clone(),
        status: LetterStatus(kept.status),
        replays: kept.replays,
        replayed_by: kept.replayed_by.map(|id| id.to_string()),
        history: letter.history.clone(),
    }
}

pub(crate) fn issue(issue: &Issue) -> ShownIssue {
    ShownIssue {
        upstream: issue.upstream.clone(),
        endpoint: issue.endpoint.clone(),
        class: ClassWord(issue.class),
        code: issue.code.clone(),
        severity: SeverityWord(issue.severity),
        open: issue.open,
        total: issue.total,
        first_at: Time(issue.first_at),
        last_at: Time(issue.last_at),
        detail: issue.detail.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_text_is_written_in_base64() {
        assert_eq!(body(b"plain"), (Some("plain".to_owned()), Some(Encoding::Utf8)));
        assert_eq!(body(b"\xff\x00"), (Some("/wA=".to_owned()), Some(Encoding::Base64)));
        assert_eq!(body(b""), (None, None));
    }

    #[test]
    fn credentials_are_not_shown() {
        let pairs = [("Authorization", "Bearer abc"), ("accept", "a"), ("accept", "b")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(serde_json::to_string(&headers(&pairs)).unwrap(), r#"{"Authorization":"[redacted]","accept":"a, b"}"#);
    }
}
