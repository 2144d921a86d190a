//! Converts rows to values; no other module does.

use crate::error::Error;
use crate::json;
use crate::model::dead::{Letter, LetterStatus, NewLetter};
use crate::model::headers::StoredHeaders;
use crate::model::job::{Job, JobLease, JobOrigin, JobRequest, JobState, Response, SUSPECT};
use crate::progress;
use crate::sql::{RowReader, RowSource};
use bytes::Bytes;
use seawall_core::policy::{Door, Severity};
use seawall_core::record::Class;

/// The columns of a job without its body; expressions for crashes, progress and history differ by query.
macro_rules! columns {
    ($crashes:expr, $progress:expr, $history:expr) => {
        concat!(
            "jobs.row, jobs.id, jobs.upstream, jobs.tenant, jobs.caller, jobs.priority, ",
            $crashes,
            ", jobs.run_at, jobs.expires_at, jobs.created_at, ",
            $progress,
            ", jobs.idempotency_key, jobs.correlation_id, jobs.callback, jobs.origin, jobs.method, jobs.path, ",
            $history,
            ", jobs.headers, jobs.begun_at, jobs.lost_under"
        )
    };
}
/// The columns that a worker needs, `FROM jobs`.
pub(crate) const CLAIMED: &str = columns!("jobs.crashes", "jobs.progress", "jobs.history");

/// Jobs joined with their claim and their end. Ended jobs are found by the index that lists need; an index of their own would be written
/// for every job that ends.
pub(crate) const PLACED: &str =
    "jobs LEFT JOIN claims ON claims.row = jobs.row LEFT JOIN ended ON ended.state IN (3, 4, 5) AND ended.id = jobs.id";
/// The state of a job of [`PLACED`].
macro_rules! state {
    () => {
        "CASE WHEN ended.row IS NOT NULL THEN ended.state WHEN claims.row IS NOT NULL THEN 1 WHEN jobs.waits = 1 THEN 2 ELSE 0 END"
    };
}
pub(crate) const STATE: &str = state!();
/// Number of lost workers. A suspect that was blamed in advance and then settled by its worker is not blamed any more.
macro_rules! crashes {
    () => {
        "CASE WHEN ended.state <> 4 AND ended.token <> 0 AND jobs.crashes > 2 THEN 2 ELSE jobs.crashes END"
    };
}
const _: () = assert!(SUSPECT == 2, "as it is written above");
macro_rules! progress {
    () => {
        "coalesce(ended.progress, jobs.progress)"
    };
}
macro_rules! history {
    () => {
        "coalesce(ended.history, jobs.history)"
    };
}
/// The error of a job that ended, or the condition that it waits for.
macro_rules! error {
    () => {
        "CASE WHEN ended.row IS NULL THEN jobs.error ELSE ended.error END"
    };
}
/// The columns of a job of [`PLACED`] for display, without the two values that may be long.
pub(crate) const JOB: &str = concat!(
    columns!(crashes!(), progress!(), history!()),
    ", ",
    state!(),
    ", jobs.due, ended.finished_at, ",
    error!(),
    ", ended.response_status, ended.response_cut, ended.response_headers"
);
/// The traces of a settlement on a job of [`PLACED`] that was [`GIVEN_BACK`] with its token. The worker had been asked to cancel if it did.
pub(crate) const LEFT: &str = concat!(
    "jobs.upstream, jobs.tenant, CASE WHEN ended.state = 5 THEN 1 ELSE 0 END, jobs.origin, ",
    state!(),
    ", ended.finished_at, ",
    progress!(),
    ", ",
    history!(),
    ", ",
    error!()
);
/// The token of the latest settlement of a job of [`PLACED`]; null if another request has ended it since.
pub(crate) const GIVEN_BACK: &str = "coalesce(ended.token, jobs.token)";

/// Reads a job claimed with this token, without its body, end and cause of waiting.
pub(crate) fn claimed(c: &mut RowReader<impl RowSource>, token: i64) -> Result<(Job, JobLease), Error> {
    let (row, id) = (c.take()?, c.take()?);
    let (upstream, tenant, caller, priority) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let crashes = c.take()?;
    let (run_at, expires_at, created_at) = (c.take()?, c.take()?, c.take()?);
    let progress = progress::read(&c.take::<String>()?);
    let (idempotency_key, correlation_id, callback) = (c.take()?, c.take()?, c.take()?);
    let origin = origin(c.take()?)?;
    let lease = JobLease { row, id, token, by_caller: origin == JobOrigin::Caller };
    let (method, path) = (c.take()?, c.take()?);
    let (history, headers) = (c.json()?, c.json()?);
    let (begun_at, lost_under) = (c.take()?, c.take()?);
    let request = JobRequest { method, path, headers, body: Bytes::new() };
    let job = Job {
        id,
        upstream,
        tenant,
        caller,
        priority,
        request,
        state: JobState::Running,
        progress,
        history,
        crashes,
        begun_at,
        lost_under,
        idempotency_key,
        correlation_id,
        callback,
        origin,
        run_at,
        next_attempt_at: None,
        expires_at,
        created_at,
        finished_at: None,
        response: None,
        error: None,
    };
    Ok((job, lease))
}

/// Reads a job without its bodies.
pub(crate) fn job(c: &mut RowReader<impl RowSource>) -> Result<Job, Error> {
    let (mut job, _) = claimed(c, 0)?;
    job.state = c.number(JobState::from_number)?;
    let due = c.take()?;
    job.next_attempt_at = matches!(job.state, JobState::Queued | JobState::Waiting).then_some(due);
    (job.finished_at, job.error) = (c.take()?, c.take()?);
    job.response = response(c)?;
    Ok(job)
}

/// Reads a response without its body.
pub(crate) fn response(c: &mut RowReader<impl RowSource>) -> Result<Option<Response>, Error> {
    let (status, cut, headers): (Option<u16>, Option<bool>, Option<String>) = (c.take()?, c.take()?, c.take()?);
    let Some(status) = status else { return Ok(None) };
    let headers = headers.map_or_else(|| Ok(StoredHeaders::default()), StoredHeaders::read)?;
    Ok(Some(Response { status, headers, body: Bytes::new(), truncated: cut.unwrap_or(false) }))
}

/// Most jobs come from callers; their column is null.
pub(crate) fn origin(text: Option<String>) -> Result<JobOrigin, Error> {
    text.map_or(Ok(JobOrigin::Caller), |text| json::read(&text))
}

/// The columns of a letter without its body; `letters l JOIN issues i`.
pub(crate) const LETTER: &str = "l.id, l.status, l.dead_at, l.expires_at, l.replays, l.replayed_by, l.replayable, l.door, l.tenant, \
     l.caller, l.reason, l.attempts, l.last_attempt_at, l.enqueued_at, l.correlation_id, l.idempotency_key, l.url, l.detail, \
     l.instructions, l.method, l.path, l.history, l.headers, l.body_cut, i.upstream, i.endpoint, i.class, i.code, i.severity";

pub(crate) fn letter(c: &mut RowReader) -> Result<Letter, Error> {
    let id = c.take()?;
    let status = c.number(LetterStatus::from_number)?;
    let (dead_at, expires_at, replays, replayed_by, replayable) = (c.take()?, c.take()?, c.take()?, c.take()?, c.take()?);
    let door = c.word(Door::from_word)?;
    let (tenant, caller, reason, attempts) = (c.take()?, c.take()?, c.take()?, c.take()?);
    let (last_attempt_at, enqueued_at) = (c.take()?, c.take()?);
    let (correlation_id, idempotency_key, url, detail, instructions) = (c.take()?, c.take()?, c.take()?, c.take()?, c.take()?);
    let (method, path) = (c.take()?, c.take()?);
    let (history, headers) = (c.json()?, c.json()?);
    let body_cut = c.take()?;
    let (upstream, endpoint) = (c.take()?, c.take()?);
    let (class, code, severity) = (c.word(Class::from_word)?, c.take()?, c.word(Severity::from_word)?);
    let letter = NewLetter {
        id,
        door,
        upstream,
        endpoint,
        tenant,
        caller,
        url,
        request: JobRequest { method, path, headers, body: Bytes::new() },
        body_cut,
        class,
        reason,
        code,
        detail,
        last_attempt_at,
        attempts,
        correlation_id,
        idempotency_key,
        enqueued_at,
        dead_at,
        expires_at,
        severity,
        replayable,
        instructions,
        history,
    };
    Ok(Letter { letter, status, replays, replayed_by })
}

/// Reads the body of a claimed job, or the length of a body that stays in the store, from the columns of
/// [`Sql::CLAIMED_BODY`](crate::sql::Sql).
pub(crate) fn claimed_body(c: &mut RowReader<impl RowSource>) -> Result<(Bytes, Option<usize>), Error> {
    let (found, length): (Option<Bytes>, Option<i64>) = (c.take()?, c.take()?);
    match (found, length) {
        (None, Some(length)) => Ok((Bytes::new(), Some(usize::try_from(length).unwrap_or(usize::MAX)))),
        (found, _) => Ok((body(found)?, None)),
    }
}

/// Returns the body; its absence means damage, since even an empty body is stored.
pub(crate) fn body(found: Option<Bytes>) -> Result<Bytes, Error> {
    found.ok_or_else(|| Error::Damaged("a job has lost its body".to_owned()))
}
